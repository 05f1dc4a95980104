//! Random weights of known sizes, for measurements without a file.

use crate::config::{Architecture, ModelConfig, RopeScaling};
use crate::error::{LlmError, Result};
use crate::weights::{Matrix, Weights};
use half::{bf16, f16};
use tessl::{BufferKind, DType, GpuRuntime, QFormat, QTensor, Tensor};

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Its family.
    pub architecture: Architecture,
    /// Number of layers.
    pub layers: usize,
    /// Elements of the hidden state.
    pub width: usize,
    /// Elements between the two halves of the feed-forward network.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// The output projection is the embedding.
    pub tied: bool,
    /// Positions that layers with a window see; 0 for none.
    pub window: usize,
    /// Type of activations and dense weights.
    pub dtype: DType,
}

impl Shape {
    /// Llama 3.2 1B.
    pub const LLAMA_1B: Shape = Shape {
        architecture: Architecture::Llama,
        layers: 16,
        width: 2048,
        feed_forward: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocabulary: 128_256,
        tied: true,
        window: 0,
        dtype: DType::Bf16,
    };
    /// Llama 3.1 8B.
    pub const LLAMA_8B: Shape =
        Shape { layers: 32, width: 4096, feed_forward: 14_336, head_dim: 128, tied: false, ..Self::LLAMA_1B };
    /// Gemma 3 270M.
    pub const GEMMA3_270M: Shape = Shape {
        architecture: Architecture::Gemma3,
        layers: 18,
        width: 640,
        feed_forward: 2048,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        vocabulary: 262_144,
        tied: true,
        window: 512,
        dtype: DType::Bf16,
    };

    pub(crate) fn config(&self) -> Result<ModelConfig> {
        let config = ModelConfig {
            architecture: self.architecture,
            layers: self.layers,
            width: self.width,
            feed_forward: self.feed_forward,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rotary_dim: self.head_dim,
            context: 32_768,
            eps: 1e-6,
            rope_base: 500_000.0,
            rope_base_local: 10_000.0,
            rope_scaling: RopeScaling::None,
            window: Some(self.window).filter(|w| *w > 0),
            activations: self.dtype,
            window_pattern: 6,
        };
        config
            .check()
            .map_err(|what| LlmError::unsupported(format!("a model with {what}"), "sizes that fit together are"))?;
        Ok(config)
    }
}

/// Numbers that are used over and over: a prime, so that rows differ.
const POOL: usize = 1_048_573;

pub(crate) struct Random<'r> {
    rt: &'r GpuRuntime,
    format: Option<QFormat>,
    tied: bool,
    /// Between -1 and 1.
    pool: Vec<f32>,
}

impl<'r> Random<'r> {
    pub(crate) fn new(rt: &'r GpuRuntime, format: Option<QFormat>, tied: bool) -> Self {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f32::from_bits(0x3f80_0000 | (state >> 41) as u32) * 2.0 - 3.0
        };
        Random { rt, format, tied, pool: (0..POOL).map(|_| next()).collect() }
    }
}

impl Weights for Random<'_> {
    fn has(&self, _name: &str) -> bool {
        !self.tied
    }

    fn matrix(&self, _name: &str, [rows, columns]: [usize; 2], dtype: DType, _like: &[String]) -> Result<Matrix> {
        // A product keeps the size of what goes in.
        #[allow(clippy::cast_precision_loss)]
        let spread = (3.0 / columns as f32).sqrt();
        let tensor = self.rt.uninit(dtype, &[rows, columns], BufferKind::Hot)?;
        let values = || self.pool.iter().map(move |x| x * spread).cycle().take(rows * columns);
        match dtype {
            DType::Bf16 => tensor.write(&values().map(bf16::from_f32).collect::<Vec<_>>())?,
            DType::F16 => tensor.write(&values().map(f16::from_f32).collect::<Vec<_>>())?,
            _ => tensor.write(&values().collect::<Vec<_>>())?,
        }
        Ok(match self.format {
            Some(format) => {
                let layout = QTensor::best_layout(self.rt, format, rows);
                Matrix::Quantized(Box::new(QTensor::quantize(&tensor, format)?.repack(layout)?))
            }
            None => Matrix::Dense(tensor),
        })
    }

    fn vector(&self, _name: &str, n: usize) -> Result<Tensor> {
        Ok(self.rt.from_slice(&vec![1.0f32; n], &[n])?)
    }
}
