//! The stand-in for Metal Performance Primitives: numbers of a ragged product, and the mistakes that it must report.

mod common;

use common::{Buf, Elem, SCHEDULES, Target, block, cannot_compile, integer};
use half::f16;
use tessl_sim::{Launch, Module};

/// C[m, n] = relu(A[m, k] B[n, k]^T + bias[n]), one 64 x 32 tile for each of four simdgroups' threadgroup.
const TEXT: &str = r"
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;
struct Sizes { int m; int n; int k; };

KERNEL(product, 128, IN(half, a, 0), IN(half, b, 1), IN(half, bias, 2), OUT(float, c, 3), ARGS(Sizes, p, 4)) {
  constexpr int TM = 64, TN = 32;
  constexpr auto shape = matmul2d_descriptor(TM, TN, static_cast<int>(dynamic_extent), false, true, false);
  matmul2d<shape, execution_simdgroups<4>> op;
  auto ta = tensor<device half, dextents<int32_t, 2>, tensor_inline>((device half*)a, dextents<int32_t, 2>(p.k, p.m));
  auto tb = tensor<device half, dextents<int32_t, 2>, tensor_inline>((device half*)b, dextents<int32_t, 2>(p.k, p.n));
  auto tc = tensor<device float, dextents<int32_t, 2>, tensor_inline>(c, dextents<int32_t, 2>(p.n, p.m));
  const int m0 = int(gpu_tg.y) * TM, n0 = int(gpu_tg.x) * TN;
  auto ma = ta.slice(0, m0);
  auto mb = tb.slice(0, n0);
  auto mc = tc.slice(n0, m0);
  auto acc = op.get_destination_cooperative_tensor<decltype(ma), decltype(mb), float>();
  op.run(ma, mb, acc);
  for (ushort i = 0; i < acc.get_capacity(); ++i) {
    if (!acc.is_valid_element(i)) continue;
    auto at = acc.get_multidimensional_index(i);
    float v = acc[i];
    if (n0 + at[0] < p.n) v += float(bias[n0 + at[0]]);
    acc[i] = relu(v);
  }
  acc.store(mc);
}
";

fn run(module: &Module) -> Result<(), String> {
    let (m, n, k) = (100usize, 75usize, 40usize);
    for schedule in SCHEDULES {
        let mut a = Buf::<f16>::filled(m * k, 0, |i| integer(i, 1));
        let mut b = Buf::<f16>::filled(n * k, 0, |i| integer(i, 2));
        let mut bias = Buf::<f16>::filled(n, 0, |i| integer(i, 3));
        let mut c = Buf::<f32>::new(m * n, 0);
        let sizes = [m, n, k].map(|v| u32::try_from(v).unwrap());
        let l = Launch {
            kernel: "product",
            constants: &[],
            grid: [3, 2, 1],
            threads: 128,
            args: &[a.ptr(), b.ptr(), bias.ptr(), c.ptr(), block(&sizes)],
            schedule,
        };
        // SAFETY: the buffers have the sizes passed and outlive the call.
        unsafe { Target::Module(module).launch(&l) }?;
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k).map(|l| a.get(i * k + l).f64() * b.get(j * k + l).f64()).sum();
                let want = (sum + bias.get(j).f64()).max(0.0);
                let got = c.get(i * n + j).f64();
                common::ensure!(got == want, "[{i}, {j}]: {got}, want {want}");
            }
        }
        c.untouched("C", |_| true)?;
    }
    Ok(())
}

fn outcome(from: &str, to: &str) -> Result<(), String> {
    assert!(TEXT.contains(from));
    run(&Module::compile("matmul2d", &TEXT.replacen(from, to, 1))?)
}

#[test]
fn a_ragged_product_is_exact() {
    if !cannot_compile("a_ragged_product_is_exact") {
        outcome("", "").unwrap();
    }
}

#[test]
fn wrong_uses_are_errors() {
    if cannot_compile("wrong_uses_are_errors") {
        return;
    }
    for (from, to, message) in [
        ("if (!acc.is_valid_element(i)) continue;", "", "invalid element"),
        ("execution_simdgroups<4>", "execution_simdgroups<2>", "N differs from the threadgroup"),
        ("bias[n0 + at[0]]", "bias[n0 + at[1]]", "want"),
        ("op.run(ma, mb, acc)", "op.run(ta.slice(0, m0), mb, acc)", "error:"),
    ] {
        let error = outcome(from, to).expect_err(to);
        assert!(error.contains(message), "{to}: {error}");
    }
}
