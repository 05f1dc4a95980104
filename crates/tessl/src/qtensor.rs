//! Quantised matrices.

use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::memory::BufferKind;
use crate::quant::host::{self, factors_from_f32, factors_to_f32};
use crate::quant::rows16::{Parts, ROWS};
use crate::quant::{QFormat, QLayout};
use crate::runtime::GpuRuntime;
use crate::tensor::{Dims, Tensor};
use smallvec::SmallVec;

/// A matrix `[N, K]` of quantised weights, or a stack `[E, N, K]` of them: format, layout, shape and the arrays that hold codes
/// and factors. Cloning copies the view, not the data.
///
/// Row n of a matrix holds the weights of output n, K inputs each, as checkpoints store linear layers. K is whole groups (or
/// blocks), and the rows of every array lie packed one after the other.
///
/// ```
/// use tessl::{Device, GpuRuntime, QFormat, QTensor};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let w = rt.from_slice(&(0..64).map(|i| i as f32 - 32.0).collect::<Vec<_>>(), &[2, 32])?;
/// let q = QTensor::quantize(&w, QFormat::Q8_0)?;
/// assert_eq!((q.shape(), q.storage_len()), (&[2, 32][..], 2 * 34));
/// let back = q.dequantize()?.read::<f32>()?;
/// assert!(back.iter().zip(w.read::<f32>()?).all(|(a, b)| (a - b).abs() <= 0.13));
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone)]
pub struct QTensor {
    format: QFormat,
    layout: QLayout,
    shape: Dims,
    codes: Tensor,
    /// Scales, then biases, as many as the format has.
    factors: SmallVec<[Tensor; 2]>,
}

impl std::fmt::Debug for QTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (format, layout, shape) = (self.format, self.layout.name(), &self.shape);
        write!(f, "QTensor({format} {shape:?}, {layout}, {})", self.codes.runtime().device())
    }
}

/// Bytes that [`QTensor::from_reader`] reads at once, about: they stay in the second-level cache.
const PIECE: usize = 512 << 10;

/// Names of the arrays in errors.
const FACTOR_NAMES: [&str; 2] = ["scales", "biases"];

impl QTensor {
    /// The matrix that these arrays hold, which stay where they are.
    ///
    /// | format | codes | factors |
    /// | --- | --- | --- |
    /// | `Affine` | u32 `[N, K * bits / 32]` | scales, biases `[N, K / group]`, f32, f16 or bf16 |
    /// | `Signed4` | u32 `[N, K / 8]` | scales `[N, K / group]` |
    /// | `Q8` | i8 `[N, K]` | scales `[N, K / group]` |
    /// | GGUF | u8 `[N, K / block * bytes of a block]` | none |
    ///
    /// A stack has one more axis in front of all of them.
    ///
    /// # Errors
    /// `DType`, `Shape`, `Layout` (rows that are not packed, a start that is not a multiple of
    /// [`QFormat::alignment`]), `Scalar` for bits or a group that do not exist, `WrongRuntime`, `Expired`.
    pub fn from_parts(format: QFormat, codes: &Tensor, factors: &[&Tensor]) -> Result<Self> {
        let op = "QTensor::from_parts";
        format.check(op)?;
        let rt = codes.runtime();
        if factors.len() != format.factors() {
            let expected = format!("{format} has {}", format.factors());
            return Err(Error::shape(op, "factors", format_args!("{} arrays", factors.len()), expected));
        }
        codes.check_usable(op, "codes", rt)?;
        if codes.dtype() != format.codes_dtype() {
            let expected = format.codes_dtype().name();
            return Err(Error::DType { op, operand: "codes", actual: codes.dtype(), expected });
        }
        let shape = codes.shape();
        let &[.., n, columns] = shape else {
            return Err(Error::shape(op, "codes", format_args!("{shape:?}"), "it must be [N, ..] or [E, N, ..]"));
        };
        if shape.len() > 3 {
            return Err(Error::shape(op, "codes", format_args!("{shape:?}"), "it must be [N, ..] or [E, N, ..]"));
        }
        let (bytes, group_bytes) = (columns * codes.dtype().size(), format.group_bytes());
        if !bytes.is_multiple_of(group_bytes) {
            let expected = format!("{format} has {group_bytes} bytes a group, so a row must hold whole groups");
            return Err(Error::shape(op, "codes", format_args!("{shape:?}"), expected));
        }
        packed_rows(op, "codes", codes)?;
        let k = bytes / group_bytes * format.group();
        let mut wanted: Dims = shape.into();
        wanted[shape.len() - 1] = k / format.group();
        for (&factor, name) in factors.iter().zip(FACTOR_NAMES) {
            factor.check_usable(op, name, rt)?;
            let first = factors[0].dtype();
            if !factor.dtype().is_float() || factor.dtype() != first {
                let expected = if first.is_float() { "the dtype of `scales`" } else { "f32, f16 or bf16" };
                return Err(Error::DType { op, operand: name, actual: factor.dtype(), expected });
            }
            if factor.shape() != wanted.as_slice() {
                let expected = format!("{wanted:?} for codes {shape:?} of {format}");
                return Err(Error::shape(op, name, format_args!("{:?}", factor.shape()), expected));
            }
            packed_rows(op, name, factor)?;
        }
        if (1usize << codes.alignment([])) < format.alignment() {
            let expected = format!("codes of {format} start at multiples of {} bytes", format.alignment());
            return Err(Error::layout(op, "codes", format_args!("at element {}", codes.offset()), expected));
        }
        let mut whole: Dims = shape.into();
        (whole[shape.len() - 2], whole[shape.len() - 1]) = (n, k);
        let factors = factors.iter().map(|&t| t.clone()).collect();
        Ok(QTensor { format, layout: QLayout::Rows, shape: whole, codes: codes.clone(), factors })
    }

    /// A matrix of GGUF blocks from the bytes of a file, in a Hot buffer. `shape` is `[N, K]` or `[E, N, K]` (GGUF lists its
    /// axes the other way round).
    ///
    /// # Errors
    /// `Shape` when K is not whole blocks or `bytes` has another length, `Unsupported` for formats whose factors lie apart
    /// (see [`from_parts`](Self::from_parts)), `OutOfMemory`.
    pub fn from_bytes(rt: &GpuRuntime, format: QFormat, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        Self::from_bytes_as(rt, format, QLayout::Rows, shape, bytes)
    }

    /// As [`from_bytes`](Self::from_bytes), in another order than that of the file: less work than [`repack`](Self::repack)
    /// afterwards.
    ///
    /// # Errors
    /// Those of both.
    pub fn from_bytes_as(
        rt: &GpuRuntime,
        format: QFormat,
        layout: QLayout,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Self> {
        let op = "QTensor::from_bytes";
        let row = row_of_blocks(op, rt, format, shape)?;
        let wanted = shape[..shape.len() - 1].iter().try_fold(row, |all, &d| all.checked_mul(d));
        if wanted != Some(bytes.len()) {
            let expected = format!("{format} {shape:?} has {}", wanted.map_or("more".into(), |w| w.to_string()));
            return Err(Error::shape(op, "bytes", format_args!("{} bytes", bytes.len()), expected));
        }
        Self::read_pieces(op, rt, format, layout, shape, |at, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at..][..into.len()]);
            Ok(())
        })
    }

    /// As [`from_bytes_as`](Self::from_bytes_as) with bytes that `read` puts into a buffer, which begins at that byte of the
    /// matrix. Pieces of half a megabyte or so are read in order, so that a matrix is never in memory a second time.
    ///
    /// ```
    /// use tessl::{Device, Error, GpuRuntime, QFormat, QLayout, QTensor};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let file = vec![7u8; 16 * 18];
    /// let q = QTensor::from_reader(&rt, QFormat::Q4_0, QLayout::Rows, &[16, 32], |at, into| {
    ///     into.copy_from_slice(&file[at..at + into.len()]);
    ///     Ok::<(), Error>(())
    /// })?;
    /// assert_eq!(q.storage_len(), file.len());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`from_bytes_as`](Self::from_bytes_as), and what `read` returns.
    pub fn from_reader<E: From<Error>>(
        rt: &GpuRuntime,
        format: QFormat,
        layout: QLayout,
        shape: &[usize],
        read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::read_pieces("QTensor::from_reader", rt, format, layout, shape, read)
    }

    fn read_pieces<E: From<Error>>(
        op: &'static str,
        rt: &GpuRuntime,
        format: QFormat,
        layout: QLayout,
        shape: &[usize],
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let row = row_of_blocks(op, rt, format, shape)?;
        let (outer, k) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        let parts = match layout {
            QLayout::Rows => None,
            QLayout::Rows16 => Some(check_rows16(op, format, outer[outer.len() - 1], rt)?),
        };
        let codes = rt.uninit(DType::U8, &outer.iter().copied().chain([row]).collect::<Dims>(), BufferKind::Hot)?;
        let flat = codes.reshape(&[codes.len()])?;
        let piece = (PIECE / row.max(1)).max(1).next_multiple_of(ROWS) * row;
        let mut buffers =
            [vec![0; piece.min(flat.len())], vec![0; if parts.is_some() { piece.min(flat.len()) } else { 0 }]];
        for at in (0..flat.len()).step_by(piece.max(1)) {
            let count = piece.min(flat.len() - at);
            let [bytes, together] = &mut buffers;
            read(at, &mut bytes[..count])?;
            if let Some(parts) = parts {
                parts.interleave(&bytes[..count], k / format.group(), &mut together[..count]);
            }
            let bytes = if parts.is_some() { together } else { bytes };
            flat.narrow(0, at, count)?.write(&bytes[..count])?;
        }
        Ok(QTensor { layout, ..Self::from_parts(format, &codes, &[])? })
    }

    /// Codes the weights of a float matrix `[N, K]` (or stack), on the host; waits for its writers. Factors beside the codes
    /// have the element type of `weights`. Rounding is to the nearest code; a group of zeros stays zeros.
    ///
    /// # Errors
    /// `DType` for weights that are not floats, `Shape` when K is not whole groups, `Scalar` for weights that are not finite
    /// or beyond the range of the factors, and what reading and allocating report.
    pub fn quantize(weights: &Tensor, format: QFormat) -> Result<Self> {
        let op = "QTensor::quantize";
        format.check(op)?;
        let rt = weights.runtime();
        weights.check_usable(op, "weights", rt)?;
        if !weights.dtype().is_float() {
            let (actual, expected) = (weights.dtype(), "f32, f16 or bf16");
            return Err(Error::DType { op, operand: "weights", actual, expected });
        }
        row_bytes(op, format, weights.shape())?;
        let values = factors_to_f32(weights.dtype(), &read_bytes(weights)?);
        host::check_weights(op, format, weights.dtype(), &values)?;
        let packed = host::pack(format, weights.dtype(), &values);
        let factors = [packed.scales, packed.biases];
        Self::upload(rt, format, weights.shape(), &packed.codes, Some((weights.dtype(), &factors)))
    }

    fn upload(
        rt: &GpuRuntime,
        format: QFormat,
        shape: &[usize],
        codes: &[u8],
        factors: Option<(DType, &[Vec<f32>; 2])>,
    ) -> Result<Self> {
        let (outer, k) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        let with_last = |last: usize| outer.iter().copied().chain([last]).collect::<Dims>();
        let groups = k / format.group();
        let columns = groups * format.group_bytes() / format.codes_dtype().size();
        let stored = write_bytes(rt, format.codes_dtype(), &with_last(columns), codes)?;
        let mut arrays: SmallVec<[Tensor; 2]> = SmallVec::new();
        if let Some((dtype, factors)) = factors {
            for factor in factors.iter().take(format.factors()) {
                arrays.push(write_bytes(rt, dtype, &with_last(groups), &factors_from_f32(dtype, factor))?);
            }
        }
        let arrays: SmallVec<[&Tensor; 2]> = arrays.iter().collect();
        Self::from_parts(format, &stored, &arrays)
    }

    /// The weights as a new f32 tensor of the same shape; computed on the host, for checks and conversions.
    ///
    /// # Errors
    /// What reading and allocating report.
    pub fn dequantize(&self) -> Result<Tensor> {
        let factor = |i: usize| -> Result<Vec<f32>> {
            self.factors.get(i).map_or(Ok(Vec::new()), |t| Ok(factors_to_f32(t.dtype(), &read_bytes(t)?)))
        };
        let codes = self.by_rows(read_bytes(&self.codes)?);
        let weights = host::unpack(self.format, &codes, &factor(0)?, &factor(1)?);
        self.codes.runtime().from_slice(&weights, &self.shape)
    }

    /// The same weights in another order, as a copy in a Hot buffer; made on the host, once, when a model is loaded. Products
    /// and lookups have the same results up to the order of their sums; a device without kernels for the order refuses it.
    ///
    /// ```
    /// use tessl::{Device, GpuRuntime, QFormat, QLayout, QTensor};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let q = QTensor::from_bytes(&rt, QFormat::Q4_0, &[16, 32], &[7; 16 * 18])?;
    /// let side_by_side = q.repack(QLayout::Rows16)?;
    /// assert_eq!(side_by_side.dequantize()?.read::<f32>()?, q.dequantize()?.read::<f32>()?);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Unsupported` for a format that the order is not for, `Shape` for rows that are not whole sixteens, and what reading and
    /// allocating report.
    pub fn repack(&self, layout: QLayout) -> Result<QTensor> {
        let op = "QTensor::repack";
        if layout == self.layout {
            return Ok(self.clone());
        }
        let parts = check_rows16(op, self.format, self.shape[self.shape.len() - 2], self.runtime())?;
        let bytes = self.by_rows(read_bytes(&self.codes)?);
        let bytes = match layout {
            QLayout::Rows => bytes,
            QLayout::Rows16 => {
                let mut together = vec![0; bytes.len()];
                parts.interleave(&bytes, self.blocks(), &mut together);
                together
            }
        };
        let codes = write_bytes(self.runtime(), self.codes.dtype(), self.codes.shape(), &bytes)?;
        Ok(QTensor { layout, codes, ..self.clone() })
    }

    /// The order in which products on this device read matrices of so many rows fastest: it pays where weights are used often.
    pub fn best_layout(rt: &GpuRuntime, format: QFormat, rows: usize) -> QLayout {
        match Parts::of(format) {
            Some(_) if rows.is_multiple_of(ROWS) => crate::device::best_layout(rt.profile()),
            _ => QLayout::Rows,
        }
    }

    /// Blocks of a row.
    fn blocks(&self) -> usize {
        self.shape[self.shape.len() - 1] / self.format.group()
    }

    /// The bytes of this tensor's codes, one row after the other.
    fn by_rows(&self, codes: Vec<u8>) -> Vec<u8> {
        match (self.layout, Parts::of(self.format)) {
            (QLayout::Rows16, Some(parts)) => parts.restore(&codes, self.blocks()),
            _ => codes,
        }
    }

    /// `length` indices of axis `axis` from `start`: rows of a matrix, or matrices and rows of a stack. K is never cut.
    ///
    /// # Errors
    /// `Shape` for an axis that does not exist or is K, a range that passes the end, and rows of [`QLayout::Rows16`] that are not
    /// whole sixteens.
    pub fn narrow(&self, axis: usize, start: usize, length: usize) -> Result<QTensor> {
        let op = "QTensor::narrow";
        if axis + 1 >= self.shape.len() {
            return Err(Error::shape(op, "axis", axis, "rows (or matrices of a stack) can be narrowed, K cannot"));
        }
        if self.layout == QLayout::Rows16 && axis + 2 == self.shape.len() {
            check_sixteens(op, start)?;
            check_sixteens(op, length)?;
        }
        let mut view = self.clone();
        view.codes = self.codes.narrow(axis, start, length)?;
        for (part, whole) in view.factors.iter_mut().zip(&self.factors) {
            *part = whole.narrow(axis, start, length)?;
        }
        view.shape[axis] = length;
        Ok(view)
    }

    /// Matrix `index` of a stack.
    ///
    /// # Errors
    /// `Shape` for a single matrix or an index past the end.
    pub fn select(&self, index: usize) -> Result<QTensor> {
        if self.shape.len() != 3 {
            let actual = format_args!("{:?}", self.shape).to_string();
            return Err(Error::shape(
                "QTensor::select",
                "self",
                actual,
                "only a stack [E, N, K] has matrices to select",
            ));
        }
        let mut view = self.clone();
        view.codes = self.codes.select(0, index)?;
        for (part, whole) in view.factors.iter_mut().zip(&self.factors) {
            *part = whole.select(0, index)?;
        }
        view.shape.remove(0);
        Ok(view)
    }

    /// How weights are coded.
    pub fn format(&self) -> QFormat {
        self.format
    }

    /// The order of the bytes.
    pub fn layout(&self) -> QLayout {
        self.layout
    }

    /// `[N, K]` or `[E, N, K]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The element type of scales and biases; `None` where blocks hold them.
    pub fn factors_dtype(&self) -> Option<DType> {
        self.factors.first().map(Tensor::dtype)
    }

    /// The arrays: codes, then scales, then biases.
    pub fn parts(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.codes).chain(&self.factors)
    }

    /// Bytes of all codes and factors.
    pub fn storage_len(&self) -> usize {
        self.parts().map(|t| t.len() * t.dtype().size()).sum()
    }

    /// The runtime of the arrays.
    pub fn runtime(&self) -> &GpuRuntime {
        self.codes.runtime()
    }

    /// Codes, scales and biases as kernels bind them; the codes take the place of what the format has not.
    pub(crate) fn bound(&self) -> [&Tensor; 3] {
        let factor = |i: usize| self.factors.get(i).unwrap_or(&self.codes);
        [&self.codes, factor(0), factor(1)]
    }

    /// Refuses arrays of other runtimes and of ended steps.
    pub(crate) fn check_usable(&self, op: &'static str, operand: &'static str, rt: &GpuRuntime) -> Result<()> {
        self.parts().try_for_each(|part| part.check_usable(op, operand, rt))
    }
}

/// Bytes of a row of blocks of this shape, for formats that keep their factors in them.
fn row_of_blocks(op: &'static str, rt: &GpuRuntime, format: QFormat, shape: &[usize]) -> Result<usize> {
    format.check(op)?;
    if format.factors() > 0 {
        let what = format!("{format} in one run of bytes, because its factors lie apart (use from_parts),");
        return Err(Error::unsupported(op, what, rt.info().kind.name()));
    }
    row_bytes(op, format, shape)
}

/// Bytes of the codes of one row of this shape.
fn row_bytes(op: &'static str, format: QFormat, shape: &[usize]) -> Result<usize> {
    let (2..=3, Some(&k)) = (shape.len(), shape.last()) else {
        return Err(Error::shape(op, "shape", format_args!("{shape:?}"), "it must be [N, K] or [E, N, K]"));
    };
    format.check_k(op, "shape", k)?;
    Ok(k / format.group() * format.group_bytes())
}

/// The parts of a format whose rows can lie side by side, if there are whole sixteens of them.
fn check_rows16(op: &'static str, format: QFormat, rows: usize, rt: &GpuRuntime) -> Result<Parts> {
    let Some(parts) = Parts::of(format) else {
        let what = format!("{format} in layout {}", QLayout::Rows16.name());
        return Err(Error::unsupported(op, what, rt.info().kind.name()));
    };
    check_sixteens(op, rows)?;
    Ok(parts)
}

/// Refuses a number of rows that is not whole sixteens.
fn check_sixteens(op: &'static str, rows: usize) -> Result<()> {
    if rows.is_multiple_of(ROWS) {
        return Ok(());
    }
    Err(Error::shape(op, "rows", rows, format!("layout {} is of sixteens", QLayout::Rows16.name())))
}

/// Rows of a part lie one after the other; matrices of a stack may lie apart.
fn packed_rows(op: &'static str, name: &'static str, part: &Tensor) -> Result<()> {
    let (shape, strides) = (part.shape(), part.strides());
    let last = shape.len() - 1;
    let packed = (shape[last] <= 1 || strides[last] == 1) && (shape[last - 1] <= 1 || strides[last - 1] == shape[last]);
    if packed || part.is_empty() {
        return Ok(());
    }
    let actual = format!("{shape:?} with strides {strides:?}");
    Err(Error::layout(op, name, actual, "its rows must be packed one after the other"))
}

/// The elements of a tensor of any type as bytes, in row-major order.
fn read_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    fn read<T: Element>(tensor: &Tensor) -> Result<Vec<u8>> {
        Ok(bytemuck::cast_slice(&tensor.read::<T>()?).to_vec())
    }
    match tensor.dtype() {
        DType::F16 => read::<half::f16>(tensor),
        DType::Bf16 => read::<half::bf16>(tensor),
        DType::I8 => read::<i8>(tensor),
        DType::U8 => read::<u8>(tensor),
        DType::U32 => read::<u32>(tensor),
        _ => read::<f32>(tensor),
    }
}

/// A Hot tensor with these bytes.
fn write_bytes(rt: &GpuRuntime, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
    let tensor = rt.uninit(dtype, shape, BufferKind::Hot)?;
    if !tensor.is_empty() {
        tensor.bitcast(DType::U8)?.write(bytes)?;
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests;
