//! The wgmma kernel on the device: every row that could run, not only the one that the table would choose.

use super::device_tests::{Float, check_gemm, pattern, runtime};
use crate::gemm::Gemm;
use crate::plan::{Desc, Plan, candidates};
use crate::{Activation, GpuRuntime, Tensor};
use half::{bf16, f16};
use std::fmt::Debug;
use tessl_conformance::skip::skip;

/// The device, where it has this kernel.
fn hopper(test: &str) -> Option<GpuRuntime> {
    let rt = runtime(test)?;
    if !rt.profile().tensor_ops {
        skip("hopper", test, &format!("{} has no wgmma", rt.profile().name));
        return None;
    }
    Some(rt)
}

/// The candidates of one kernel file for a product.
fn plans(rt: &GpuRuntime, gemm: &Gemm<'_>, module: &str) -> Vec<Plan> {
    let all = candidates(&Desc::Gemm(gemm.desc().unwrap()), rt.profile()).unwrap();
    all.into_iter().filter(|p| p.kernel.module == module).collect()
}

/// Batched matrices of small integers. Lines have a pitch of its own and matrices an extra line; all the slack is NaN.
struct Operand {
    tensor: Tensor,
    values: Vec<f32>,
    shape: [usize; 3],
}

impl Operand {
    /// `by_rows`: rows are contiguous. One matrix has no batch axis when `batch` is 0.
    fn new<T: Float>(rt: &GpuRuntime, seed: usize, batch: usize, [rows, columns]: [usize; 2], by_rows: bool) -> Self {
        let matrices = batch.max(1);
        let values: Vec<f32> = pattern(seed, matrices * rows * columns).collect();
        let (lines, inner) = if by_rows { (rows, columns) } else { (columns, rows) };
        let pitch = inner.next_multiple_of(8) + 8;
        let mut data = vec![T::of(f32::NAN); matrices * (lines + 1) * pitch];
        for (i, value) in values.iter().enumerate() {
            let (z, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
            let (line, at) = if by_rows { (row, column) } else { (column, row) };
            data[(z * (lines + 1) + line) * pitch + at] = T::of(*value);
        }
        let whole = rt.from_slice(&data, &[matrices, lines + 1, pitch]).unwrap();
        let view = whole.narrow(1, 0, lines).unwrap().narrow(2, 0, inner).unwrap();
        let view = if by_rows { view } else { view.permute(&[0, 2, 1]).unwrap() };
        let tensor = if batch == 0 { view.select(0, 0).unwrap() } else { view };
        Operand { tensor, values, shape: [matrices, rows, columns] }
    }

    fn matrix(&self, z: usize) -> &[f32] {
        let [matrices, rows, columns] = self.shape;
        &self.values[z % matrices * rows * columns..][..rows * columns]
    }
}

/// A result inside a larger buffer of canaries.
struct Output<O> {
    whole: Tensor,
    tensor: Tensor,
    before: Vec<O>,
    shape: [usize; 3],
    pitch: usize,
}

impl<O: Float + PartialEq + Debug> Output<O> {
    /// `wide`: lines start on 16 bytes, so that the copy engine can store them.
    fn new(rt: &GpuRuntime, batch: usize, [m, n]: [usize; 2], wide: bool) -> Self {
        let pitch = if wide { n.next_multiple_of(8) + 8 } else { (n + 3) | 1 };
        let before = vec![O::of(77.0); batch * (m + 1) * pitch];
        let whole = rt.from_slice(&before, &[batch, m + 1, pitch]).unwrap();
        let tensor = whole.narrow(1, 0, m).unwrap().narrow(2, 0, n).unwrap();
        Output { whole, tensor, before, shape: [batch, m, n], pitch }
    }

    /// Everything as it was before.
    fn reset(&self) {
        self.whole.write(&self.before).unwrap();
    }

    /// Every element of the result and every canary.
    fn check(&self, expected: impl Fn(usize) -> f32, what: impl Fn() -> String) {
        let [_, m, n] = self.shape;
        for (i, got) in self.whole.read::<O>().unwrap().into_iter().enumerate() {
            let (z, line, at) = (i / self.pitch / (m + 1), i / self.pitch % (m + 1), i % self.pitch);
            let inside = line < m && at < n;
            let wanted = if inside { O::of(expected((z * m + line) * n + at)) } else { self.before[i] };
            assert!(got == wanted, "{}: [{z}, {line}, {at}] is {got:?}, not {wanted:?}", what());
        }
    }
}

/// Sums on the host; integers, so exact in any order.
fn product(a: &Operand, b: &Operand, batch: usize) -> Vec<f32> {
    let ([_, m, k], n) = (a.shape, b.shape[2]);
    let mut sums = vec![0.0; batch * m * n];
    for (z, out) in sums.chunks_exact_mut(m * n).enumerate() {
        let (a, b) = (a.matrix(z), b.matrix(z));
        for (line, out) in out.chunks_exact_mut(n).enumerate() {
            for (p, row) in b.chunks_exact(n).enumerate() {
                let x = a[line * k + p];
                out.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
            }
        }
    }
    sums
}

/// One problem on every row. `batches`: of A and B, 0 for a matrix that serves all. Returns the rows that ran.
fn check_rows<I: Float, O: Float + PartialEq + Debug>(
    rt: &GpuRuntime,
    [m, n, k]: [usize; 3],
    layout: usize,
    wide: bool,
    batches: [usize; 2],
) -> usize {
    let batch = batches[0].max(batches[1]).max(1);
    let a = Operand::new::<I>(rt, 1, batches[0], [m, k], layout & 1 == 1);
    let b = Operand::new::<I>(rt, 2, batches[1], [k, n], layout & 2 == 2);
    let c = Output::<O>::new(rt, batch, [m, n], wide);
    let sums = product(&a, &b, batch);
    let gemm = Gemm::new(&a.tensor, &b.tensor, &c.tensor);
    let rows = plans(rt, &gemm, "gemm_wgmma");
    assert!(!rows.is_empty(), "{:?}", gemm.desc());
    for plan in &rows {
        c.reset();
        gemm.clone().with_plan(plan).run().unwrap();
        c.check(|i| sums[i], || format!("{m}x{n}x{k} layout {layout} wide {wide} {batches:?}: {}", plan.reason));
    }
    rows.len()
}

/// Sizes around every tile, fewer and more tiles than one, short and long k.
fn ragged(layout: usize) -> usize {
    let name = ["tt", "nt", "tn", "nn"][layout];
    let test = format!("device::cuda::wgmma_tests::ragged_sizes_are_exact_on_every_row_{name}");
    let Some(rt) = hopper(&test) else { return 0 };
    let mut ran = 0;
    for d in [-2isize, -1, 0, 1, 2] {
        let near = |n: usize| n.checked_add_signed(d).unwrap();
        let shapes = [
            [near(64), near(64), near(64)],
            [near(128), near(192), near(130)],
            [near(128), near(256), 64],
            [near(192), near(320), near(512)],
            [near(3), near(1000), 1027],
            [near(66), 72, near(2058)],
        ];
        for shape in shapes {
            ran += check_rows::<bf16, bf16>(&rt, shape, layout, true, [0, 0]);
            ran += check_rows::<f16, f32>(&rt, shape, layout, false, [0, 0]);
        }
    }
    println!("layout {name}: {ran} products");
    ran
}

#[test]
fn ragged_sizes_are_exact_on_every_row_tt() {
    ragged(0);
}

#[test]
fn ragged_sizes_are_exact_on_every_row_nt() {
    ragged(1);
}

#[test]
fn ragged_sizes_are_exact_on_every_row_tn() {
    ragged(2);
}

#[test]
fn ragged_sizes_are_exact_on_every_row_nn() {
    ragged(3);
}

#[test]
fn every_pair_of_types_is_exact() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::every_pair_of_types_is_exact") else { return };
    for (wide, shape) in [(true, [130, 200, 264]), (false, [190, 97, 72])] {
        check_rows::<bf16, f32>(&rt, shape, 3, wide, [0, 0]);
        check_rows::<bf16, f16>(&rt, shape, 3, wide, [0, 0]);
        check_rows::<f16, f16>(&rt, shape, 3, wide, [0, 0]);
        check_rows::<f16, bf16>(&rt, shape, 3, wide, [0, 0]);
    }
}

#[test]
fn batches_and_shared_operands_are_exact() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::batches_and_shared_operands_are_exact") else { return };
    for layout in [1, 2] {
        for batches in [[5, 5], [5, 0], [0, 5], [3, 1]] {
            check_rows::<bf16, bf16>(&rt, [70, 136, 200], layout, true, batches);
        }
    }
    // More tiles than there are blocks: each block walks over several matrices.
    check_rows::<f16, f32>(&rt, [40, 72, 64], 1, true, [700, 700]);
    // Matrices interleaved line by line: the batch stride is shorter than the line stride.
    let (batch, m, k) = (6usize, 50usize, 64usize);
    let values: Vec<bf16> = pattern(9, m * batch * k).map(bf16::from_f32).collect();
    let a = rt.from_slice(&values, &[m, batch, k]).unwrap().permute(&[1, 0, 2]).unwrap();
    let b = Operand::new::<bf16>(&rt, 2, 0, [k, 80], true);
    let c = rt.alloc_tensor_f32(&[batch, m, 80]).unwrap();
    let gemm = Gemm::new(&a, &b.tensor, &c);
    for plan in plans(&rt, &gemm, "gemm_wgmma") {
        gemm.clone().with_plan(&plan).run().unwrap();
        for (i, got) in c.read::<f32>().unwrap().into_iter().enumerate() {
            let (z, line, j) = (i / 80 / m, i / 80 % m, i % 80);
            let x = &values[(line * batch + z) * k..][..k];
            let sum: f32 = x.iter().enumerate().map(|(p, x)| x.to_f32() * b.values[p * 80 + j]).sum();
            assert_eq!(got, sum, "[{z}, {line}, {j}]: {}", plan.reason);
        }
    }
}

#[test]
fn large_products_walk_over_many_tiles() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::large_products_walk_over_many_tiles") else { return };
    for layout in 0..4 {
        check_gemm::<bf16, bf16>(&rt, [4096, 4096, 192], layout, 0);
        check_gemm::<bf16, f32>(&rt, [8192, 768, 320], layout, 8);
        check_gemm::<f16, f16>(&rt, [2000, 2056, 136], layout, 0);
    }
    check_gemm::<bf16, bf16>(&rt, [4099, 4104, 192], 3, 0);
}

/// What `epilogue` adds is the same as in the mma.sync kernel, bit for bit, because the sums are exact.
#[test]
fn epilogues_equal_those_of_the_portable_kernel() {
    fn check<O: Float + PartialEq + Debug>(rt: &GpuRuntime, wide: bool, k: usize) {
        let (m, n) = (134usize, 206usize);
        let a = Operand::new::<bf16>(rt, 1, 0, [m, k], true);
        let b = Operand::new::<bf16>(rt, 2, 0, [k, n], false);
        let old: Vec<O> = pattern(4, m * n).map(O::of).collect();
        let c = Output::<O>::new(rt, 1, [m, n], wide);
        let out = c.tensor.select(0, 0).unwrap();
        let values: Vec<f32> = pattern(5, n).map(|v| v * 0.37).collect();
        let f32_bias = rt.from_slice(&values, &[n]).unwrap();
        let typed: Vec<O> = values.iter().map(|v| O::of(*v)).collect();
        let typed_bias = rt.from_slice(&typed, &[n]).unwrap();
        let mut cases = Vec::new();
        for (alpha, beta) in [(1.0, 1.0), (0.01, 0.0), (-0.02, 0.5), (0.0, 2.0)] {
            for bias in [None, Some(&f32_bias), Some(&typed_bias)] {
                cases.push((alpha, beta, bias, Activation::Relu));
            }
        }
        cases.extend(Activation::ALL.map(|act| (0.01, 0.25, Some(&f32_bias), act)));
        for (i, (alpha, beta, bias, act)) in cases.into_iter().enumerate() {
            let mut gemm = Gemm::new(&a.tensor, &b.tensor, &out).alpha(alpha).beta(beta).activation(act);
            if let Some(bias) = bias {
                gemm = gemm.bias(bias);
            }
            let run = |plan: &Plan| {
                c.reset();
                // beta = 0 does not read C: NaN there must vanish.
                if beta == 0.0 { out.write(&vec![O::of(f32::NAN); m * n]) } else { out.write(&old) }.unwrap();
                gemm.clone().with_plan(plan).run().unwrap();
                out.read::<O>().unwrap()
            };
            let wanted = run(&plans(rt, &gemm, "gemm_mma")[0]);
            assert!(wanted.iter().all(|x| x == x), "a NaN of C came through");
            for plan in plans(rt, &gemm, "gemm_wgmma") {
                assert!(run(&plan) == wanted, "case {i}, wide {wide}, k {k}: {}", plan.reason);
            }
        }
    }
    let Some(rt) = hopper("device::cuda::wgmma_tests::epilogues_equal_those_of_the_portable_kernel") else { return };
    for k in [72, 2048] {
        check::<f32>(&rt, true, k);
        check::<bf16>(&rt, true, k);
    }
    check::<f16>(&rt, false, 72);
}

#[test]
fn a_column_major_result_has_its_bias_along_rows() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::a_column_major_result_has_its_bias_along_rows") else { return };
    let (m, n, k) = (72usize, 144usize, 2056usize);
    let a = Operand::new::<f16>(&rt, 1, 0, [m, k], true);
    let b = Operand::new::<f16>(&rt, 2, 0, [k, n], true);
    let bias: Vec<f32> = pattern(3, n).collect();
    let bias_tensor = rt.from_slice(&bias, &[n]).unwrap();
    let stored = rt.alloc_tensor_f32(&[n, m]).unwrap();
    let c = stored.t().unwrap();
    let gemm = Gemm::new(&a.tensor, &b.tensor, &c).bias(&bias_tensor);
    let sums = product(&a, &b, 1);
    for plan in plans(&rt, &gemm, "gemm_wgmma") {
        gemm.clone().with_plan(&plan).run().unwrap();
        let got = stored.read::<f32>().unwrap();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            assert_eq!(got[j * m + i], sums[i * n + j] + bias[j], "({i}, {j}): {}", plan.reason);
        }
    }
}

#[test]
fn nan_reaches_its_row_and_nothing_else() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::nan_reaches_its_row_and_nothing_else") else { return };
    let (m, n, k) = (130usize, 264usize, 2048usize);
    let mut data: Vec<bf16> = pattern(1, m * k).map(bf16::from_f32).collect();
    data[129 * k + k - 1] = bf16::NAN;
    let a = rt.from_slice(&data, &[m, k]).unwrap();
    let b = Operand::new::<bf16>(&rt, 2, 0, [k, n], true);
    let c = rt.alloc_tensor_bf16(&[m, n]).unwrap();
    let gemm = Gemm::new(&a, &b.tensor, &c).activation(Activation::Relu);
    for plan in plans(&rt, &gemm, "gemm_wgmma") {
        gemm.clone().with_plan(&plan).run().unwrap();
        let got = c.read::<bf16>().unwrap();
        assert!(got.iter().enumerate().all(|(i, x)| x.is_nan() == (i / n == 129)), "{}", plan.reason);
    }
}

/// Numbers that round, so that another order of additions would show.
fn uneven(seed: usize, n: usize) -> Vec<bf16> {
    pattern(seed, n).enumerate().map(|(i, v)| bf16::from_f32(v * 0.731 + (i % 1013) as f32 * 0.003)).collect()
}

#[test]
fn two_hundred_runs_give_the_same_bits() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::two_hundred_runs_give_the_same_bits") else { return };
    for [m, n, k] in [[1000usize, 1544usize, 1000usize], [200, 136, 4104]] {
        let a = rt.from_slice(&uneven(1, m * k), &[m, k]).unwrap();
        let b = rt.from_slice(&uneven(2, k * n), &[k, n]).unwrap();
        let c = rt.alloc_tensor_f32(&[m, n]).unwrap();
        let gemm = Gemm::new(&a, &b, &c);
        for plan in plans(&rt, &gemm, "gemm_wgmma") {
            let bits = |c: &Tensor| c.read::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
            gemm.clone().with_plan(&plan).run().unwrap();
            let first = bits(&c);
            for round in 0..200 {
                gemm.clone().with_plan(&plan).run().unwrap();
                if round % 20 == 19 {
                    assert!(bits(&c) == first, "run {round}: {}", plan.reason);
                }
            }
        }
    }
}

#[test]
fn a_graph_of_every_row_equals_live_encoding() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::a_graph_of_every_row_equals_live_encoding") else { return };
    let n = 520;
    let a = rt.from_slice(&uneven(1, n * n), &[n, n]).unwrap();
    let b = rt.from_slice(&uneven(2, n * n), &[n, n]).unwrap();
    let c = rt.alloc_tensor_bf16(&[n, n]).unwrap();
    let d = rt.alloc_tensor_f32(&[n, n]).unwrap();
    let mut stream = rt.stream().unwrap();
    let rows = plans(&rt, &Gemm::new(&a, &b, &c), "gemm_wgmma");
    let second = plans(&rt, &Gemm::new(&c, &b, &d), "gemm_wgmma");
    for (x, y) in rows.iter().zip(&second) {
        let encode = |s: &mut crate::Stream| {
            Gemm::new(&a, &b, &c).alpha(0.01).with_plan(x).run_on(s)?;
            Gemm::new(&c, &b, &d).with_plan(y).run_on(s)
        };
        encode(&mut stream).unwrap();
        stream.synchronize().unwrap();
        let live = d.read::<f32>().unwrap();
        let graph = stream.capture(encode).unwrap();
        d.write_on(&vec![f32::NAN; n * n], &mut stream).unwrap();
        for _ in 0..50 {
            graph.replay(&mut stream).unwrap();
        }
        stream.synchronize().unwrap();
        let replayed = d.read::<f32>().unwrap();
        assert!(live.iter().zip(&replayed).all(|(x, y)| x.to_bits() == y.to_bits()), "{}", x.reason);
    }
}

#[test]
fn operands_off_16_bytes_take_the_slower_kernel_and_are_exact() {
    let Some(rt) = hopper("device::cuda::wgmma_tests::operands_off_16_bytes_take_the_slower_kernel_and_are_exact")
    else {
        return;
    };
    for layout in 0..4 {
        check_gemm::<bf16, bf16>(&rt, [200, 136, 72], layout, 1);
        check_gemm::<f16, f32>(&rt, [131, 257, 65], layout, 4);
    }
    // Rows that repeat one row have a stride of 0, which the copy engine is not asked to take.
    let row = rt.from_slice(&[bf16::ONE; 64], &[1, 64]).unwrap();
    let a = row.broadcast_to(&[128, 64]).unwrap();
    let c = rt.alloc_tensor_f32(&[128, 128]).unwrap();
    let b = rt.from_slice(&vec![bf16::ONE; 64 * 128], &[64, 128]).unwrap();
    let gemm = Gemm::new(&a, &b, &c);
    assert!(plans(&rt, &gemm, "gemm_wgmma").is_empty());
    gemm.run().unwrap();
    assert!(c.read::<f32>().unwrap().iter().all(|x| *x == 64.0));
}
