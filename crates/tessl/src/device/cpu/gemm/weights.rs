//! Weights packed at load time: every panel of every matrix, one after the other.
//!
//! `pack_{input}_{isa}`; bindings B, up (B again where there is none), the packed memory. Panels are those of the blocked
//! kernel of the same input and instruction set.

use super::super::call::KernelCall;
use super::columns::{Columns, PACK_PANELS, PackedB};
use super::micro::Micro;
use super::operands::{address, operand_type};
use super::pack::Source;
use crate::args::PackArgs;
use crate::dtype::DType;

/// Packs for tiles of `M`.
///
/// # Safety
/// The bindings hold the matrices that the arguments describe; the processor has `M`'s instructions.
pub(super) unsafe fn run<M: Micro>(call: &KernelCall<'_>, input: DType) {
    let args: &PackArgs = call.args();
    let dtype = operand_type(input, args.b_type);
    let source = |i: usize, step: u64, lane: u64, matrix: u64| {
        let matrix = address(matrix) * dtype.size();
        let source = Source { ptr: call.binding(i).ptr, dtype, lane: address(lane), step: address(step) };
        // Sources are Sync, the closure is not unless it holds the whole of one.
        move |z: usize| {
            let source = &source;
            Source { ptr: source.ptr.wrapping_add(z * matrix), ..*source }
        }
    };
    let (b, up) = (source(0, args.b_rs, args.b_cs, args.b_bs), source(1, args.u_rs, args.u_cs, args.u_bs));
    let (n, k, gated) = (args.n as usize, args.k as usize, args.gated != 0);
    let columns = |z: usize| Columns { b: b(z), up: gated.then(|| up(z)), n };
    let panels = n.div_ceil(columns(0).of_panel::<M>());
    let to = PackedB::new::<M>(call.binding(2).ptr, k.next_multiple_of(M::STEP), panels);
    let chunks = panels.div_ceil(PACK_PANELS);
    call.pool().run(args.batch as usize * chunks, &|chunk| {
        let (z, first) = (chunk / chunks, chunk % chunks * PACK_PANELS);
        // SAFETY: forwarded; chunks pack disjoint panels.
        unsafe { columns(z).pack::<M>(to.matrix(z), 0, first..panels.min(first + PACK_PANELS), 0..k) };
    });
}
