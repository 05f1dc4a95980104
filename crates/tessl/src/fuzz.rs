//! Fuzz tests under the names that the documentation gives; the problems come from `tessl-conformance`.
//!
//! ```text
//! cargo test --release --lib -- --nocapture gemm_fuzz_quick
//! STRESS_SEED=0xdeadbeef cargo test --release --lib -- --ignored --nocapture gemm_fuzz_deep
//! ```

use tessl_conformance::fuzz::{
    Fuzzed, attention, cache, elementwise, embed, experts, gemm, mlp, movement, norm, qkv, quant, reduce, rms_norm,
    rope, sample, seed_from_env,
};

// The crate under test here is compiled for its own tests; the conformance crate links the ordinary build of it, so the
// runtime is named through that crate.
type Env = tessl_conformance::Env;

fn run(op: &str, cases: usize, fuzz: fn(&Env, usize, u64) -> Result<Fuzzed, String>) {
    let seed = seed_from_env().unwrap_or_else(|e| panic!("{e}"));
    for env in tessl_conformance::fuzz::devices() {
        let device = env.name();
        // Fails as well when a kernel within reach was never taken.
        let fuzzed = fuzz(&env, cases, seed).unwrap_or_else(|e| panic!("{device}: {e}"));
        print!("{}", fuzzed.summary(op, &device));
        assert_eq!(fuzzed.cases, cases);
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

#[test]
fn norm_fuzz_quick() {
    run("norm", 160, norm);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn norm_fuzz_deep() {
    run("norm", 2500, norm);
}

#[test]
fn mlp_fuzz_quick() {
    run("mlp", 160, mlp);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn mlp_fuzz_deep() {
    run("mlp", 2500, mlp);
}

#[test]
fn elementwise_fuzz_quick() {
    run("elementwise", 160, elementwise);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn elementwise_fuzz_deep() {
    run("elementwise", 2500, elementwise);
}

#[test]
fn reduce_fuzz_quick() {
    run("reduce", 160, reduce);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn reduce_fuzz_deep() {
    run("reduce", 2500, reduce);
}

#[test]
fn rope_fuzz_quick() {
    run("rope", 160, rope);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn rope_fuzz_deep() {
    run("rope", 2500, rope);
}

#[test]
fn embed_fuzz_quick() {
    run("embed", 160, embed);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn embed_fuzz_deep() {
    run("embed", 2500, embed);
}

#[test]
fn movement_fuzz_quick() {
    run("movement", 240, movement);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn movement_fuzz_deep() {
    run("movement", 2500, movement);
}

#[test]
fn experts_fuzz_quick() {
    run("experts", 160, experts);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn experts_fuzz_deep() {
    run("experts", 2500, experts);
}

#[test]
fn sample_fuzz_quick() {
    run("sample", 160, sample);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn sample_fuzz_deep() {
    run("sample", 2500, sample);
}

#[test]
fn attention_fuzz_quick() {
    run("attention", 160, attention);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn attention_fuzz_deep() {
    run("attention", 2500, attention);
}

#[test]
fn cache_fuzz_quick() {
    run("cache", 160, cache);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn cache_fuzz_deep() {
    run("cache", 2500, cache);
}

#[test]
fn quant_fuzz_quick() {
    run("quant", 160, quant);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn quant_fuzz_deep() {
    run("quant", 2500, quant);
}

#[test]
fn qkv_fuzz_quick() {
    run("qkv", 160, qkv);
}

#[test]
#[ignore = "takes minutes; run it before a release"]
fn qkv_fuzz_deep() {
    run("qkv", 2500, qkv);
}
