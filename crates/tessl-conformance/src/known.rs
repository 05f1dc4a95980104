//! Faults that public code bases have shipped, as cases named by their source. docs/verification.md tells each story.

use crate::env::{Env, Outcome};
use crate::gemm::{BACKENDS, Data, Place, Problem, backend_name};
use crate::suite::Case;
use tessl::nn::RmsNorm;
use tessl::{
    Activation, BatchStrides, BufferKind, DType, Epilogue, Gemm, GemmBackend, Tensor, bf16, f16, gemm_batched,
};
use tessl_oracle::pattern::{PatternProduct, weighted_sum};

const F32: (DType, DType) = (DType::F32, DType::F32);
const BF16_F32: (DType, DType) = (DType::Bf16, DType::F32);

type Result<T = ()> = std::result::Result<T, String>;

fn text(error: tessl::Error) -> String {
    error.to_string()
}

fn equal(env: &Env, what: &str, got: &[f32], want: impl Fn(usize) -> f32) -> Result {
    if !env.computes {
        return Ok(());
    }
    match got.iter().enumerate().find(|&(at, &x)| x != want(at)) {
        Some((at, x)) => Err(format!("{what}: element {at} is {x} instead of {}", want(at))),
        None => Ok(()),
    }
}

/// Pattern product whose published sum and weighted sum the oracle reproduces, then run on the device.
fn published(env: &Env, problem: &Problem, sum: f64, weighted: f64) -> Result {
    let (m, n) = (problem.m, problem.n);
    let c = PatternProduct::new(problem.k);
    let total: f64 = (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| c.at(i, j)).sum();
    if (total, weighted_sum(m, n, |i, j| c.at(i, j))) != (sum, weighted) {
        return Err("the oracle disagrees with the published sums".into());
    }
    problem.check(env)
}

/// A-01, burn#5626: odd number of stages along K.
fn burn_5626(env: &Env, backend: GemmBackend) -> Result {
    let slack = Place { pad: 5, ..Place::default() };
    let small = Problem { a: slack, b: slack, c: slack, ..Problem::new(16, 16, 104, F32, backend) };
    published(env, &small, 58_730.0, 2_998_955.0)?;
    for s in 1..34 {
        let p = Problem { a: slack, b: slack, c: slack, ..Problem::new(21, 35, 8 * s, F32, backend) };
        p.check(env)?;
        Problem { input: DType::Bf16, ..p }.check(env)?;
    }
    Ok(())
}

fn burn_5626_large(env: &Env, backend: GemmBackend) -> Result {
    published(env, &Problem::new(4096, 208, 104, F32, backend), 195_475_895.0, 9_773_712_717.0)?;
    published(env, &Problem::new(4096, 208, 208, F32, backend), 392_664_752.0, 19_633_080_126.0)?;
    published(env, &Problem::new(4096, 440, 440, F32, backend), 1_766_226_880.0, 88_311_122_475.0)
}

/// A-07, candle#3744: a broadcast operand of a batch.
fn candle_3744(env: &Env, backend: GemmBackend) -> Result {
    let rt = &env.rt;
    let l = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).map_err(text)?;
    let r = rt.from_slice(&(0..12u8).map(f32::from).collect::<Vec<_>>(), &[3, 2, 2]).map_err(text)?;
    let wide = l.broadcast_to(&[3, 2, 2]).map_err(text)?;
    let want = [4.0, 7.0, 8.0, 15.0, 16.0, 19.0, 36.0, 43.0, 28.0, 31.0, 64.0, 71.0];
    for a in [&l, &wide] {
        let c = rt.alloc_tensor_f32(&[3, 2, 2]).map_err(text)?;
        Gemm::new(a, &r, &c).backend(backend).run().map_err(text)?;
        equal(env, "left", &c.read().map_err(text)?, |at| want[at])?;
    }
    // The mirror: C^T = R^T L^T.
    let c = rt.alloc_tensor_f32(&[3, 2, 2]).map_err(text)?;
    let (rt_, lt, ct) = (r.t().map_err(text)?, wide.t().map_err(text)?, c.t().map_err(text)?);
    Gemm::new(&rt_, &lt, &ct).backend(backend).run().map_err(text)?;
    equal(env, "right", &c.read().map_err(text)?, |at| want[at])?;
    // The first form at its original size: 32 x 32 x 32.
    let shared = Place { shared: true, ..Place::default() };
    Problem { batch: Some(32), a: shared, ..Problem::new(32, 32, 32, F32, backend) }.check(env)
}

/// A-08, pytorch#189495: more matrices than a grid axis counts.
fn pt_189495(env: &Env, backend: GemmBackend) -> Result {
    let known: [(usize, [f32; 8]); 4] = [
        (0, [49., 94., -91., -41., -1., 54., 99., -86.]),
        (1, [48., 92., -89., -40., -1., 53., 97., -84.]),
        (65535, [-11., -26., 29., 19., -1., -6., -21., 34.]),
        (65536, [-12., -28., 31., 20., -1., -7., -23., 36.]),
    ];
    for batch in [65535usize, 65536, 65537, 80000] {
        let x: Vec<f32> = (0..batch * 4).map(|at| ((at / 4 + at % 4) % 97) as f32 - 48.0).collect();
        let w: Vec<f32> = (0..32).map(|at| ((at / 4 + 2 * (at % 4)) % 5) as f32 - 2.0).collect();
        let bias: Vec<f32> = (0..8u8).map(f32::from).collect();
        let reference =
            |b: usize, n: usize| -> f32 { (0..4).map(|k| x[b * 4 + k] * w[n * 4 + k]).sum::<f32>() + bias[n] };
        for (b, row) in known {
            if row.iter().enumerate().any(|(n, &want)| b < batch && reference(b, n) != want) {
                return Err(format!("the reference disagrees with the published row {b}"));
            }
        }
        let xt = env.rt.from_slice(&x, &[batch, 1, 4]).map_err(text)?;
        let wt = env.rt.from_slice(&w, &[8, 4]).and_then(|w| w.t()).map_err(text)?;
        let bt = env.rt.from_slice(&bias, &[8]).map_err(text)?;
        let c = env.rt.from_slice(&vec![f32::NAN; batch * 8], &[batch, 1, 8]).map_err(text)?;
        Gemm::new(&xt, &wt, &c).bias(&bt).backend(backend).run().map_err(text)?;
        equal(env, &format!("batch {batch}"), &c.read().map_err(text)?, |at| reference(at / 8, at % 8))?;
    }
    Ok(())
}

/// A-09, pytorch#111634: K = 1 with 268 million outputs.
fn pt_111634(env: &Env) -> Result {
    let (batch, m, n) = (911usize, 9, 32769);
    let a: Vec<f32> = (0..batch * m).map(|at| (at % 5) as f32).collect();
    let at = env.rt.from_slice(&a, &[batch, m, 1]).map_err(text)?;
    let b = env.rt.from_slice(&vec![1.0f32; n], &[1, n]).map_err(text)?;
    let c = env.rt.uninit(DType::F32, &[batch, m, n], BufferKind::Hot).map_err(text)?;
    Gemm::new(&at, &b, &c).run().map_err(text)?;
    let mut plane = vec![0.0f32; m * n];
    for x in 0..batch {
        c.select(0, x).and_then(|c| c.read_into(&mut plane)).map_err(text)?;
        equal(env, &format!("matrix {x}"), &plane, |at| a[x * m + at / n])?;
    }
    Ok(())
}

/// A-10, llama.cpp#27064: row strides of 2^16 and more.
fn llama_27064(env: &Env, backend: GemmBackend) -> Result {
    for stride in [65535usize, 65536, 65537, 131_072] {
        let mut data = vec![f32::NAN; 2 * stride + 4];
        for row in 0..3 {
            data[row * stride..][..4].fill(row as f32 + 1.0);
        }
        let flat = env.rt.from_slice(&data, &[data.len()]).map_err(text)?;
        let rows = flat.view(&[3, 4], &[stride, 1], 0).map_err(text)?;
        let ones = env.rt.from_slice(&[1.0f32; 8], &[2, 4]).map_err(text)?;
        let c = env.rt.from_slice(&[f32::NAN; 6], &[2, 3]).map_err(text)?;
        let rows_t = rows.t().map_err(text)?;
        Gemm::new(&ones, &rows_t, &c).backend(backend).run().map_err(text)?;
        equal(env, &format!("B, stride {stride}"), &c.read().map_err(text)?, |at| [4.0, 8.0, 12.0][at % 3])?;
        let d = env.rt.from_slice(&[f32::NAN; 6], &[3, 2]).map_err(text)?;
        let ones_t = ones.t().map_err(text)?;
        Gemm::new(&rows, &ones_t, &d).backend(backend).run().map_err(text)?;
        equal(env, &format!("A, stride {stride}"), &d.read().map_err(text)?, |at| [4.0, 8.0, 12.0][at / 2])?;
    }
    Ok(())
}

/// A-11, mlx#3591: operands whose offsets pass 2^31 and 2^32 elements.
fn mlx_3591(env: &Env, rows: usize) -> Result {
    let (ld, k) = (1usize << 30, 8);
    let flat = env.rt.uninit(DType::Bf16, &[(rows - 1) * ld + 64], BufferKind::Hot).map_err(text)?;
    let a = flat.view(&[rows, k], &[ld, 1], 0).map_err(text)?;
    let data: Vec<bf16> = (0..rows * k).map(|at| bf16::from_f32((at / k) as f32 + 1.0)).collect();
    a.write(&data).map_err(text)?;
    let ones = env.rt.from_slice(&vec![bf16::ONE; k], &[k, 1]).map_err(text)?;
    for backend in BACKENDS {
        let c = env.rt.from_slice(&vec![f32::NAN; rows], &[rows, 1]).map_err(text)?;
        Gemm::new(&a, &ones, &c).backend(backend).run().map_err(text)?;
        equal(env, "rows", &c.read().map_err(text)?, |at| 8.0 * (at as f32 + 1.0))?;
    }
    Ok(())
}

/// A-12, mlx#3797: both sides of a split-K threshold, at the published size.
fn mlx_3797(env: &Env) -> Result {
    let p = |m| Problem::new(m, 4096, 12288, BF16_F32, GemmBackend::TensorOps);
    published(env, &p(896), 100_491_957_888.0, 5_024_601_567_692.0)?;
    published(env, &p(1024), 114_865_178_948.0, 5_743_246_992_569.0)
}

/// A-13, pytorch#187521: beta = 0 must not read C.
fn pt_187521(env: &Env, backend: GemmBackend) -> Result {
    published(env, &Problem::new(17, 33, 65, F32, backend), 81_040.0, 4_081_648.0)?;
    for old in [f32::NAN, f32::INFINITY] {
        let one = env.rt.from_slice(&[1.0f32], &[1, 1]).map_err(text)?;
        let c = env.rt.from_slice(&[old], &[1, 1]).map_err(text)?;
        Gemm::new(&one, &one, &c).backend(backend).run().map_err(text)?;
        equal(env, "1x1x1", &c.read().map_err(text)?, |_| 1.0)?;
    }
    Ok(())
}

/// A-14, pytorch#31421: K = 0 gives zeros, or the bias.
fn pt_31421(env: &Env, backend: GemmBackend) -> Result {
    let rt = &env.rt;
    let (a, b) = (rt.alloc_tensor_f32(&[3, 2, 0]).map_err(text)?, rt.alloc_tensor_f32(&[3, 0, 3]).map_err(text)?);
    let bias = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3]).map_err(text)?;
    let c = rt.from_slice(&[7.0f32; 18], &[3, 2, 3]).map_err(text)?;
    Gemm::new(&a, &b, &c).backend(backend).run().map_err(text)?;
    equal(env, "zeros", &c.read().map_err(text)?, |_| 0.0)?;
    let op = Gemm::new(&a, &b, &c).backend(backend).bias(&bias).activation(Activation::Relu);
    op.run().map_err(text)?;
    equal(env, "bias", &c.read().map_err(text)?, |at| (at % 3) as f32 + 1.0)
}

/// A-15, mlx#2695: alpha and beta other than 0 and 1.
fn mlx_2695(env: &Env, backend: GemmBackend) -> Result {
    let want = [4.8f64, 11.1, 11.1, 36.3];
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let put = |data: &[f64], shape: &[usize]| -> Result<Tensor> {
            let t = env.rt.uninit(dtype, shape, BufferKind::Cold).map_err(text)?;
            crate::data::write_bytes(&t, &crate::data::encode(dtype, data.iter().copied()), None)?;
            Ok(t)
        };
        let a = put(&[0., 1., 2., 3., 4., 5.], &[2, 3])?;
        let c = put(&[1.0; 4], &[2, 2])?;
        let at = a.t().map_err(text)?;
        Gemm::new(&a, &at, &c).backend(backend).alpha(0.7).beta(1.3).run().map_err(text)?;
        let bytes = crate::data::read_bytes(&c)?;
        if env.computes {
            crate::data::compare(dtype, &bytes, &[2, 2], |i| (want[i], 5e-6))?;
        }
    }
    Ok(())
}

/// A-16, cutlass#818: bias and an added matrix together, M not a multiple of the tile.
fn cutlass_818(env: &Env, backend: GemmBackend) -> Result {
    let (m, n, k) = (100, 256, 256);
    let residual = |i: usize, j: usize| ((i + j) % 3) as f64 - 1.0;
    let table = PatternProduct::new(k);
    let exact = |i: usize, j: usize| table.at(i, j) + (j % 9) as f64 - 4.0 + residual(i, j);
    let sum: f64 = (0..m * n).map(|at| exact(at / n, at % n)).sum();
    if (sum, weighted_sum(m, n, exact)) != (14_577_047.0, 729_038_412.0) {
        return Err("the oracle disagrees with the published sums".into());
    }
    let f32s = |f: &dyn Fn(usize, usize) -> f64, rows: usize, columns: usize| -> Vec<f32> {
        #[allow(clippy::cast_possible_truncation)] // Small whole numbers.
        (0..rows * columns).map(|at| f(at / columns, at % columns) as f32).collect()
    };
    let rt = &env.rt;
    let a = rt.from_slice(&f32s(&tessl_oracle::pattern::pa, m, k), &[m, k]).map_err(text)?;
    let b = rt.from_slice(&f32s(&tessl_oracle::pattern::pb, k, n), &[k, n]).map_err(text)?;
    let c = rt.from_slice(&f32s(&residual, m, n), &[m, n]).map_err(text)?;
    let bias = rt.from_slice(&f32s(&|_, j| (j % 9) as f64 - 4.0, 1, n), &[n]).map_err(text)?;
    Gemm::new(&a, &b, &c).backend(backend).beta(1.0).bias(&bias).run().map_err(text)?;
    #[allow(clippy::cast_possible_truncation)] // Small whole numbers.
    equal(env, "C", &c.read().map_err(text)?, |at| exact(at / n, at % n) as f32)
}

/// A-22, nntrainer#3935: f16 rows whose squares pass the range of f16.
fn nntrainer_3935(env: &Env) -> Result {
    let run = |row: &[f32]| -> Result<Vec<f32>> {
        let half: Vec<f16> = row.iter().map(|&x| f16::from_f32(x)).collect();
        let n = half.len();
        let x = env.rt.from_slice(&half, &[1, n]).map_err(text)?;
        let w = env.rt.from_slice(&vec![f16::ONE; n], &[n]).map_err(text)?;
        let y = env.rt.from_slice(&vec![f16::NAN; n], &[1, n]).map_err(text)?;
        RmsNorm::new(&x, &w, &y).eps(1e-6).run().map_err(text)?;
        Ok(y.read::<f16>().map_err(text)?.iter().map(|v| v.to_f32()).collect())
    };
    for n in [8, 512, 4096] {
        equal(env, "1000 repeated", &run(&vec![1000.0; n])?, |_| 1.0)?;
    }
    let want = [0.816_496_6, -0.816_496_6, 1.632_993_2, 0.0].map(|x: f32| f16::from_f32(x).to_f32());
    equal(env, "[300, -300, 600, 0]", &run(&[300.0, -300.0, 600.0, 0.0])?, |at| want[at])
}

/// A-23, cutlass#1188: f16 products accumulate in f32.
fn cutlass_1188(env: &Env, backend: GemmBackend) -> Result {
    for k in [2048usize, 2049, 4096, 8192] {
        let a = env.rt.from_slice(&vec![f16::ONE; 16 * k], &[16, k]).map_err(text)?;
        let b = env.rt.from_slice(&vec![f16::ONE; 16 * k], &[k, 16]).map_err(text)?;
        let c = env.rt.alloc_tensor_f32(&[16, 16]).map_err(text)?;
        Gemm::new(&a, &b, &c).backend(backend).run().map_err(text)?;
        equal(env, "f32 output", &c.read().map_err(text)?, |_| k as f32)?;
        let c = env.rt.alloc_tensor_f16(&[16, 16]).map_err(text)?;
        Gemm::new(&a, &b, &c).backend(backend).run().map_err(text)?;
        let got: Vec<f32> = c.read::<f16>().map_err(text)?.iter().map(|v| v.to_f32()).collect();
        // 2049 lies between two f16 numbers and goes to the even one.
        equal(env, "f16 output", &got, |_| f16::from_f32(k as f32).to_f32())?;
    }
    Ok(())
}

/// A-24, tilelang#2481: conversions keep NaN a NaN, on the host and in the kernels' stores.
fn tilelang_2481(env: &Env, backend: GemmBackend) -> Result {
    let bits = [0x7FFF_8C22u32, 0x7F80_0001, 0xFFC0_0000, 0x7F80_0000, 0xFF80_0000, 0x8000_0000];
    let want = [None, None, None, Some(f32::INFINITY), Some(f32::NEG_INFINITY), Some(-0.0f32)];
    let right = |got: f32, want: Option<f32>| match want {
        None => got.is_nan(),
        Some(w) => got.to_bits() == w.to_bits(),
    };
    for (&bits, &want) in bits.iter().zip(&want) {
        let x = f32::from_bits(bits);
        let converted = [bf16::from_f32(x).to_f32(), f16::from_f32(x).to_f32()];
        if converted.iter().any(|&y| !right(y, want)) {
            return Err(format!("host conversion of {bits:08X} gives {converted:?}"));
        }
        let eighths = [tessl::float8::F8E4M3::from_f32(x).to_f32(), tessl::float8::F8E5M2::from_f32(x).to_f32()];
        if eighths.iter().any(|y| y.is_nan() != want.is_none()) {
            return Err(format!("fp8 conversion of {bits:08X} gives {eighths:?}"));
        }
    }
    // The store of a 16-bit C: the value comes from a bias in f32, so that its bits reach the conversion.
    let bias: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
    let bias = env.rt.from_slice(&bias, &[6]).map_err(text)?;
    let (a, b) = (env.rt.alloc_tensor_bf16(&[2, 0]).map_err(text)?, env.rt.alloc_tensor_bf16(&[0, 6]).map_err(text)?);
    let c = env.rt.alloc_tensor_bf16(&[2, 6]).map_err(text)?;
    Gemm::new(&a, &b, &c).bias(&bias).backend(backend).run().map_err(text)?;
    let got: Vec<f32> = c.read::<bf16>().map_err(text)?.iter().map(|x| x.to_f32()).collect();
    let wrong = got.iter().enumerate().find(|&(at, &x)| match want[at % 6] {
        // 0 + -0 is 0.
        Some(0.0) => x != 0.0,
        want => !right(x, want),
    });
    if let Some((at, x)) = wrong.filter(|_| env.computes) {
        return Err(format!("stored {:08X} as {x}", bits[at % 6]));
    }
    // In fp8 the infinities saturate.
    for (dtype, largest) in [(DType::F8E4M3, 448.0), (DType::F8E5M2, 57344.0)] {
        let zeros = |shape: &[usize]| env.rt.zeros(dtype, shape, BufferKind::Cold).map_err(text);
        let (a, b, c) = (zeros(&[2, 0])?, zeros(&[0, 6])?, zeros(&[2, 6])?);
        match Gemm::new(&a, &b, &c).bias(&bias).backend(backend).run() {
            Err(tessl::Error::Unsupported { .. }) => continue,
            outcome => outcome.map_err(text)?,
        }
        let stored = crate::data::read_bytes(&c)?;
        for (at, want) in (0..12).map(|at| (at, want[at % 6])).filter(|_| env.computes) {
            let got = crate::data::decode(dtype, &stored, at);
            let want = want.map(|w| f64::from(w).clamp(-largest, largest));
            if want.map_or(!got.is_nan(), |w| got != w) {
                return Err(format!("stored {:08X} in {dtype} as {got}", bits[at % 6]));
            }
        }
    }
    Ok(())
}

/// A-25, mlx#3656: f32 means f32.
fn mlx_3656(env: &Env, backend: GemmBackend) -> Result {
    let value = 1.0f32 + 2f32.powi(-12);
    for n in [1usize, 64] {
        let eye = |x: f32| -> Vec<f32> { (0..n * n).map(|at| if at / n == at % n { x } else { 0.0 }).collect() };
        let a = env.rt.from_slice(&eye(value), &[n, n]).map_err(text)?;
        let b = env.rt.from_slice(&eye(1.0), &[n, n]).map_err(text)?;
        let c = env.rt.from_slice(&vec![f32::NAN; n * n], &[n, n]).map_err(text)?;
        Gemm::new(&a, &b, &c).backend(backend).run().map_err(text)?;
        let want = eye(value);
        equal(env, "diagonal", &c.read().map_err(text)?, |at| want[at])?;
    }
    Ok(())
}

/// The batched call of the quickstart, with strides of the caller's.
fn batched_call(env: &Env, backend: GemmBackend) -> Result {
    let (m, n, k, batch) = (3usize, 5, 4, 6);
    let a: Vec<f32> = (0..batch * m * k).map(|x| (x % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|x| (x % 5) as f32 - 2.0).collect();
    let at = env.rt.from_slice(&a, &[batch * m, k]).and_then(|t| t.narrow(0, 0, m)).map_err(text)?;
    let bt = env.rt.from_slice(&b, &[k, n]).map_err(text)?;
    let c = env.rt.from_slice(&vec![f32::NAN; batch * m * n], &[batch * m, n]).map_err(text)?;
    let first = c.narrow(0, 0, m).map_err(text)?;
    gemm_batched(&at, &bt, &first, batch, BatchStrides::shared_b(m, n, k), backend, Epilogue::default())
        .map_err(text)?;
    let want = |at: usize| (0..k).map(|p| a[at / n * k + p] * b[p * n + at % n]).sum::<f32>();
    equal(env, "C", &c.read().map_err(text)?, want)?;
    let transposed = Place { transposed: true, ..Place::default() };
    let base = Problem::new(9, 9, 9, F32, backend);
    Problem { a: transposed, batch: Some(4), data: Data::Integers, ..base }.check(env)
}

/// Cases of this page.
pub(crate) fn cases() -> Vec<Case> {
    type Body = fn(&Env, GemmBackend) -> Result;
    let list: [(&str, u64, Body); 13] = [
        ("burn_5626", 16_000_000, burn_5626),
        ("burn_5626_large", 1_500_000_000, burn_5626_large),
        ("candle_3744", 1_100_000, candle_3744),
        ("pt_189495", 10_000_000, pt_189495),
        ("llama_27064", 1000, llama_27064),
        ("pt_187521", 40_000, pt_187521),
        ("pt_31421", 0, pt_31421),
        ("mlx_2695", 100, mlx_2695),
        ("cutlass_818", 7_000_000, cutlass_818),
        ("cutlass_1188", 9_000_000, cutlass_1188),
        ("tilelang_2481", 0, tilelang_2481),
        ("mlx_3656", 300_000, mlx_3656),
        ("batched_call", 10_000, batched_call),
    ];
    let mut cases = Vec::new();
    for (name, cost, body) in list {
        for backend in BACKENDS {
            let name = format!("known/{name}/{}", backend_name(backend));
            cases.push(Case::fixed(name, "gemm", cost, move |env| Outcome::from(body(env, backend))));
        }
    }
    cases.push(
        Case::fixed("known/nntrainer_3935", "rms_norm", 5000, |env| nntrainer_3935(env).into()).tagged(&["quick"]),
    );
    let published = |name, cost, body: fn(&Env) -> Result, tags| {
        Case::fixed(name, "gemm", cost, move |env| Outcome::from(body(env))).tagged(tags)
    };
    cases.push(published("known/mlx_3797", 96_700_000_000, mlx_3797, &["model"]));
    cases.push(published("known/pt_111634", 268_673_031, pt_111634, &["big"]));
    cases.push(published("known/mlx_3591_i32", 200_000_000, |env| mlx_3591(env, 3), &["big"]));
    cases.push(published("known/mlx_3591_u32", 200_000_000, |env| mlx_3591(env, 5), &["big"]));
    cases
}
