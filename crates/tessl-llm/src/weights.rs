//! Weights from a file into device memory.

mod widen;

use crate::error::{LlmError, Result};
use crate::file::{Element, TensorInfo, WeightFile};
use half::{bf16, f16};
use std::cell::RefCell;
use std::collections::BTreeSet;
use tessl::nn::{Copy, Embedding, QuantizedEmbedding, QuantizedMatmul};
use tessl::{BufferKind, DType, Gemm, GpuRuntime, QFormat, QTensor, Stream, Tensor};

/// The matrix of a linear layer, [out, in], as the file has it.
#[derive(Debug)]
pub(crate) enum Matrix {
    /// f32, f16 or bf16.
    Dense(Tensor),
    /// A block format, read in place.
    Quantized(Box<QTensor>),
}

impl Matrix {
    /// Bytes that a product reads.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Matrix::Dense(w) => (w.len() * w.dtype().size()) as u64,
            Matrix::Quantized(w) => w.parts().map(|part| (part.len() * part.dtype().size()) as u64).sum(),
        }
    }

    /// As an operand that is either.
    pub(crate) fn weights(&self) -> tessl::nn::Weights<'_> {
        match self {
            Matrix::Dense(w) => w.into(),
            Matrix::Quantized(w) => w.as_ref().into(),
        }
    }

    /// Whether one launch reads all of these.
    pub(crate) fn of_one_kind(all: &[Self]) -> bool {
        all.windows(2).all(|two| match (&two[0], &two[1]) {
            (Matrix::Dense(a), Matrix::Dense(b)) => a.dtype() == b.dtype(),
            (Matrix::Quantized(a), Matrix::Quantized(b)) => {
                (a.format(), a.layout(), a.factors_dtype()) == (b.format(), b.layout(), b.factors_dtype())
            }
            _ => false,
        })
    }

    /// Dense matrices of one width as parts of one tensor, which is the second answer; others as they are.
    pub(crate) fn side_by_side<const N: usize>(parts: [Self; N]) -> tessl::Result<([Self; N], Option<Tensor>)> {
        let mut rows = 0;
        for part in &parts {
            let Matrix::Dense(w) = part else { return Ok((parts, None)) };
            rows += w.shape()[0];
        }
        let Some(Matrix::Dense(first)) = parts.first() else { return Ok((parts, None)) };
        let whole = first.runtime().uninit(first.dtype(), &[rows, first.shape()[1]], BufferKind::Hot)?;
        let mut at = 0;
        let mut moved = parts;
        for part in &mut moved {
            if let Matrix::Dense(w) = part {
                let place = whole.narrow(0, at, w.shape()[0])?;
                Copy::new(w, &place).run()?;
                at += w.shape()[0];
                *w = place;
            }
        }
        Ok((moved, Some(whole)))
    }

    /// `y = x W^T`, or `y += x W^T`.
    pub(crate) fn multiply(&self, s: &mut Stream, x: &Tensor, y: &Tensor, add: bool) -> tessl::Result<()> {
        match self {
            Matrix::Dense(w) => Gemm::new(x, &w.t()?, y).beta(if add { 1.0 } else { 0.0 }).run_on(s),
            Matrix::Quantized(w) if add => QuantizedMatmul::new(x, w, y).residual(y).run_on(s),
            Matrix::Quantized(w) => QuantizedMatmul::new(x, w, y).run_on(s),
        }
    }

    /// `out = scale * W[ids]`.
    pub(crate) fn rows(&self, s: &mut Stream, ids: &Tensor, out: &Tensor, scale: Option<f32>) -> tessl::Result<()> {
        match self {
            Matrix::Dense(w) => {
                let lookup = Embedding::new(w, ids, out);
                scale.map_or(lookup.clone(), |scale| lookup.scale(scale)).run_on(s)
            }
            Matrix::Quantized(w) => {
                let lookup = QuantizedEmbedding::new(w, ids, out);
                scale.map_or(lookup.clone(), |scale| lookup.scale(scale)).run_on(s)
            }
        }
    }
}

/// Where the weights of a model come from, under the names of GGUF files.
pub(crate) trait Weights {
    /// Whether there is a tensor of this name.
    fn has(&self, name: &str) -> bool;

    /// A matrix [rows, columns] in its own form; dense ones become `dtype`. `like` are the names of those that are multiplied
    /// together with it: where no bit is lost, all of them get one form.
    fn matrix(&self, name: &str, shape: [usize; 2], dtype: DType, like: &[String]) -> Result<Matrix>;

    /// A vector in f32, as norms want it.
    fn vector(&self, name: &str, n: usize) -> Result<Tensor>;
}

/// Takes the tensors of a model out of its file, and knows which were taken.
pub(crate) struct Loader<'f> {
    rt: &'f GpuRuntime,
    file: &'f WeightFile,
    taken: RefCell<BTreeSet<String>>,
    /// Told how many bytes have been read, again and again.
    progress: &'f dyn Fn(u64),
}

impl<'f> Loader<'f> {
    pub(crate) fn new(rt: &'f GpuRuntime, file: &'f WeightFile, progress: &'f dyn Fn(u64)) -> Self {
        Loader { rt, file, taken: RefCell::default(), progress }
    }

    /// An error that names a tensor nobody asked for: a part of the model that would be left out in silence.
    pub(crate) fn finish(&self) -> Result<()> {
        let taken = self.taken.borrow();
        match self.file.tensors().iter().find(|t| !taken.contains(&t.name)) {
            None => Ok(()),
            Some(t) => {
                let what = format!("{}: tensor `{}`", self.file.path().display(), t.name);
                Err(LlmError::unsupported(what, "a model with it would be computed wrongly"))
            }
        }
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<&'f TensorInfo> {
        let info = self.file.tensor(name).ok_or_else(|| {
            LlmError::file(self.file.path(), format!("has no tensor `{name}`; it is incomplete or of another kind"))
        })?;
        if info.shape.iter().copied().ne(shape.iter().map(|&d| d as u64)) {
            let what = format!("tensor `{name}` is {:?}, the metadata say {shape:?}", info.shape);
            return Err(LlmError::file(self.file.path(), what));
        }
        self.taken.borrow_mut().insert(name.to_owned());
        Ok(info)
    }

    fn bytes(&self, info: &TensorInfo) -> Result<Vec<u8>> {
        let length = usize::try_from(info.bytes)
            .map_err(|_| LlmError::file(self.file.path(), format!("tensor `{}` is too large", info.name)))?;
        let mut bytes = vec![0; length];
        self.file.read(info, 0, &mut bytes)?;
        (self.progress)(info.bytes);
        Ok(bytes)
    }

    fn dense(&self, info: &TensorInfo, dtype: DType) -> Result<Tensor> {
        let bytes = self.bytes(info)?;
        let shape: Vec<usize> = info.shape.iter().filter_map(|&d| usize::try_from(d).ok()).collect();
        let same = match dtype {
            DType::F16 => Element::F16,
            DType::Bf16 => Element::Bf16,
            _ => Element::F32,
        };
        if info.element == same && cfg!(target_endian = "little") {
            let tensor = self.rt.uninit(dtype, &shape, BufferKind::Hot)?;
            tensor.bitcast(DType::U8)?.write(&bytes)?;
            return Ok(tensor);
        }
        let halves = || bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b));
        let values: Vec<f32> = match info.element {
            Element::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Element::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Element::Bf16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            other => {
                let what =
                    format!("{}: tensor `{}` in the form {}", self.file.path().display(), info.name, other.name());
                return Err(LlmError::unsupported(what, "F32, F16 and BF16 are for tensors of this kind"));
            }
        };
        let tensor = self.rt.uninit(dtype, &shape, BufferKind::Hot)?;
        match dtype {
            DType::F16 => tensor.write(&values.into_iter().map(f16::from_f32).collect::<Vec<_>>())?,
            DType::Bf16 => tensor.write(&values.into_iter().map(bf16::from_f32).collect::<Vec<_>>())?,
            _ => tensor.write(&values)?,
        }
        Ok(tensor)
    }
}

impl Weights for Loader<'_> {
    fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    fn matrix(&self, name: &str, [rows, columns]: [usize; 2], dtype: DType, like: &[String]) -> Result<Matrix> {
        let info = self.find(name, &[rows, columns])?;
        let format = match info.element {
            Element::F32 | Element::F16 | Element::Bf16 => return Ok(Matrix::Dense(self.dense(info, dtype)?)),
            Element::Q4_0 => QFormat::Q4_0,
            Element::Q4_1 => QFormat::Q4_1,
            Element::Q5_0 => QFormat::Q5_0,
            Element::Q5_1 => QFormat::Q5_1,
            Element::Q8_0 => QFormat::Q8_0,
            Element::Q4K => QFormat::Q4K,
            Element::Q5K => QFormat::Q5K,
            Element::Q6K => QFormat::Q6K,
            Element::Other { name: form, .. } => {
                let what = format!("{}: tensor `{name}` in the form {form}", self.file.path().display());
                return Err(LlmError::unsupported(what, "F32, F16, BF16, Q4_0 to Q8_0 and Q4_K to Q6_K are"));
            }
        };
        let others = like.iter().filter_map(|name| self.file.tensor(name)).map(|t| t.element);
        let shape = [rows, columns];
        let matrix = if widen::wanted(info.element, others) {
            let layout = QTensor::best_layout(self.rt, QFormat::Q8_0, rows);
            let bytes = widen::to_q8_0(info.element, &self.bytes(info)?);
            QTensor::from_bytes_as(self.rt, QFormat::Q8_0, layout, &shape, &bytes)?
        } else {
            let layout = QTensor::best_layout(self.rt, format, rows);
            let read = |at, into: &mut [u8]| {
                self.file.read(info, at as u64, into)?;
                (self.progress)(into.len() as u64);
                Ok::<(), LlmError>(())
            };
            QTensor::from_reader(self.rt, format, layout, &shape, read)?
        };
        Ok(Matrix::Quantized(Box::new(matrix)))
    }

    fn vector(&self, name: &str, n: usize) -> Result<Tensor> {
        let info = self.find(name, &[n])?;
        self.dense(info, DType::F32)
    }
}
