//! Random problems with a seed, coverage of every kernel, and small counterexamples.

mod attention;
mod cache;
mod elementwise;
mod embed;
mod experts;
mod gemm;
mod mlp;
mod movement;
mod norm;
mod qkv;
mod quant;
mod reduce;
mod rope;
mod sample;

use crate::env::Env;
use crate::rows::Row;
use std::collections::BTreeMap;
use std::fmt::Debug;
use tessl::{Device, GpuRuntime, Isa, RuntimeOptions};
use tessl_oracle::Rng;

/// The seed used when `STRESS_SEED` is not set.
pub const DEFAULT_SEED: u64 = 0x7e55_e11a_f0cc_ed01;

/// The seed from `STRESS_SEED`: decimal, or hexadecimal after `0x`.
///
/// # Errors
/// Text for a value that is neither.
pub fn seed_from_env() -> Result<u64, String> {
    match std::env::var("STRESS_SEED") {
        Ok(text) => parse_seed(&text),
        Err(std::env::VarError::NotPresent) => Ok(DEFAULT_SEED),
        Err(error) => Err(format!("STRESS_SEED: {error}")),
    }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let digits = text.trim();
    let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    parsed.map_err(|_| format!("STRESS_SEED: `{text}` is neither a decimal number nor a hexadecimal one after 0x"))
}

/// The devices that fuzz tests run on: `TESSL_DEVICE` alone where it is set, else the CPU as it is and its portable path.
///
/// # Panics
/// When `TESSL_DEVICE` names a device that cannot be used.
pub fn devices() -> Vec<Env> {
    let open = |o: RuntimeOptions| GpuRuntime::with_options(&o).unwrap_or_else(|e| panic!("{e}"));
    if std::env::var_os("TESSL_DEVICE").is_some() {
        let options = RuntimeOptions::new().from_env().unwrap_or_else(|e| panic!("{e}"));
        return vec![Env::new(open(options))];
    }
    let cpu = || RuntimeOptions::new().device(Device::cpu());
    vec![Env::new(open(cpu())), Env::new(open(cpu().isa(Isa::Scalar)))]
}

/// What can be fuzzed: made from random numbers, checked, made smaller.
trait Problem: Clone + Debug + PartialEq {
    /// The `turn`-th problem; some follow the rows of the planner so that each is taken.
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self;
    /// Runs it.
    fn check(&self, env: &Env) -> Result<(), String>;
    /// Simpler problems, the simplest first.
    fn simpler(&self) -> Vec<Self>;
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Fuzzed {
    /// Problems checked.
    pub cases: usize,
    /// Seed they came from.
    pub seed: u64,
    /// Plan rows taken, with counts.
    pub coverage: BTreeMap<Row, u64>,
}

impl Fuzzed {
    /// Problems per kernel.
    pub fn kernels(&self) -> BTreeMap<&str, u64> {
        let mut kernels = BTreeMap::new();
        for (row, count) in &self.coverage {
            *kernels.entry(row.kernel.as_str()).or_insert(0) += count;
        }
        kernels
    }

    /// Count, seed and the coverage of each kernel.
    pub fn summary(&self, op: &str, device: &str) -> String {
        let mut text = format!("{op} fuzz on {device}: {} cases, seed {:#x}\n", self.cases, self.seed);
        for (kernel, count) in self.kernels() {
            text += &format!("  {count:>6}  {kernel}\n");
        }
        text
    }
}

/// Fuzzes `gemm`. Each kernel that the device can choose within the budget is taken at least once when `cases` allows.
///
/// # Errors
/// The seed, the number and the simplest form of the first problem that fails; or the kernels that were not taken.
pub fn gemm(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<gemm::GemmFuzz>(env, cases, seed)?;
    covered(&fuzzed, gemm::reachable_kernels(env))?;
    Ok(fuzzed)
}

/// Fuzzes `rms_norm`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn rms_norm(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<norm::NormFuzz>(env, cases, seed)?;
    covered(&fuzzed, norm::reachable_kernels(env))?;
    Ok(fuzzed)
}

/// Fuzzes `rms_norm` with a residual, `layer_norm` and `qk_norm`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn norm(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::norm::fused::FusedNorm>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["rms_norm", "layer_norm", "qk_norm"]))?;
    Ok(fuzzed)
}

/// Fuzzes `activate` and `glu`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn mlp(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::mlp::MlpProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["activate", "glu"]))?;
    Ok(fuzzed)
}

/// Fuzzes `add`, `mul`, `scale` and `cast`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn elementwise(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::elementwise::ElementwiseProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["add", "mul", "scale", "cast"]))?;
    Ok(fuzzed)
}

/// Fuzzes softmax, log-softmax and the other reductions, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn reduce(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::reduce::ReduceProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &tessl::nn::ReduceOp::ALL.map(tessl::nn::ReduceOp::name)))?;
    Ok(fuzzed)
}

/// Fuzzes `rope`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn rope(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::rope::RopeProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["rope"]))?;
    Ok(fuzzed)
}

/// Fuzzes `embedding`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn embed(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::embed::EmbedProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["embedding"]))?;
    Ok(fuzzed)
}

/// Fuzzes copies, gathers and scatters, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn movement(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<movement::Movement>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["copy", "gather_rows", "scatter_rows", "scatter_add"]))?;
    Ok(fuzzed)
}

/// Fuzzes sorts by expert and sums of their rows, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn experts(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::experts::ExpertsProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["sort_by_expert", "combine_experts"]))?;
    Ok(fuzzed)
}

/// Fuzzes `top_k` and `sample`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn sample(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<sample::Choice>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["top_k", "sample"]))?;
    Ok(fuzzed)
}

/// Fuzzes products with quantised weights and lookups in quantised tables, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn quant(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<quant::QuantFuzz>(env, cases, seed)?;
    // There are more codes than a quick run has problems; each family of kernels (few rows, many, lookups, ..) is taken.
    let family = |kernel: &str| kernel.splitn(3, '_').take(2).collect::<Vec<_>>().join("_");
    let taken: Vec<String> = fuzzed.kernels().into_keys().map(family).collect();
    let ops: Vec<&str> = tessl::nn::QuantOp::ALL.map(tessl::nn::QuantOp::name).into_iter().collect();
    let reachable = kernels_of(env, &[&ops[..], &["quantized_embedding"]].concat());
    let missed: Vec<String> = reachable.into_iter().filter(|kernel| !taken.contains(&family(kernel))).collect();
    if missed.is_empty() { Ok(fuzzed) } else { Err(format!("{cases} cases took no problem to {missed:?}")) }
}

/// Fuzzes `norm_qkv_rope`, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn qkv(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::qkv::QkvProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["norm_qkv_rope"]))?;
    Ok(fuzzed)
}

/// Fuzzes attention, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn attention(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::attention::AttentionProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &["attention"]))?;
    Ok(fuzzed)
}

/// Fuzzes stores into caches and the densify of rings, as [`gemm`].
///
/// # Errors
/// As [`gemm`].
pub fn cache(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let fuzzed = run::<crate::cache::CacheProblem>(env, cases, seed)?;
    covered(&fuzzed, kernels_of(env, &tessl::nn::CacheOp::ALL.map(tessl::nn::CacheOp::name)))?;
    Ok(fuzzed)
}

/// Kernels of these operations that the device can choose.
fn kernels_of(env: &Env, ops: &[&str]) -> Vec<String> {
    env.nn_rows().keys().filter(|row| ops.contains(&row.op)).map(|row| row.kernel.clone()).collect()
}

fn covered(fuzzed: &Fuzzed, reachable: Vec<String>) -> Result<(), String> {
    let kernels = fuzzed.kernels();
    let missed: Vec<String> = reachable.into_iter().filter(|k| !kernels.contains_key(k.as_str())).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("{} cases took no problem to {missed:?}", fuzzed.cases)) }
}

fn run<P: Problem>(env: &Env, cases: usize, seed: u64) -> Result<Fuzzed, String> {
    let before = env.coverage();
    let mut seeds = Rng::new(seed);
    for turn in 0..cases {
        let mut rng = Rng::new(seeds.bits());
        let problem = P::make(env, &mut rng, turn);
        if let Err(message) = problem.check(env) {
            let (small, message) = shrink(env, problem, message);
            return Err(format!("STRESS_SEED={seed:#x}: case {turn} fails; simplest form:\n{small:#?}\n{message}"));
        }
    }
    let mut coverage = env.coverage();
    for (row, count) in before {
        coverage.entry(row).and_modify(|c| *c -= count);
    }
    coverage.retain(|_, count| *count > 0);
    Ok(Fuzzed { cases, seed, coverage })
}

/// Greedy: takes the first simpler problem that still fails, until none does.
fn shrink<P: Problem>(env: &Env, mut problem: P, mut message: String) -> (P, String) {
    for _ in 0..200 {
        let failing = problem.simpler().into_iter().find_map(|p| p.check(env).err().map(|e| (p, e)));
        match failing {
            Some((simpler, error)) => (problem, message) = (simpler, error),
            None => break,
        }
    }
    (problem, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds() {
        assert_eq!(parse_seed("17"), Ok(17));
        assert_eq!(parse_seed("0xdeadbeef"), Ok(0xdead_beef));
        for bad in ["", "0x", "deadbeef", "-1", "1.5", "0x1ffffffffffffffff"] {
            assert!(parse_seed(bad).unwrap_err().contains("STRESS_SEED"), "{bad}");
        }
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Fake(usize, usize);

    impl Problem for Fake {
        fn make(_: &Env, rng: &mut Rng, _: usize) -> Self {
            Fake(rng.below(1000), rng.below(1000))
        }
        fn check(&self, _: &Env) -> Result<(), String> {
            if self.0 >= 37 { Err("too large".into()) } else { Ok(()) }
        }
        fn simpler(&self) -> Vec<Self> {
            vec![Fake(self.0 / 2, self.1), Fake(self.0.saturating_sub(1), self.1), Fake(self.0, 0)]
                .into_iter()
                .filter(|p| p != self)
                .collect()
        }
    }

    #[test]
    fn counterexamples_are_minimal_and_named_by_seed() {
        let env = Env::new(tessl::GpuRuntime::with_device(&tessl::Device::null("m2")).unwrap());
        let message = run::<Fake>(&env, 100, 3).unwrap_err();
        assert!(message.contains("STRESS_SEED=0x3") && message.contains("37,\n    0,"), "{message}");
    }
}
