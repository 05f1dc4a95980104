//! What a run found, as data.

use crate::env::Env;
use crate::rows::Row;
use serde::Serialize;
use std::collections::BTreeMap;

/// One case of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Case.
    pub name: String,
    /// What was wrong or why it was skipped; empty when it passed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time it took.
    pub millis: u64,
}

/// A plan row and how often it was taken.
#[derive(Clone, Debug, Serialize)]
pub struct Covered {
    /// The row.
    #[serde(flatten)]
    pub row: Row,
    /// Products or normalisations that took it.
    pub count: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this form.
    pub schema: u32,
    /// Device string.
    pub device: String,
    /// Product name.
    pub device_name: String,
    /// Driver or instruction sets.
    pub driver: String,
    /// Profile that plans were made from.
    pub profile: String,
    /// Whether values were compared (not on the null device).
    pub computes: bool,
    /// Seed of random data.
    pub seed: u64,
    /// Cases that passed.
    pub passed: Vec<Entry>,
    /// Cases that failed.
    pub failed: Vec<Entry>,
    /// Cases that did not run.
    pub skipped: Vec<Entry>,
    /// Plan rows taken.
    pub coverage: Vec<Covered>,
    /// Plan rows that this profile can choose and no case took.
    pub uncovered: Vec<Row>,
}

impl Report {
    pub(crate) fn new(env: &Env) -> Self {
        let info = env.rt.info();
        Report {
            schema: 1,
            device: env.rt.device(),
            device_name: info.name.clone(),
            driver: info.driver.clone(),
            profile: env.rt.profile().name.to_owned(),
            computes: env.computes,
            seed: env.seed,
            passed: Vec::new(),
            failed: Vec::new(),
            skipped: Vec::new(),
            coverage: Vec::new(),
            uncovered: Vec::new(),
        }
    }

    /// Sums the coverage of environments on the same device.
    pub(crate) fn finish(&mut self, envs: &[Env]) {
        let mut taken = BTreeMap::new();
        for (row, count) in envs.iter().flat_map(Env::coverage) {
            *taken.entry(row).or_insert(0) += count;
        }
        let env = &envs[0];
        let reachable = env.gemm_rows().keys().chain(env.norm_rows().keys()).chain(env.nn_rows().keys());
        self.uncovered = reachable.filter(|row| !taken.contains_key(row)).cloned().collect();
        self.coverage = taken.into_iter().map(|(row, count)| Covered { row, count }).collect();
    }

    /// Whether nothing failed.
    pub fn is_ok(&self) -> bool {
        self.failed.is_empty()
    }

    /// One line: counts and coverage.
    pub fn summary(&self) -> String {
        format!(
            "{}: {} passed, {} failed, {} skipped; {} plan rows taken, {} not",
            self.device,
            self.passed.len(),
            self.failed.len(),
            self.skipped.len(),
            self.coverage.len(),
            self.uncovered.len()
        )
    }

    /// The report as JSON.
    ///
    /// # Panics
    /// Never: every field can be written.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("INVARIANT: plain data")
    }
}
