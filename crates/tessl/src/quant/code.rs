//! What every format file implements, and the choice among them.

/// Weights to bytes and back, for one format. All functions are pure; the CPU kernels inline `unpack`.
pub(crate) trait Code: Copy + Send + Sync + 'static {
    /// Weights that are decoded together.
    const RUN: usize;
    /// Bytes of their codes.
    const BYTES: usize;
    /// Factors beside the codes: none, a scale, or a scale and a bias.
    const FACTORS: usize;
    /// What a block has where sixteen rows can lie side by side.
    #[cfg(target_arch = "x86_64")]
    const ROWS16: Option<crate::quant::rows16::Parts> = None;

    /// Scale and bias that fit these weights; rounded to the stored type before `pack` sees them.
    fn factors(_group: &[f32]) -> [f32; 2] {
        [0.0; 2]
    }

    /// Codes `RUN` weights into `BYTES` bytes.
    fn pack(weights: &[f32], factors: [f32; 2], codes: &mut [u8]);

    /// The `RUN` weights that `BYTES` bytes code.
    fn unpack(codes: &[u8], factors: [f32; 2], weights: &mut [f32]);
}

/// `with_code!(format, C => body)`: the body for the [`Code`] of a format.
macro_rules! with_code {
    ($format:expr, $c:ident => $body:expr) => {{
        use $crate::quant::formats;
        macro_rules! arm {
            ($code:ty) => {{
                type $c = $code;
                $body
            }};
        }
        match $format {
            $crate::quant::QFormat::Affine { bits: 8, .. } => arm!(formats::Affine8),
            $crate::quant::QFormat::Affine { .. } => arm!(formats::Affine4),
            $crate::quant::QFormat::Signed4 { .. } => arm!(formats::Signed4),
            $crate::quant::QFormat::Q8 { .. } => arm!(formats::Q8),
            $crate::quant::QFormat::Q4_0 => arm!(formats::Q4_0),
            $crate::quant::QFormat::Q4_1 => arm!(formats::Q4_1),
            $crate::quant::QFormat::Q5_0 => arm!(formats::Q5_0),
            $crate::quant::QFormat::Q5_1 => arm!(formats::Q5_1),
            $crate::quant::QFormat::Q8_0 => arm!(formats::Q8_0),
            $crate::quant::QFormat::Q4K => arm!(formats::Q4K),
            $crate::quant::QFormat::Q5K => arm!(formats::Q5K),
            $crate::quant::QFormat::Q6K => arm!(formats::Q6K),
        }
    }};
}
pub(crate) use with_code;
