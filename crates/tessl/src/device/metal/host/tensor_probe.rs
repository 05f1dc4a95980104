//! Whether products on matrix units are right on this system.
//!
//! How `matmul2d` behaves has changed between releases of macOS, and its headers come with the system. So each form that
//! plans may ask for is compiled and run once on a small problem with exact results, when the runtime is made; the
//! verdict is kept on disk with the pipelines, by system build.

use super::backend::MetalBackend;
use crate::device::Backend;
use crate::dtype::DType;
use crate::error::Result;
use crate::gemm::{Gemm, GemmBackend, Precision};
use crate::memory::BufferKind;
use crate::options::RuntimeOptions;
use crate::runtime::GpuRuntime;
use crate::tensor::Tensor;
use std::sync::Arc;

const VERDICT: &[u8] = b"right";
/// Rows, columns and depth: tails on every side of the tile.
const SIZES: [usize; 3] = [40, 24, 80];

/// What is wrong with the matrix units, if something is.
pub(super) fn problem(backend: &Arc<MetalBackend>) -> Option<String> {
    if backend.registry().verdict().as_deref() == Some(VERDICT) {
        return None;
    }
    match first_wrong(backend) {
        Ok(None) => {
            backend.registry().keep_verdict(VERDICT);
            None
        }
        Ok(Some(form)) => Some(format!("{form}: wrong results")),
        Err(error) => Some(error.to_string()),
    }
}

/// The first form that gives wrong numbers.
fn first_wrong(backend: &Arc<MetalBackend>) -> Result<Option<String>> {
    let rt = GpuRuntime::with_backend(Arc::clone(backend) as Arc<dyn Backend>, &RuntimeOptions::new())?;
    let [m, n, k] = SIZES;
    // Small whole numbers: every product and sum is exact in every type.
    let value = |i: usize, j: usize, step: usize| (i * step + j * 5) % 9;
    let small = |v: usize| f32::from(u8::try_from(v).unwrap_or(0)) - 4.0;
    let fill = |rows: usize, columns: usize, step: usize| -> Vec<f32> {
        (0..rows * columns).map(|e| small(value(e / columns, e % columns, step))).collect()
    };
    let (x, y) = (fill(m, k, 7), fill(k, n, 2));
    let wanted: Vec<f32> = (0..m * n).map(|e| (0..k).map(|d| x[e / n * k + d] * y[d * n + e % n]).sum()).collect();
    let turned = |data: &[f32], rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|e| data[e % rows * columns + e / rows]).collect()
    };
    let types = [(DType::F32, Precision::Exact), (DType::F32, Precision::Relaxed)];
    let halves = [DType::Bf16, DType::F16].map(|dtype| (dtype, Precision::Exact));
    for (dtype, precision) in types.into_iter().chain(halves) {
        for turn in [false, true] {
            let operand = |data: &[f32], rows: usize, columns: usize| -> Result<Tensor> {
                let (data, shape) = if turn {
                    (turned(data, rows, columns), [columns, rows])
                } else {
                    (data.to_vec(), [rows, columns])
                };
                let tensor = typed(&rt, dtype, &data, &shape)?;
                if turn { tensor.t() } else { Ok(tensor) }
            };
            let (a, b) = (operand(&x, m, k)?, operand(&y, k, n)?);
            let c = rt.uninit(DType::F32, &[m, n], BufferKind::Cold)?;
            Gemm::new(&a, &b, &c).backend(GemmBackend::TensorOps).precision(precision).run()?;
            if c.read::<f32>()? != wanted {
                let layout = if turn { "TT" } else { "NN" };
                return Ok(Some(format!("{dtype} {layout} {precision:?}")));
            }
        }
    }
    Ok(None)
}

fn typed(rt: &GpuRuntime, dtype: DType, data: &[f32], shape: &[usize]) -> Result<Tensor> {
    match dtype {
        DType::Bf16 => rt.from_slice(&data.iter().map(|v| half::bf16::from_f32(*v)).collect::<Vec<_>>(), shape),
        DType::F16 => rt.from_slice(&data.iter().map(|v| half::f16::from_f32(*v)).collect::<Vec<_>>(), shape),
        _ => rt.from_slice(data, shape),
    }
}
