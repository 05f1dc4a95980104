//! The kernels built into the CPU device.

use super::call::KernelFn;
use super::{
    attention, cache, elementwise, embed, experts, gemm, mlp, movement, norm, qkv, quant, reduce, rope, sample,
};
use crate::device::Isa;

/// One kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Builtin {
    /// File stem.
    pub(super) module: &'static str,
    /// Entry point.
    pub(super) name: &'static str,
    /// What it needs.
    pub(super) isa: Isa,
    /// The code.
    pub(super) function: KernelFn,
}

/// Every kernel compiled for this architecture.
pub(super) fn builtins() -> impl Iterator<Item = &'static Builtin> {
    let products = [gemm::BUILTINS, gemm::NATIVE];
    let others = [
        attention::BUILTINS,
        cache::BUILTINS,
        elementwise::BUILTINS,
        elementwise::COPIES,
        embed::BUILTINS,
        mlp::BUILTINS,
        experts::BUILTINS,
        movement::BUILTINS,
        movement::SCATTER,
        norm::BUILTINS,
        norm::LAYER,
        norm::QK,
        qkv::BUILTINS,
        qkv::NATIVE,
        quant::BUILTINS,
        quant::NATIVE,
        reduce::BUILTINS,
        rope::BUILTINS,
        sample::TOP_K,
        sample::SAMPLE,
    ];
    products.into_iter().chain(others).flatten().copied().flatten()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = super::builtins().map(|b| (b.module, b.name)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
