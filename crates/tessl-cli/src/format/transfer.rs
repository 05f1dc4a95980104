//! Between files and device memory, a chunk at a time.

use super::{Kind, Output, Source, Spec, npy, safetensors};
use crate::error::{CliError, Result};
use crate::ui::Progress;
use half::{bf16, f16};
use tessl::{BufferKind, DType, Element, GpuRuntime, Tensor};

/// Elements of one chunk.
const CHUNK: usize = 1 << 20;

/// Calls `$f::<T>($args)` with the host type of `$dtype`.
macro_rules! with_type {
    ($dtype:expr, $f:ident ( $($arg:expr),* )) => {
        match $dtype {
            DType::F16 => $f::<f16>($($arg),*),
            DType::Bf16 => $f::<bf16>($($arg),*),
            _ => $f::<f32>($($arg),*),
        }
    };
}

/// A float that converts through f32.
trait Float: Element {
    fn to_f32(self) -> f32;
    fn of_f32(x: f32) -> Self;
}

macro_rules! float {
    ($($t:ty),*) => { $(impl Float for $t {
        fn to_f32(self) -> f32 {
            <$t>::to_f32(self)
        }
        fn of_f32(x: f32) -> Self {
            <$t>::from_f32(x)
        }
    })* };
}
float!(f16, bf16);

impl Float for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn of_f32(x: f32) -> Self {
        x
    }
}

/// Copies the array to the device as `dtype`. A Fortran-ordered file becomes a view with its strides.
///
/// # Errors
/// `File` when the file changes under way, and what the library reports.
pub fn load(rt: &GpuRuntime, source: &mut Source, dtype: DType, progress: &Progress) -> Result<Tensor> {
    let flat = rt.uninit(dtype, &[source.len()], BufferKind::Hot)?;
    progress.bytes(format!("reading {}", source.path.display()), source.bytes());
    with_type!(source.dtype, load_from(source, &flat, progress))?;
    if !source.fortran {
        return Ok(flat.reshape(&source.shape)?);
    }
    let mut stride = 1usize;
    let mut strides = Vec::new();
    for &extent in &source.shape {
        strides.push(stride);
        stride = stride.saturating_mul(extent.max(1));
    }
    Ok(flat.view(&source.shape, &strides, 0)?)
}

fn load_from<S: Float>(source: &mut Source, flat: &Tensor, progress: &Progress) -> Result<()> {
    let mut read = vec![S::zeroed(); CHUNK.min(flat.len())];
    let mut start = 0;
    while start < flat.len() {
        let count = CHUNK.min(flat.len() - start);
        let chunk = &mut read[..count];
        source.read(bytemuck::cast_slice_mut(chunk))?;
        if source.swapped {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(chunk);
            bytes.chunks_exact_mut(size_of::<S>()).for_each(<[u8]>::reverse);
        }
        let part = flat.narrow(0, start, count)?;
        with_type!(part.dtype(), write(&part, chunk))?;
        progress.advance((count * size_of::<S>()) as u64);
        start += count;
    }
    Ok(())
}

/// Writes `values` to `part`, converted where the types differ.
fn write<D: Float>(part: &Tensor, values: &[impl Float]) -> Result<()> {
    match bytemuck::try_cast_slice::<_, D>(values) {
        Ok(same) if part.dtype() == dtype_of(values) => part.write(same)?,
        _ => part.write(&values.iter().map(|v| D::of_f32(v.to_f32())).collect::<Vec<D>>())?,
    }
    Ok(())
}

fn dtype_of<T: Element>(_: &[T]) -> DType {
    T::DTYPE
}

/// Writes a contiguous tensor to `spec`, under the name `c` where the file names its tensors and `spec` does not.
///
/// # Errors
/// `File` when the file cannot be written, and what the library reports.
pub fn store(tensor: &Tensor, spec: &Spec, mut output: Output, progress: &Progress) -> Result<()> {
    let bytes = tensor.len() as u64 * tensor.dtype().size() as u64;
    let head = header(spec, tensor.dtype(), tensor.shape(), bytes)?;
    progress.bytes(format!("writing {}", spec.path.display()), bytes);
    output.write(&head)?;
    let flat = tensor.reshape(&[tensor.len()])?;
    with_type!(flat.dtype(), store_as(&flat, &mut output, progress))?;
    output.finish()
}

/// What comes before the data; also says early whether the format has the element type.
pub(crate) fn header(spec: &Spec, dtype: DType, shape: &[usize], bytes: u64) -> Result<Vec<u8>> {
    let head = match spec.kind {
        Kind::Npy => npy::header(dtype, shape),
        Kind::Safetensors => safetensors::header(spec.name.as_deref().unwrap_or("c"), dtype, shape, bytes),
    };
    head.map_err(|what| CliError::file(&spec.path, what))
}

fn store_as<T: Float>(flat: &Tensor, output: &mut Output, progress: &Progress) -> Result<()> {
    let mut start = 0;
    while start < flat.len() {
        let count = CHUNK.min(flat.len() - start);
        let chunk = flat.narrow(0, start, count)?.read::<T>()?;
        output.write(bytemuck::cast_slice(&chunk))?;
        progress.advance((count * size_of::<T>()) as u64);
        start += count;
    }
    Ok(())
}
