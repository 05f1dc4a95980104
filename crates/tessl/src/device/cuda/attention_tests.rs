//! The wgmma attention on the device: every tile that could run, not only the one that the table would choose.
//! Conformance has the options; here are sizes of models, many runs, graphs and far memory.

use super::device_tests::{Float, runtime};
use crate::nn::Attention;
use crate::plan::{Desc, Plan, candidates};
use crate::{BufferKind, GpuRuntime, Tensor};
use half::{bf16, f16};
use tessl_conformance::skip::skip;
use tessl_oracle::bound::{self, Weights};
use tessl_oracle::{Format, Key, Rng, Scores};

/// The device, where it has this kernel.
fn hopper(test: &str) -> Option<GpuRuntime> {
    let rt = runtime(test)?;
    if !rt.profile().tensor_ops {
        skip("hopper", test, &format!("{} has no wgmma", rt.profile().name));
        return None;
    }
    Some(rt)
}

/// The plans of this kernel.
fn plans(rt: &GpuRuntime, op: &Attention<'_>) -> Vec<Plan> {
    let all = candidates(&Desc::Attention(op.desc().unwrap()), rt.profile()).unwrap();
    all.into_iter().filter(|p| p.kernel.module == "attention_wgmma").collect()
}

/// One element type, and its format for the oracle.
trait Half: Float {
    const FORMAT: Format;
}

impl Half for bf16 {
    const FORMAT: Format = Format::BF16;
}

impl Half for f16 {
    const FORMAT: Format = Format::F16;
}

/// Tokens by heads by elements of one sequence.
struct Operand<T> {
    tensor: Tensor,
    values: Vec<T>,
    shape: [usize; 3],
}

impl<T: Half> Operand<T> {
    #[allow(clippy::cast_possible_truncation)] // Random numbers.
    fn new(rt: &GpuRuntime, rng: &mut Rng, [tokens, heads, dim]: [usize; 3]) -> Self {
        let values: Vec<T> = (0..tokens * heads * dim).map(|_| T::of(rng.normal() as f32)).collect();
        let tensor = rt.from_slice(&values, &[1, tokens, heads, dim]).unwrap();
        Operand { tensor, values, shape: [tokens, heads, dim] }
    }

    fn row(&self, token: usize, head: usize) -> Vec<f64> {
        let [_, heads, dim] = self.shape;
        self.values[(token * heads + head) * dim..][..dim].iter().map(|x| x.f32().into()).collect()
    }
}

/// q, k, v and out of `[queries, keys]` tokens and `[heads, kv_heads]` heads.
struct Problem<T> {
    q: Operand<T>,
    k: Operand<T>,
    v: Operand<T>,
    out: Tensor,
}

impl<T: Half> Problem<T> {
    fn new(rt: &GpuRuntime, [queries, keys]: [usize; 2], [heads, kv_heads]: [usize; 2], dim: usize) -> Self {
        let mut rng = Rng::new((queries * 31 + keys) as u64);
        let q = Operand::new(rt, &mut rng, [queries, heads, dim]);
        let [k, v] = [(); 2].map(|()| Operand::new(rt, &mut rng, [keys, kv_heads, dim]));
        let out = rt.from_slice(&vec![T::of(f32::NAN); q.values.len()], &[1, queries, heads, dim]).unwrap();
        Problem { q, k, v, out }
    }

    fn op(&self) -> Attention<'_> {
        Attention::new(&self.q.tensor, &self.k.tensor, &self.v.tensor, &self.out)
    }

    fn poison(&self) {
        self.out.write(&vec![T::of(f32::NAN); self.q.values.len()]).unwrap();
    }

    /// Compares some rows, those of tile edges among them. `seen`: the keys of a query.
    fn check(&self, seen: impl Fn(usize) -> std::ops::Range<usize>, what: &str) {
        let got = self.out.read::<T>().unwrap();
        let ([queries, heads, dim], kv_heads) = (self.q.shape, self.k.shape[1]);
        #[allow(clippy::cast_possible_truncation)] // Rounded once.
        let scale = f64::from((dim as f64).sqrt().recip() as f32);
        let scores = Scores { scale, softcap: None, sink: None };
        let tokens = [0, 1, 62, 63, 64, 127, 128, 191, 192, 300, queries / 2, queries - 65, queries - 2, queries - 1];
        for (i, t) in tokens.into_iter().filter(|t| *t < queries).enumerate() {
            let h = (i * 5) % heads;
            let rows: Vec<[Vec<f64>; 2]> =
                seen(t).map(|j| [&self.k, &self.v].map(|x| x.row(j, h * kv_heads / heads))).collect();
            let keys: Vec<Key<'_>> = rows.iter().map(|[k, v]| Key { k, v, added: 0.0 }).collect();
            let q = self.q.row(t, h);
            let want = tessl_oracle::attention(&q, &keys, scores, dim);
            let errors = bound::attention(&q, &keys, scores, Weights::Rounded(T::FORMAT));
            for (d, (want, error)) in want.into_iter().zip(errors).enumerate() {
                let got = f64::from(got[(t * heads + h) * dim + d].f32());
                let bound = bound::stored(error, want, T::FORMAT);
                assert!((got - want).abs() <= bound, "{what}: [{t}, {h}, {d}] is {got}, not {want} +- {bound}");
            }
        }
    }
}

fn sizes<T: Half>(test: &str) {
    let Some(rt) = hopper(&format!("device::cuda::attention_tests::{test}")) else { return };
    let mut ran = 0;
    for dim in [64, 72, 96, 128, 184, 192, 256] {
        for [queries, keys] in [[1000, 1000], [129, 1100], [576, 576]] {
            let p = Problem::<T>::new(&rt, [queries, keys], [4, 2], dim);
            let offset = keys - queries;
            for plan in plans(&rt, &p.op()) {
                let name = |form: &str| format!("{queries} x {keys} x {dim} {form}: {}", plan.reason);
                p.poison();
                p.op().with_plan(&plan).run().unwrap();
                p.check(|_| 0..keys, &name("full"));
                p.poison();
                p.op().causal_at_end().with_plan(&plan).run().unwrap();
                p.check(|t| 0..offset + t + 1, &name("causal"));
                p.poison();
                p.op().causal_at_end().window(200).with_plan(&plan).run().unwrap();
                p.check(|t| (offset + t + 1).saturating_sub(200)..offset + t + 1, &name("window"));
                ran += 3;
            }
        }
    }
    println!("rate: {ran} attentions of {test}");
}

#[test]
fn every_tile_matches_the_oracle_in_bf16() {
    sizes::<bf16>("every_tile_matches_the_oracle_in_bf16");
}

#[test]
fn every_tile_matches_the_oracle_in_f16() {
    sizes::<f16>("every_tile_matches_the_oracle_in_f16");
}

#[test]
fn hidden_nan_has_no_effect_and_visible_nan_stays_in_its_column() {
    let Some(rt) =
        hopper("device::cuda::attention_tests::hidden_nan_has_no_effect_and_visible_nan_stays_in_its_column")
    else {
        return;
    };
    let (n, dim, bad) = (400usize, 128usize, 230usize);
    for infinite in [false, true] {
        let p = Problem::<bf16>::new(&rt, [n, n], [2, 1], dim);
        let mut v = p.v.values.clone();
        v[bad * dim + 77] = if infinite { bf16::INFINITY } else { bf16::NAN };
        let v = rt.from_slice(&v, &[1, n, 1, dim]).unwrap();
        let clean = Attention::new(&p.q.tensor, &p.k.tensor, &p.v.tensor, &p.out).causal(0);
        for plan in plans(&rt, &clean) {
            clean.clone().with_plan(&plan).run().unwrap();
            let want = p.out.read::<bf16>().unwrap();
            Attention::new(&p.q.tensor, &p.k.tensor, &v, &p.out).causal(0).with_plan(&plan).run().unwrap();
            let got = p.out.read::<bf16>().unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let (t, d) = (i / (2 * dim), i % dim);
                let right = match (t >= bad && d == 77, infinite) {
                    (true, false) => got.is_nan(),
                    (true, true) => *got == bf16::INFINITY,
                    // Rows that are computed again differ by roundings.
                    (false, _) => (got.to_f32() - want.to_f32()).abs() <= 0.02 * want.to_f32().abs().max(1.0),
                };
                assert!(right, "[{t}, {d}] is {got}, was {want}: {}", plan.reason);
            }
        }
    }
}

#[test]
fn two_hundred_runs_give_the_same_bits() {
    let Some(rt) = hopper("device::cuda::attention_tests::two_hundred_runs_give_the_same_bits") else { return };
    for dim in [64, 96, 128, 192, 256] {
        let p = Problem::<bf16>::new(&rt, [1500, 1500], [8, 8], dim);
        for plan in plans(&rt, &p.op()) {
            let op = p.op().causal(0).with_plan(&plan);
            let bits = || p.out.read::<bf16>().unwrap().into_iter().map(bf16::to_bits).collect::<Vec<_>>();
            op.run().unwrap();
            let first = bits();
            for round in 0..200 {
                op.run().unwrap();
                if round % 20 == 19 {
                    assert!(bits() == first, "run {round}: {}", plan.reason);
                }
            }
        }
    }
}

#[test]
fn a_graph_of_every_tile_equals_live_encoding() {
    let Some(rt) = hopper("device::cuda::attention_tests::a_graph_of_every_tile_equals_live_encoding") else { return };
    let mut stream = rt.stream().unwrap();
    for dim in [64, 128, 256] {
        let p = Problem::<f16>::new(&rt, [700, 700], [4, 4], dim);
        let second = rt.uninit(crate::DType::F16, &[1, 700, 4, dim], BufferKind::Hot).unwrap();
        for plan in plans(&rt, &p.op()) {
            let encode = |s: &mut crate::Stream| {
                p.op().causal(0).with_plan(&plan).run_on(s)?;
                Attention::new(&p.out, &p.k.tensor, &p.v.tensor, &second).with_plan(&plan).run_on(s)
            };
            encode(&mut stream).unwrap();
            stream.synchronize().unwrap();
            let live = second.read::<f16>().unwrap();
            let graph = stream.capture(encode).unwrap();
            second.write_on(&vec![f16::NAN; live.len()], &mut stream).unwrap();
            for _ in 0..50 {
                graph.replay(&mut stream).unwrap();
            }
            stream.synchronize().unwrap();
            let replayed = second.read::<f16>().unwrap();
            assert!(live.iter().zip(&replayed).all(|(x, y)| x.to_bits() == y.to_bits()), "{}", plan.reason);
        }
    }
}

/// Two sequences whose operands are 2^31 elements apart.
#[test]
fn sequences_far_apart_in_memory_are_found() {
    let Some(rt) = hopper("device::cuda::attention_tests::sequences_far_apart_in_memory_are_found") else { return };
    let (n, dim) = (130usize, 64usize);
    let far = |source: &Tensor| {
        let whole = rt.uninit(crate::DType::Bf16, &[2, (1 << 31) / dim, 1, dim], BufferKind::Hot).unwrap();
        let view = whole.narrow(1, 0, n).unwrap();
        for b in 0..2 {
            view.narrow(0, b, 1).unwrap().write(&source.read::<bf16>().unwrap()).unwrap();
        }
        view
    };
    let p = Problem::<bf16>::new(&rt, [n, n], [1, 1], dim);
    let [q, k, v, out] = [&p.q.tensor, &p.k.tensor, &p.v.tensor, &p.out].map(far);
    p.op().run().unwrap();
    let want = p.out.read::<bf16>().unwrap();
    Attention::new(&q, &k, &v, &out).run().unwrap();
    for b in 0..2 {
        assert!(out.narrow(0, b, 1).unwrap().read::<bf16>().unwrap() == want, "sequence {b}");
    }
}
