//! Where cases run, and what they return.

use crate::rows::{self, Row};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};
use tessl::nn::RmsNormDesc;
use tessl::plan::Desc;
use tessl::{DType, GemmDesc, GpuRuntime};

/// What a case found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All values right.
    Passed,
    /// What was wrong, in one or more lines.
    Failed(String),
    /// Why nothing was checked.
    Skipped(String),
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(Outcome::Failed, |()| Outcome::Passed)
    }
}

/// Multiply-adds that one case may use on a simulator or a scalar path.
pub const SMALL_BUDGET: u64 = 20_000_000;

/// The runtime that cases run on, and their limits.
pub struct Env {
    /// The runtime.
    pub rt: GpuRuntime,
    /// Multiply-adds that one case may use; larger problems are shrunk with the same tails, or skipped.
    pub budget: u64,
    /// Seed of random data.
    pub seed: u64,
    /// False where commands are taken and nothing is computed (the null device): values are then not compared.
    pub computes: bool,
    coverage: Mutex<BTreeMap<Row, u64>>,
    gemm_rows: OnceLock<BTreeMap<Row, GemmDesc>>,
    norm_rows: OnceLock<BTreeMap<Row, RmsNormDesc>>,
    nn_rows: OnceLock<BTreeMap<Row, Desc>>,
}

impl Env {
    /// An environment with the budget of the runtime's device: small on scalar paths and simulators.
    pub fn new(rt: GpuRuntime) -> Self {
        let device = rt.device();
        let slow = rt.profile().isa == tessl::Isa::Scalar && rt.info().kind != tessl::DeviceKind::Cuda;
        let budget = if slow { SMALL_BUDGET } else { 8 * SMALL_BUDGET };
        Env {
            rt,
            budget,
            seed: 0x7e55_e11a,
            computes: !device.starts_with("null"),
            coverage: Mutex::default(),
            gemm_rows: OnceLock::new(),
            norm_rows: OnceLock::new(),
            nn_rows: OnceLock::new(),
        }
    }

    /// Device and profile in words.
    pub fn name(&self) -> String {
        format!("{} ({})", self.rt.device(), self.rt.profile().name)
    }

    /// The same with another budget in multiply-adds.
    pub fn budget(mut self, mac: u64) -> Self {
        self.budget = mac;
        self
    }

    /// The same with another seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Every fifth problem where the budget is a simulator's, all of them elsewhere. The lists walk axes of 2, 3, 4, 6 and 8
    /// values, with which 5 shares no factor: each value of each axis stays.
    pub(crate) fn thin<T>(&self, problems: Vec<T>) -> Vec<T> {
        let step = if self.budget < SMALL_BUDGET / 10 { 5 } else { 1 };
        problems.into_iter().step_by(step).collect()
    }

    /// The gemm rows of this device with the cheapest problem of each, found once.
    pub fn gemm_rows(&self) -> &BTreeMap<Row, GemmDesc> {
        self.gemm_rows.get_or_init(|| rows::gemm_rows(self.rt.profile()))
    }

    /// The rms_norm rows of this device with the cheapest problem of each, found once.
    pub fn norm_rows(&self) -> &BTreeMap<Row, RmsNormDesc> {
        self.norm_rows.get_or_init(|| rows::norm_rows(self.rt.profile()))
    }

    /// The rows of the other operations on this device with a problem of each, found once.
    pub fn nn_rows(&self) -> &BTreeMap<Row, Desc> {
        self.nn_rows.get_or_init(|| rows::nn_rows(self.rt.profile()))
    }

    /// Counts the plan row that this problem takes.
    ///
    /// # Errors
    /// Text of the planning error.
    pub fn cover(&self, desc: &Desc) -> Result<(), String> {
        let row = Row::of(desc, self.rt.profile()).map_err(|e| format!("planning {desc:?}: {e}"))?;
        *self.rows().entry(row).or_insert(0) += 1;
        Ok(())
    }

    /// Rows hit so far, with counts.
    pub fn coverage(&self) -> BTreeMap<Row, u64> {
        self.rows().clone()
    }

    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<Row, u64>> {
        self.coverage.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Input and output types of gemm.
pub const GEMM_PAIRS: [(DType, DType); 9] = [
    (DType::F32, DType::F32),
    (DType::F32, DType::Bf16),
    (DType::F32, DType::F16),
    (DType::Bf16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F16),
    (DType::F16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::Bf16),
];

/// Products of i8 and u8; the kernels take both, and the cases mix them.
pub(crate) const INT8_PAIRS: [(DType, DType); 4] =
    [(DType::I8, DType::I32), (DType::I8, DType::F32), (DType::I8, DType::F16), (DType::I8, DType::Bf16)];

/// Products of fp8; the kernels take both formats, and the cases mix them.
pub(crate) const FP8_PAIRS: [(DType, DType); 5] = [
    (DType::F8E4M3, DType::F32),
    (DType::F8E4M3, DType::F16),
    (DType::F8E4M3, DType::Bf16),
    (DType::F8E4M3, DType::F8E4M3),
    (DType::F8E4M3, DType::F8E5M2),
];

/// Data and weight types of rms_norm.
pub const NORM_PAIRS: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
];
