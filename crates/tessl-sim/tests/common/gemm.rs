//! GEMM cases on integer patterns.

use super::args::GemmArgs;
use super::{Buf, Elem, Target, block, ensure, integer};
use tessl_sim::{Launch, Schedule};

const TILE: [usize; 2] = [64, 64];

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    /// A and B stored transposed (their rows are then strided).
    pub transposed: [bool; 2],
    /// B has batch stride 0.
    pub broadcast: bool,
    pub alpha: f32,
    pub beta: f32,
    /// 0 none, 1 per column, 2 per row.
    pub bias: u32,
    pub bias_f32: bool,
    pub activation: u32,
}

pub const PLAIN: Case = Case {
    m: 1,
    n: 1,
    k: 1,
    batch: 1,
    transposed: [false, false],
    broadcast: false,
    alpha: 1.0,
    beta: 0.0,
    bias: 0,
    bias_f32: true,
    activation: 0,
};

/// A matrix in memory: strides, extent of one batch entry, elements in all.
struct Layout {
    rs: usize,
    cs: usize,
    bs: usize,
    size: usize,
}

/// Rows or columns padded by 3 elements, batch entries by 5; the last row has no padding behind it.
fn layout(rows: usize, cols: usize, transposed: bool, batch: usize) -> Layout {
    let (lines, line) = if transposed { (cols, rows) } else { (rows, cols) };
    let pitch = line + 3;
    let bs = lines * pitch + 5;
    let last = if lines == 0 || line == 0 { 0 } else { (lines - 1) * pitch + line };
    let (rs, cs) = if transposed { (1, pitch) } else { (pitch, 1) };
    Layout { rs, cs, bs, size: (batch - 1) * bs + last }
}

fn u(v: usize) -> u32 {
    u32::try_from(v).unwrap()
}

/// One case on integer patterns: `==` wherever the kernel's arithmetic is exact, with slack and canaries.
pub fn check<T: Elem, O: Elem>(target: Target, case: &Case, schedule: Schedule) -> Result<(), String> {
    let Case { m, n, k, batch, .. } = *case;
    let la = layout(m, k, case.transposed[0], batch);
    let lb = layout(k, n, case.transposed[1], if case.broadcast { 1 } else { batch });
    let lc = layout(m, n, false, batch);
    let b_bs = if case.broadcast { 0 } else { lb.bs };
    let bias_len = [0, n, m][case.bias as usize];

    // NaN everywhere except in the elements of the operands.
    let (mut a, mut b, mut c) = (Buf::<T>::new(la.size, 1), Buf::<T>::new(lb.size, 1), Buf::<O>::new(lc.size, 1));
    let mut bias32 = Buf::<f32>::filled(bias_len, 1, |i| integer(i, 4));
    let mut bias_out = Buf::<O>::filled(bias_len, 1, |i| integer(i, 4));
    for z in 0..batch {
        for i in 0..m {
            (0..k).for_each(|l| a.set(z * la.bs + i * la.rs + l * la.cs, integer((z * m + i) * k + l, 1)));
            if case.beta != 0.0 {
                (0..n).for_each(|j| c.set(z * lc.bs + i * lc.rs + j, integer((z * m + i) * n + j, 3)));
            }
        }
        for l in 0..k {
            (0..n).for_each(|j| b.set(z * b_bs + l * lb.rs + j * lb.cs, integer((z * k + l) * n + j, 2)));
        }
    }
    let old: Vec<f64> = (0..lc.size).map(|i| c.get(i).f64()).collect();

    let args = GemmArgs {
        a_rs: la.rs as u64,
        a_cs: la.cs as u64,
        a_bs: la.bs as u64,
        b_rs: lb.rs as u64,
        b_cs: lb.cs as u64,
        b_bs: b_bs as u64,
        c_rs: lc.rs as u64,
        c_bs: lc.bs as u64,
        m: u(m),
        n: u(n),
        k: u(k),
        batch: u(batch),
        tile_m: u(TILE[0]),
        tile_n: u(TILE[1]),
        tile_k: 16,
        tiles_m: u(m.div_ceil(TILE[0])),
        tiles_n: u(n.div_ceil(TILE[1])),
        bias: case.bias,
        activation: case.activation,
        alpha: case.alpha,
        beta: case.beta,
        bias_typed: u32::from(!case.bias_f32),
        ..GemmArgs::default()
    };
    let kernel = format!("gemm_simd_{}_{}", T::NAME, O::NAME);
    let bias = if case.bias_f32 { bias32.ptr() } else { bias_out.ptr() };
    let l = Launch {
        kernel: &kernel,
        constants: &[("BIAS_F32", f64::from(u8::from(case.bias_f32)))],
        grid: [args.batch * args.tiles_m * args.tiles_n, 1, 1],
        threads: 128,
        args: &[a.ptr(), b.ptr(), c.ptr(), bias, block(&args)],
        schedule,
    };
    // SAFETY: the buffers cover what `args` describes and outlive the call.
    unsafe { target.launch(&l) }.map_err(|e| format!("{case:?} {schedule:?}: {e}"))?;

    for z in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let at = z * lc.bs + i * lc.rs + j;
                let product = |l: usize| {
                    a.get(z * la.bs + i * la.rs + l * la.cs).f64() * b.get(z * b_bs + l * lb.rs + j * lb.cs).f64()
                };
                let mut t = f64::from(case.alpha) * (0..k).map(product).sum::<f64>();
                if case.beta != 0.0 {
                    t += f64::from(case.beta) * old[at];
                }
                if case.bias != 0 {
                    t += bias32.get(if case.bias == 1 { j } else { i }).f64();
                }
                let got = c.get(at);
                match activate(case.activation, t) {
                    (want, 0.0) => {
                        ensure!(got == O::of(want), "{case:?} {schedule:?} [{z}, {i}, {j}]: {got:?}, want {want}");
                    }
                    (want, bound) => {
                        let bound = bound + want.abs() * O::UNIT * 1.01 + 6e-8;
                        let error = (got.f64() - want).abs();
                        ensure!(error <= bound, "{case:?} [{z}, {i}, {j}]: act({t}) = {got:?}, want {want}");
                    }
                }
            }
        }
    }
    c.untouched("C", |i| i % lc.bs / lc.rs < m && i % lc.bs % lc.rs < n)
}

/// The activation in f64 and an absolute bound of the kernel's own error; 0 where it is exact.
fn activate(kind: u32, t: f64) -> (f64, f64) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let bound = t.abs() * 4e-7;
    match kind {
        0 => (t, 0.0),
        1 => (t.max(0.0), 0.0),
        2 => (t * sigmoid(t), bound),
        3 => (0.5 * t * erfc(-t / std::f64::consts::SQRT_2), bound + 1e-12),
        _ => (t * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (t + 0.044715 * t.powi(3))), bound),
    }
}

/// erfc by its Taylor series for small and its continued fraction for large arguments.
pub fn erfc(x: f64) -> f64 {
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for i in 1..200 {
            let i = f64::from(i);
            term *= -x * x / i;
            sum += term / (2.0 * i + 1.0);
        }
        return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
    }
    let y = x.abs();
    let fraction = (1..=200).rev().fold(y, |f, i| y + f64::from(i) / 2.0 / f);
    let tail = (-y * y).exp() / std::f64::consts::PI.sqrt() / fraction;
    if x > 0.0 { tail } else { 2.0 - tail }
}
