//! A short self-check at the sizes of real models, with exact answers.
//!
//! Small shapes pass on broken kernels: an error that starts at the second tile, at 64 KiB or at an odd tail needs a
//! shape that gets there. Sums of small integers are exact, so every element is compared with `==`.

use serde::Serialize;
use std::time::Instant;
use tessl::{DType, GemmBackend, GpuRuntime};
use tessl_conformance::Env;
use tessl_conformance::gemm::Problem;
use tessl_conformance::norm::NormProblem;

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
    let env = Env::new(rt.clone());
    let mut outcomes = Vec::new();
    for case in CASES {
        // The last cases cost a few times those before; stop while there is still time for one more.
        if begin.elapsed().as_secs_f64() > seconds {
            break;
        }
        let name = case.name();
        started(&name);
        let at = Instant::now();
        let result = case.check(&env);
        let passed = result.is_ok();
        // The first line says what is wrong, the others how to build the case.
        let detail = result.err().and_then(|e| e.lines().next().map(str::to_owned)).unwrap_or_default();
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

    /// Runs the case twice, with slack and canaries around its outputs, and compares every element.
    fn check(self, env: &Env) -> Result<(), String> {
        match self {
            Case::Gemm(m, n, k, input, output, turned) => {
                let mut problem = Problem::new(m, n, k, (input, output), GemmBackend::TensorOps);
                problem.b.transposed = turned;
                problem.check(env)
            }
            Case::RmsNorm(rows, n, dtype) => NormProblem::new(rows, n, (dtype, dtype)).check(env),
        }
    }
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
