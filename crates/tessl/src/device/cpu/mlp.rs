//! Activations, plain and gated: `y = act(x)` and `out = act(gate) * up`.
//!
//! Kernels are `activate_{dtype}_{isa}` and `glu_{dtype}_{isa}`; bindings x, y and gate, up, out.

use super::call::KernelCall;
use super::gemm::activation::activate;
use super::registry::Builtin;
use super::rows::{Function, for_each_isa, map_kernels};
use crate::args::MapArgs;
use crate::gemm::Activation;

#[cfg(test)]
mod tests;

#[derive(Clone, Copy)]
struct Plain(Activation);

impl Function for Plain {
    const INPUTS: usize = 1;
    #[inline(always)]
    fn apply(self, x: &mut [f32], _: &[f32]) {
        activate(x, self.0);
    }
}

#[derive(Clone, Copy)]
struct Gated(Activation);

impl Function for Gated {
    const INPUTS: usize = 2;
    #[inline(always)]
    fn apply(self, gate: &mut [f32], up: &[f32]) {
        activate(gate, self.0);
        for (g, u) in gate.iter_mut().zip(up) {
            *g *= u;
        }
    }
}

fn activation(call: &KernelCall<'_>) -> Activation {
    let code = call.args::<MapArgs>().mode;
    Activation::from_code(code).expect("INVARIANT: encoded from an Activation")
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        map_kernels! { "mlp", $isa, $which, $s;
            "activate_f32", F32 => F32, |call| Plain(activation(call));
            "activate_f16", F16 => F16, |call| Plain(activation(call));
            "activate_bf16", Bf16 => Bf16, |call| Plain(activation(call));
            "glu_f32", F32 => F32, |call| Gated(activation(call));
            "glu_f16", F16 => F16, |call| Gated(activation(call));
            "glu_bf16", Bf16 => Bf16, |call| Gated(activation(call));
        }
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
