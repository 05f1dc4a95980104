//! The device itself, through the public API. Each test counts as skipped where there is none.

use super::tables::{GemmKernel, gemm_rows};
use crate::gemm::{Gemm, GemmBackend};
use crate::nn::RmsNorm;
use crate::{Activation, BufferKind, DType, Device, Element, Error, GpuRuntime, Library, Tensor};
use half::{bf16, f16};
use tessl_conformance::skip::skip;

/// The first device, or a skip that is counted.
pub(super) fn runtime(test: &str) -> Option<GpuRuntime> {
    match GpuRuntime::with_device(&Device::cuda(0)) {
        Ok(rt) => Some(rt),
        Err(error @ Error::Unavailable(_)) => {
            skip("cuda", test, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Small integers: every sum is exact in every type used here.
pub(super) fn pattern(seed: usize, n: usize) -> impl Iterator<Item = f32> {
    (0..n).map(move |i| ((i * 7 + i / 13 + seed * 5) % 7) as f32 - 3.0)
}

/// A host type with its conversions.
pub(super) trait Float: Element {
    fn of(x: f32) -> Self;
    fn f32(self) -> f32;
}

impl Float for f32 {
    fn of(x: f32) -> Self {
        x
    }
    fn f32(self) -> f32 {
        self
    }
}

impl Float for bf16 {
    fn of(x: f32) -> Self {
        bf16::from_f32(x)
    }
    fn f32(self) -> f32 {
        self.to_f32()
    }
}

impl Float for f16 {
    fn of(x: f32) -> Self {
        f16::from_f32(x)
    }
    fn f32(self) -> f32 {
        self.to_f32()
    }
}

/// A matrix of integers with `slack` elements of NaN after each line, row-major or as a transposed view.
struct Matrix {
    tensor: Tensor,
    values: Vec<f32>,
    columns: usize,
}

impl Matrix {
    fn new<T: Float>(rt: &GpuRuntime, seed: usize, [rows, columns]: [usize; 2], by_rows: bool, slack: usize) -> Self {
        let values: Vec<f32> = pattern(seed, rows * columns).collect();
        let (lines, inner) = if by_rows { (rows, columns) } else { (columns, rows) };
        let at = |line: usize, i: usize| if by_rows { line * columns + i } else { i * columns + line };
        let mut data = vec![T::of(f32::NAN); lines * (inner + slack)];
        for line in 0..lines {
            for i in 0..inner {
                data[line * (inner + slack) + i] = T::of(values[at(line, i)]);
            }
        }
        let whole = rt.from_slice(&data, &[lines, inner + slack]).unwrap().narrow(1, 0, inner).unwrap();
        let tensor = if by_rows { whole } else { whole.t().unwrap() };
        Matrix { tensor, values, columns }
    }

    fn at(&self, i: usize, j: usize) -> f32 {
        self.values[i * self.columns + j]
    }
}

/// One product on both paths against sums on the host, at up to 4,096 places; the corners are always among them.
pub(super) fn check_gemm<I: Float, O: Float>(rt: &GpuRuntime, [m, n, k]: [usize; 3], layout: usize, slack: usize) {
    let a = Matrix::new::<I>(rt, 1, [m, k], layout & 1 == 1, slack);
    let b = Matrix::new::<I>(rt, 2, [k, n], layout & 2 == 2, slack);
    let got = [GemmBackend::TensorOps, GemmBackend::Simdgroup].map(|backend| {
        let c = rt.from_slice(&vec![O::of(f32::NAN); m * n], &[m, n]).unwrap();
        Gemm::new(&a.tensor, &b.tensor, &c).backend(backend).run().unwrap();
        c.read::<O>().unwrap()
    });
    let samples = (m * n).min(4096);
    for s in 0..samples {
        let at = if samples == m * n { s } else { (s * 48_271 + s / 7) % (m * n) };
        for at in [at, 0, n - 1, (m - 1) * n, m * n - 1] {
            let (i, j) = (at / n, at % n);
            let sum: f32 = (0..k).map(|p| a.at(i, p) * b.at(p, j)).sum();
            for (path, got) in ["matrix", "portable"].into_iter().zip(&got) {
                let what = || format!("{m}x{n}x{k} layout {layout} slack {slack} {path} path at ({i}, {j})");
                assert_eq!(got[at].f32(), O::of(sum).f32(), "{}", what());
            }
            if s > 0 && samples == m * n {
                break;
            }
        }
    }
}

#[test]
fn copies_and_fills_reach_every_byte() {
    let Some(rt) = runtime("device::cuda::device_tests::copies_and_fills_reach_every_byte") else { return };
    let data: Vec<f32> = pattern(3, 1000 * 33).collect();
    let t = rt.from_slice(&data, &[1000, 33]).unwrap();
    assert_eq!(t.read::<f32>().unwrap(), data);
    let part = t.narrow(1, 5, 7).unwrap();
    let wanted: Vec<f32> = (0..1000).flat_map(|i| data[i * 33 + 5..i * 33 + 12].to_vec()).collect();
    assert_eq!(part.read::<f32>().unwrap(), wanted);
    part.write(&vec![9.0f32; 7000]).unwrap();
    let all = t.read::<f32>().unwrap();
    assert!(all.iter().enumerate().all(|(i, x)| *x == if (5..12).contains(&(i % 33)) { 9.0 } else { data[i] }));
    assert!(
        rt.zeros(DType::F16, &[77, 3], BufferKind::Hot)
            .unwrap()
            .read::<f16>()
            .unwrap()
            .iter()
            .all(|x| x.to_bits() == 0)
    );
}

#[test]
fn every_gemm_row_is_exact_in_every_layout() {
    let Some(rt) = runtime("device::cuda::device_tests::every_gemm_row_is_exact_in_every_layout") else { return };
    let cores = rt.profile().cores as usize;
    for row in gemm_rows().iter().filter(|r| r.shared_bytes() <= rt.profile().shared_bytes) {
        let [tm, tn, tk] = row.tile.map(|t| t as usize);
        // Enough tiles in a square for this row, ragged in every direction.
        let tiles = (cores * row.fill as usize).div_ceil(100).max(1);
        let across = (1..).find(|i| i * i >= tiles).unwrap();
        let size = [across * tm + 1, across * tn - 1, tk * 2 + 3];
        for layout in 0..4 {
            // Leading dimensions of every alignment from 2 to 16 bytes for either operand.
            for slack in [0, 1, 3, 5, 7] {
                match row.kernel {
                    GemmKernel::Mma if layout % 2 == 0 => check_gemm::<bf16, bf16>(&rt, size, layout, slack),
                    GemmKernel::Mma => check_gemm::<f16, f32>(&rt, size, layout, slack),
                    GemmKernel::Simt => check_gemm::<f32, f32>(&rt, size, layout, slack),
                }
            }
        }
    }
}

#[test]
fn small_and_odd_gemms_are_exact() {
    let Some(rt) = runtime("device::cuda::device_tests::small_and_odd_gemms_are_exact") else { return };
    for [m, n, k] in [[1, 1, 1], [1, 37, 5], [3, 2, 300], [31, 33, 63], [32, 32, 64], [33, 31, 65], [65, 129, 16]] {
        for layout in 0..4 {
            check_gemm::<bf16, f32>(&rt, [m, n, k], layout, 0);
            check_gemm::<bf16, bf16>(&rt, [m, n, k], layout, 3);
            check_gemm::<f16, f16>(&rt, [m, n, k], layout, 8);
            check_gemm::<f32, f32>(&rt, [m, n, k], layout, 1);
        }
    }
}

#[test]
fn aligned_gemms_take_the_wide_copies() {
    let Some(rt) = runtime("device::cuda::device_tests::aligned_gemms_take_the_wide_copies") else { return };
    for layout in 0..4 {
        check_gemm::<bf16, bf16>(&rt, [256, 192, 128], layout, 0);
        check_gemm::<bf16, bf16>(&rt, [2048, 2048, 192], layout, 0);
        check_gemm::<f32, f32>(&rt, [1536, 2048, 64], layout, 0);
    }
}

#[test]
fn epilogue_order_and_edge_cases() {
    let Some(rt) = runtime("device::cuda::device_tests::epilogue_order_and_edge_cases") else { return };
    let (m, n, k) = (70usize, 45usize, 20usize);
    let a = Matrix::new::<f16>(&rt, 1, [m, k], true, 0);
    let b = Matrix::new::<f16>(&rt, 2, [k, n], false, 0);
    let old: Vec<f32> = pattern(4, m * n).collect();
    let bias: Vec<f32> = pattern(5, n).collect();
    let bias = rt.from_slice(&bias, &[n]).unwrap();
    let c = rt.from_slice(&old, &[m, n]).unwrap();
    Gemm::new(&a.tensor, &b.tensor, &c).alpha(2.0).beta(0.5).bias(&bias).activation(Activation::Relu).run().unwrap();
    let (got, bias) = (c.read::<f32>().unwrap(), bias.read::<f32>().unwrap());
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        let sum: f32 = (0..k).map(|p| a.at(i, p) * b.at(p, j)).sum();
        assert_eq!(got[i * n + j], (2.0 * sum + 0.5 * old[i * n + j] + bias[j]).max(0.0), "({i}, {j})");
    }
    // NaN in A reaches its row and nothing else, relu included.
    let mut poisoned: Vec<f16> = a.values.iter().map(|x| f16::from_f32(*x)).collect();
    poisoned[3 * k] = f16::NAN;
    let poisoned = rt.from_slice(&poisoned, &[m, k]).unwrap();
    Gemm::new(&poisoned, &b.tensor, &c).activation(Activation::Relu).run().unwrap();
    let got = c.read::<f32>().unwrap();
    assert!(got.iter().enumerate().all(|(i, x)| x.is_nan() == (i / n == 3)));
    // The empty sum is 0.
    let (a, b) = (rt.alloc_tensor_f16(&[m, 0]).unwrap(), rt.alloc_tensor_f16(&[0, n]).unwrap());
    Gemm::new(&a, &b, &c).alpha(2.0).run().unwrap();
    assert!(c.read::<f32>().unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn norms_are_within_their_bound_and_repeat_bit_for_bit() {
    let Some(rt) = runtime("device::cuda::device_tests::norms_are_within_their_bound_and_repeat_bit_for_bit") else {
        return;
    };
    for (rows, n) in [(1usize, 8usize), (7, 4096), (300, 1003), (2000, 64)] {
        let x: Vec<f32> = pattern(6, rows * n).map(|v| v + 0.25).collect();
        let w: Vec<f32> = pattern(7, n).collect();
        let (xt, wt) = (rt.from_slice(&x, &[rows, n]).unwrap(), rt.from_slice(&w, &[n]).unwrap());
        let y = rt.zeros(DType::F32, &[rows, n], BufferKind::Hot).unwrap();
        RmsNorm::new(&xt, &wt, &y).eps(1e-6).run().unwrap();
        let first = y.read::<f32>().unwrap();
        for (r, row) in x.chunks(n).enumerate() {
            let mean = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / n as f64;
            let scale = 1.0 / (mean + 1e-6).sqrt();
            for (i, v) in row.iter().enumerate() {
                let wanted = f64::from(*v) * scale * f64::from(w[i]);
                let error = (f64::from(first[r * n + i]) - wanted).abs();
                assert!(error <= 2e-6 * wanted.abs() + 1e-12, "row {r} of {rows}x{n}, {i}: off by {error}");
            }
        }
        RmsNorm::new(&xt, &wt, &y).eps(1e-6).run().unwrap();
        assert_eq!(first, y.read::<f32>().unwrap());
    }
}

#[test]
fn a_replayed_graph_equals_live_encoding() {
    let Some(rt) = runtime("device::cuda::device_tests::a_replayed_graph_equals_live_encoding") else { return };
    let n = 192;
    let a = Matrix::new::<bf16>(&rt, 1, [n, n], true, 0);
    let w = rt.from_slice(&vec![bf16::ONE; n], &[n]).unwrap();
    let make = || rt.zeros(DType::Bf16, &[n, n], BufferKind::Hot).unwrap();
    let (b, c, d, e) = (make(), make(), make(), make());
    let mut stream = rt.stream().unwrap();
    // Two branches from one source, joined by the last product.
    let encode = |s: &mut crate::Stream| {
        RmsNorm::new(&a.tensor, &w, &b).eps(1e-5).run_on(s)?;
        Gemm::new(&a.tensor, &b, &c).run_on(s)?;
        Gemm::new(&b, &a.tensor, &d).run_on(s)?;
        Gemm::new(&c, &d, &e).alpha(0.01).run_on(s)
    };
    encode(&mut stream).unwrap();
    stream.synchronize().unwrap();
    let live = e.read::<bf16>().unwrap();
    assert!(live.iter().any(|x| x.to_f32() != 0.0));
    let graph = stream.capture(encode).unwrap();
    for _ in 0..200 {
        for t in [&b, &c, &d, &e] {
            t.write_on(&vec![bf16::NAN; n * n], &mut stream).unwrap();
        }
        graph.replay(&mut stream).unwrap();
    }
    stream.synchronize().unwrap();
    let replayed = e.read::<bf16>().unwrap();
    assert!(live.iter().zip(&replayed).all(|(x, y)| x.to_bits() == y.to_bits()));
}

#[test]
fn streams_wait_for_each_other_s_data() {
    let Some(rt) = runtime("device::cuda::device_tests::streams_wait_for_each_other_s_data") else { return };
    let n = 512;
    let a = Matrix::new::<f32>(&rt, 1, [n, n], true, 0);
    let (b, c) = (rt.alloc_tensor_f32(&[n, n]).unwrap(), rt.alloc_tensor_f32(&[n, n]).unwrap());
    let (mut one, mut two) = (rt.stream().unwrap(), rt.stream().unwrap());
    let mut last = Vec::new();
    for round in 0..50 {
        b.write_on(&vec![f32::from(u8::try_from(round % 5).unwrap()); n * n], &mut one).unwrap();
        Gemm::new(&a.tensor, &b, &c).run_on(&mut two).unwrap();
        if round % 10 == 9 {
            let got = c.read::<f32>().unwrap();
            let row: f32 = a.values[..n].iter().sum();
            assert_eq!(got[0], row * (round % 5) as f32);
            last = got;
        }
    }
    one.synchronize().unwrap();
    two.synchronize().unwrap();
    assert_eq!(last.len(), n * n);
}

const USER: &str = r#"
#include "tessl.h"
struct Args { uint n; };
KERNEL(twice, 128, IN(float, x, 0), OUT(float, y, 1), ARGS(Args, p, 2)) {
  uint i = gpu_tg.x * 128 + gpu_tid.x;
  if (i < p.n) y[i] = 2.0f * x[i];
}
KERNEL(checked, 128, IN(float, x, 0), OUT(float, y, 1), ARGS(Args, p, 2), STATUS(3)) {
  uint i = gpu_tg.x * 128 + gpu_tid.x;
  if (i >= p.n) return;
  if (x[i] < 0.0f) { FAULT(7, i, -5ll); return; }
  y[i] = x[i];
}
KERNEL(astray, 32, OUT(float, y, 0)) { y[1ull << 40] = 1.0f; }
"#;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Args {
    n: u32,
}

#[test]
fn a_caller_s_kernels_run_report_faults_and_keep_their_names() {
    let Some(rt) = runtime("device::cuda::device_tests::a_caller_s_kernels_run_report_faults_and_keep_their_names")
    else {
        return;
    };
    rt.add_library(Library::cuda_source("mine", USER)).unwrap();
    assert!(matches!(rt.add_library(Library::cuda_source("mine", USER)), Err(Error::Name { .. })));
    assert!(matches!(rt.add_library(Library::cuda_source("other", USER)), Err(Error::Name { .. })));
    assert!(matches!(rt.kernel("mine", "absent"), Err(Error::Name { .. })));
    let bad = rt.add_library(Library::cuda_source("bad", "extern \"C\" __global__ void f() { oops; }")).unwrap_err();
    assert!(bad.to_string().contains("oops"), "{bad}");
    assert!(rt.add_library(Library::metal_source("metal", "")).is_err());

    let (twice, checked) = (rt.kernel("mine", "twice").unwrap(), rt.kernel("mine", "checked").unwrap());
    let x: Vec<f32> = (0u16..1000).map(f32::from).collect();
    let (xt, y) = (rt.from_slice(&x, &[1000]).unwrap(), rt.alloc_tensor_f32(&[1000]).unwrap());
    let mut stream = rt.stream().unwrap();
    let args = Args { n: 1000 };
    // SAFETY: both kernels touch elements below n of their two bindings.
    let run = |kernel, stream: &mut crate::Stream| unsafe {
        stream.dispatch(kernel, |b| b.input(&xt).output(&y).args(&args).grid([8, 1, 1]).threads(128))
    };
    run(&twice, &mut stream).unwrap();
    stream.synchronize().unwrap();
    assert!(y.read::<f32>().unwrap().iter().zip(&x).all(|(y, x)| *y == 2.0 * x));
    run(&checked, &mut stream).unwrap();
    stream.synchronize().unwrap();

    let mut bad = x.clone();
    bad[321] = -1.0;
    xt.write(&bad).unwrap();
    run(&checked, &mut stream).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, Error::Fault { index: 321, value: -5, .. }), "{error}");
    stream.recover().ok();
    xt.write(&x).unwrap();
    run(&checked, &mut stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn an_allocation_that_cannot_be_is_typed_and_leaves_the_device_usable() {
    let Some(rt) =
        runtime("device::cuda::device_tests::an_allocation_that_cannot_be_is_typed_and_leaves_the_device_usable")
    else {
        return;
    };
    let bytes = usize::try_from(rt.info().memory_bytes).unwrap();
    let error = rt.alloc_tensor_f32(&[bytes]).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. } | Error::TooLarge { .. }), "{error}");
    check_gemm::<bf16, f32>(&rt, [40, 40, 40], 3, 0);
}

/// Ends the context of the process, so it runs alone: `--ignored --exact`.
#[test]
#[ignore = "ends the CUDA context of the process; run alone"]
fn a_lost_context_is_a_runtime_error_and_nobody_hangs() {
    let Some(rt) = runtime("device::cuda::device_tests::a_lost_context_is_a_runtime_error_and_nobody_hangs") else {
        return;
    };
    rt.add_library(Library::cuda_source("mine", USER)).unwrap();
    let astray = rt.kernel("mine", "astray").unwrap();
    let y = rt.alloc_tensor_f32(&[32]).unwrap();
    let (mut stream, mut other) = (rt.stream().unwrap(), rt.stream().unwrap());
    // SAFETY: none: the kernel writes outside its binding, which is what is tested.
    unsafe { stream.dispatch(&astray, |b| b.output(&y)) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.scope(), crate::Scope::Runtime, "{error}");
    println!("{error}");
    let again = y.write_on(&[0.0f32; 32], &mut other).and_then(|()| other.synchronize()).unwrap_err();
    println!("{again}");
}

/// Not a benchmark: one number to see that nothing is badly wrong.
#[test]
fn rates_are_printed() {
    let Some(rt) = runtime("device::cuda::device_tests::rates_are_printed") else { return };
    for n in [1024usize, 2048, 4096, 8192] {
        let make = |seed| {
            let data: Vec<bf16> = pattern(seed, n * n).map(bf16::from_f32).collect();
            rt.from_slice(&data, &[n, n]).unwrap()
        };
        let (a, b, c) = (make(1), make(2), make(3));
        for (name, b) in [("nn", b.clone()), ("nt", b.t().unwrap())] {
            let run = || Gemm::new(&a, &b, &c).run().unwrap();
            (0..3).for_each(|_| run());
            rt.synchronize().unwrap();
            let rounds = (400_000_000_000_000 / (2 * n * n * n)).clamp(20, 2000);
            let started = std::time::Instant::now();
            (0..rounds).for_each(|_| run());
            rt.synchronize().unwrap();
            let seconds = started.elapsed().as_secs_f64() / rounds as f64;
            let rate = 2.0 * (n as f64).powi(3) / seconds / 1e12;
            println!("rate: bf16 {name} {n}^3: {:.1} us, {rate:.0} TFLOP/s", seconds * 1e6);
        }
    }
    let n = 4096;
    let data: Vec<f32> = pattern(1, n * n).collect();
    let (a, c) = (rt.from_slice(&data, &[n, n]).unwrap(), rt.alloc_tensor_f32(&[n, n]).unwrap());
    Gemm::new(&a, &a, &c).run().unwrap();
    rt.synchronize().unwrap();
    let started = std::time::Instant::now();
    (0..10).for_each(|_| Gemm::new(&a, &a, &c).run().unwrap());
    rt.synchronize().unwrap();
    let rate = 20.0 * (n as f64).powi(3) / started.elapsed().as_secs_f64() / 1e12;
    println!("rate: f32 nn {n}^3: {rate:.1} TFLOP/s");
}
