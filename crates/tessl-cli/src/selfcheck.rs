//! A short self-check at the sizes of real models, with exact answers.
//!
//! Small shapes pass on broken kernels: an error that starts at the second tile, at 64 KiB or at an odd tail needs a
//! shape that gets there. Sums of small integers are exact, so every element is compared with `==`.

use crate::error::Result;
use half::{bf16, f16};
use serde::Serialize;
use std::time::Instant;
use tessl::nn::RmsNorm;
use tessl::{BufferKind, DType, Element, Gemm, GpuRuntime, Tensor};
use tessl_oracle::{bound, pattern};

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was computed.
    pub name: String,
    /// Whether every element was right.
    pub passed: bool,
    /// What was wrong.
    pub detail: String,
    /// Time of the whole case, data and comparison included.
    pub seconds: f64,
}

/// One case.
#[derive(Clone, Copy, Debug)]
enum Case {
    /// m, n, k, input, output, B transposed.
    Gemm(usize, usize, usize, DType, DType, bool),
    /// rows, n, dtype.
    RmsNorm(usize, usize, DType),
}

/// Cheapest first, so that a slow machine gets something from each kind.
const CASES: [Case; 9] = [
    Case::RmsNorm(512, 4096, DType::F32),
    Case::RmsNorm(511, 4096, DType::Bf16),
    Case::Gemm(1, 4096, 4096, DType::Bf16, DType::F32, true),
    Case::Gemm(129, 257, 513, DType::F32, DType::F32, false),
    Case::Gemm(512, 512, 512, DType::F16, DType::F32, true),
    Case::Gemm(2048, 768, 768, DType::Bf16, DType::F32, true),
    Case::Gemm(2048, 768, 768, DType::F32, DType::F32, false),
    Case::Gemm(2047, 769, 767, DType::Bf16, DType::F32, false),
    Case::Gemm(2047, 769, 767, DType::F32, DType::F32, true),
];

/// Runs the cases on `rt`, telling each by `started` before it runs, until `seconds` have passed.
///
/// A refused or failed call is an outcome, not an error: the other cases still run.
pub fn run(rt: &GpuRuntime, seconds: f64, mut started: impl FnMut(&str)) -> Vec<Outcome> {
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    for case in CASES {
        // The last cases cost a few times those before; stop while there is still time for one more.
        if begin.elapsed().as_secs_f64() > seconds {
            break;
        }
        let name = case.name();
        started(&name);
        let at = Instant::now();
        let result = case.run(rt);
        let (passed, detail) = match result {
            Ok(None) => (true, String::new()),
            Ok(Some(wrong)) => (false, wrong),
            Err(e) => (false, e.to_string()),
        };
        if !passed {
            // Whatever failed must not fail the next case too.
            let _ = rt.recover();
        }
        outcomes.push(Outcome { name, passed, detail, seconds: at.elapsed().as_secs_f64() });
    }
    outcomes
}

impl Case {
    fn name(self) -> String {
        match self {
            Case::Gemm(m, n, k, input, output, turned) => {
                let layout = if turned { "NT" } else { "NN" };
                format!("gemm {input} -> {output} {m}x{n}x{k} {layout}")
            }
            Case::RmsNorm(rows, n, dtype) => format!("rms_norm {dtype} {rows}x{n}"),
        }
    }

    /// What is wrong, if anything.
    fn run(self, rt: &GpuRuntime) -> Result<Option<String>> {
        match self {
            Case::Gemm(m, n, k, input, _, turned) => gemm(rt, [m, n, k], input, turned),
            Case::RmsNorm(rows, n, dtype) => rms_norm(rt, rows, n, dtype),
        }
    }
}

fn gemm(rt: &GpuRuntime, [m, n, k]: [usize; 3], input: DType, turned: bool) -> Result<Option<String>> {
    let a = filled(rt, input, [m, k], pattern::pa)?;
    let b = if turned {
        filled(rt, input, [n, k], |j, p| pattern::pb(p, j))?.t()?
    } else {
        filled(rt, input, [k, n], pattern::pb)?
    };
    // NaN everywhere, so that an element nobody writes is seen.
    let c = filled(rt, DType::F32, [m, n], |_, _| f64::NAN)?;
    Gemm::new(&a, &b, &c).run()?;
    let got = c.read::<f32>()?;
    let want = pattern::PatternProduct::new(k);
    let wrong = (0..m * n).find(|&at| f64::from(got[at]) != want.at(at / n, at % n));
    Ok(wrong.map(|at| {
        let (i, j) = (at / n, at % n);
        format!("c[{i}, {j}] is {} but must be {}", got[at], want.at(i, j))
    }))
}

fn rms_norm(rt: &GpuRuntime, rows: usize, n: usize, dtype: DType) -> Result<Option<String>> {
    const EPS: f32 = 1e-6;
    let value = |i: usize, j: usize| pattern::pa(i, j) + pattern::pb(i, j) / 8.0;
    let weight = |j: usize| 1.0 + pattern::pb(0, j) / 16.0;
    let x = filled(rt, dtype, [rows, n], value)?;
    let w = filled(rt, dtype, [1, n], |_, j| weight(j))?.reshape(&[n])?;
    let y = filled(rt, dtype, [rows, n], |_, _| f64::NAN)?;
    RmsNorm::new(&x, &w, &y).eps(EPS).run()?;
    let got = read(&y)?;
    let format = if dtype == DType::Bf16 { tessl_oracle::Format::BF16 } else { tessl_oracle::Format::F32 };
    for i in 0..rows {
        let row: Vec<f64> = (0..n).map(|j| value(i, j)).collect();
        let want = tessl_oracle::rms_norm(&row, weight, EPS.into(), 0.0);
        for (j, (&want, &got)) in want.iter().zip(&got[i * n..]).enumerate() {
            let allowed = bound::stored(bound::rms_norm(n, want, weight(j), 0.0), want, format);
            if !((got - want).abs() <= allowed) {
                return Ok(Some(format!("y[{i}, {j}] is {got} but must be {want} within {allowed:.1e}")));
            }
        }
    }
    Ok(None)
}

/// A tensor of values that its type holds exactly.
fn filled(rt: &GpuRuntime, dtype: DType, shape: [usize; 2], f: impl Fn(usize, usize) -> f64) -> Result<Tensor> {
    let [rows, columns] = shape;
    let tensor = rt.uninit(dtype, &shape, BufferKind::Cold)?;
    let value = |at: usize| f(at / columns, at % columns);
    match dtype {
        DType::Bf16 => write(&tensor, rows * columns, |at| bf16::from_f64(value(at)))?,
        DType::F16 => write(&tensor, rows * columns, |at| f16::from_f64(value(at)))?,
        #[allow(clippy::cast_possible_truncation)]
        _ => write(&tensor, rows * columns, |at| value(at) as f32)?,
    }
    Ok(tensor)
}

fn write<T: Element>(tensor: &Tensor, len: usize, f: impl Fn(usize) -> T) -> Result<()> {
    Ok(tensor.write(&(0..len).map(f).collect::<Vec<T>>())?)
}

fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::Bf16 => tensor.read::<bf16>()?.into_iter().map(f64::from).collect(),
        _ => tensor.read::<f32>()?.into_iter().map(f64::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_passes_and_time_is_kept() {
        let rt = GpuRuntime::with_device(&tessl::Device::cpu()).unwrap();
        let outcomes = run(&rt, 30.0, |_| {});
        assert!(outcomes.iter().all(|o| o.passed), "{outcomes:#?}");
        assert!(outcomes.len() >= 4);
        assert!(run(&rt, -1.0, |_| {}).is_empty());
    }
}
