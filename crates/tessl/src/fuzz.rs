//! Fuzz tests under the names that the documentation gives; the problems come from `tessl-conformance`.
//!
//! ```text
//! cargo test --release --lib -- --nocapture gemm_fuzz_quick
//! STRESS_SEED=0xdeadbeef cargo test --release --lib -- --ignored --nocapture gemm_fuzz_deep
//! ```

use tessl_conformance::fuzz::{Fuzzed, gemm, rms_norm, seed_from_env};

// The crate under test here is compiled for its own tests; the conformance crate links the ordinary build of it, so the
// runtime is named through that crate.
type Env = tessl_conformance::Env;

fn run(op: &str, cases: usize, fuzz: fn(&Env, usize, u64) -> Result<Fuzzed, String>) {
    let seed = seed_from_env().unwrap_or_else(|e| panic!("{e}"));
    for env in tessl_conformance::fuzz::devices() {
        let device = env.name();
        let fuzzed = fuzz(&env, cases, seed).unwrap_or_else(|e| panic!("{device}: {e}"));
        print!("{}", fuzzed.summary(op, &device));
        assert_eq!(fuzzed.cases, cases);
        // Each kernel within reach gets its share: one case in a hundred, or one at all where kernels are many.
        let least = fuzzed.kernels().values().copied().min().unwrap_or(0);
        assert!(least >= 1, "{device}: a kernel was never taken");
    }
}

#[test]
fn gemm_fuzz_quick() {
    run("gemm", 160, gemm);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn gemm_fuzz_deep() {
    run("gemm", 2500, gemm);
}

#[test]
fn rms_norm_fuzz_quick() {
    run("rms_norm", 160, rms_norm);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn rms_norm_fuzz_deep() {
    run("rms_norm", 2500, rms_norm);
}
