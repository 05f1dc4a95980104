//! Cases of `gemm`.

mod extra;
mod fused;
mod problem;
mod run;
mod special;
mod sweep;

pub use extra::{Extra, Gate, Groups, Residual};
pub use problem::{Data, Place, Problem};

use crate::env::{Env, GEMM_PAIRS, Outcome};
use crate::suite::Case;
use tessl::{DType, GemmBackend};

pub(crate) const BACKENDS: [GemmBackend; 2] = [GemmBackend::TensorOps, GemmBackend::Simdgroup];

pub(crate) fn backend_name(backend: GemmBackend) -> &'static str {
    match backend {
        GemmBackend::TensorOps => "tensorops",
        GemmBackend::Simdgroup => "simdgroup",
    }
}

/// Types and backend that a family of cases is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) pair: (DType, DType),
    pub(crate) backend: GemmBackend,
}

impl Variant {
    pub(crate) fn problem(&self, m: usize, n: usize, k: usize) -> Problem {
        Problem::new(m, n, k, self.pair, self.backend)
    }
}

/// One case per types and backend.
fn each(name: &str, tags: &'static [&'static str], body: fn(&Env, Variant) -> Outcome) -> Vec<Case> {
    let mut cases = Vec::new();
    for pair in GEMM_PAIRS {
        for backend in BACKENDS {
            let name = format!("gemm/{name}/{}_{}/{}", pair.0, pair.1, backend_name(backend));
            cases.push(Case::new(name, "gemm", move |env| body(env, Variant { pair, backend })).tagged(tags));
        }
    }
    cases
}

/// Runs problems one after the other, each cut to its share of the budget; stops at the first that fails.
pub(crate) fn check_all(env: &Env, problems: Vec<Problem>, tile: [usize; 3]) -> Outcome {
    let problems = env.thin(problems);
    let share = env.budget / problems.len().max(1) as u64;
    for problem in problems {
        if let Err(message) = problem.fit(share.max(20_000), tile).check(env) {
            return Outcome::Failed(message);
        }
    }
    Outcome::Passed
}

/// Every case of this operation.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(each("small", &["quick"], sweep::small));
    cases.extend(each("tiles", &[], sweep::tiles));
    cases.extend(each("thresholds", &[], sweep::thresholds));
    cases.extend(each("layouts", &["quick"], sweep::layouts));
    cases.extend(each("batch", &[], sweep::batch));
    cases.extend(each("memory", &["quick"], sweep::memory));
    cases.extend(each("epilogue", &[], sweep::epilogue));
    cases.extend(each("random", &["quick"], sweep::random));
    cases.extend(each("rows", &[], sweep::rows));
    cases.extend(each("special", &["quick"], special::special));
    cases.extend(each("activation", &[], special::activations));
    cases.extend(special::cases());
    cases.extend(fused::cases());
    cases
}
