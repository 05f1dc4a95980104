//! activation.h against f64: the error bounds that its comments state, over all magnitudes of f32.

mod common;

use common::gemm::erfc;
use common::{Buf, Elem, Target, block, cannot_compile};
use tessl_sim::{Launch, Module, Schedule};

const TEXT: &str = r"
KERNEL(apply, 256, IN(float, x, 0), OUT(float, y, 1), ARGS(uint, which, 2)) {
  const uint i = gpu_tg.x * 256 + gpu_tid.x;
  if (which == 0) y[i] = sigmoid(x[i]);
  if (which == 1) y[i] = tanh_saturating(x[i]);
  if (which == 2) y[i] = erf_f32(x[i]);
  if (which == 3) y[i] = silu(x[i]);
  if (which == 4) y[i] = gelu_erf(x[i]);
  if (which == 5) y[i] = gelu_tanh(x[i]);
}
";

/// Every 2^14th float of both signs, then a dense stretch where the functions bend.
fn inputs() -> Vec<f32> {
    let sparse = (0..=0xffff_ffffu32).step_by(1 << 14).map(f32::from_bits).filter(|v| !v.is_nan());
    let mut all: Vec<f32> = sparse.chain((-30_000i16..=30_000).map(|i| f32::from(i) / 1250.0)).collect();
    all.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -150.0, -149.9, 0.927_734_4, -0.0]);
    all.resize(all.len().next_multiple_of(256), 0.0);
    all
}

/// Exact value and absolute bound.
fn exact(which: u32, x: f64) -> (f64, f64) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let erf = |x: f64| 1.0 - erfc(x);
    // Five roundings and an exponential of 4 ulp, relative; the argument of an exponential has errors of its own, here
    // five roundings, which the exponential multiplies by the argument.
    let relative = |v: f64, arg: f64| v.abs() * (10.0 + arg.abs()) * f32::UNIT + 1e-44;
    match which {
        0 => (sigmoid(x), relative(sigmoid(x), 0.0)),
        1 => (x.tanh(), 10.0 * f32::UNIT * x.tanh().abs()),
        2 => (erf(x), 1.2e-7),
        3 => (x * sigmoid(x), relative(x * sigmoid(x), 0.0)),
        4 => (0.5 * x * erfc(-x / std::f64::consts::SQRT_2), 1.2e-7 * x.abs() + 1e-44),
        _ => {
            let u2 = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            (x * sigmoid(u2), relative(x * sigmoid(u2), 5.0 * u2))
        }
    }
}

#[test]
fn bounds_of_activation_functions_hold() {
    if cannot_compile("bounds_of_activation_functions_hold") {
        return;
    }
    let module = Module::compile("activation", TEXT).unwrap_or_else(|e| panic!("{e}"));
    let inputs = inputs();
    for which in 0..6u32 {
        let mut x = Buf::<f32>::filled(inputs.len(), 0, |i| inputs[i].into());
        let mut y = Buf::<f32>::new(inputs.len(), 0);
        let l = Launch {
            kernel: "apply",
            constants: &[],
            grid: [u32::try_from(inputs.len() / 256).unwrap(), 1, 1],
            threads: 256,
            args: &[x.ptr(), y.ptr(), block(&which)],
            schedule: Schedule::Forward,
        };
        // SAFETY: both buffers hold 256 elements per threadgroup.
        unsafe { Target::Module(&module).launch(&l) }.unwrap();
        for (i, &v) in inputs.iter().enumerate() {
            let got = y.get(i).f64();
            if v.is_nan() {
                assert!(got.is_nan(), "function {which} of NaN: {got}");
                continue;
            }
            // In f64 too, infinity times zero would be NaN.
            let (want, bound) = match (which, f64::from(v)) {
                (3.., f64::NEG_INFINITY) => (0.0, 0.0),
                (3.., f64::INFINITY) => (f64::INFINITY, 0.0),
                (_, v) => exact(which, v),
            };
            // What is denormal on the way is exact to the last denormal only.
            let last = f64::from(f32::from_bits(1)) * f64::from(v).abs().max(1.0);
            let ok = got == want || (got - want).abs() <= bound + last;
            assert!(ok, "function {which} of {v:e}: {got:e}, want {want:e} within {bound:e}");
        }
    }
}
