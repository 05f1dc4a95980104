//! The bindings and arguments of a product, as the kernels use them.

use super::super::call::KernelCall;
use super::epilogue::Epilogue;
use super::pack::Source;
use crate::args::GemmArgs;
use crate::dtype::DType;
use crate::gemm::Activation;

/// One call: sizes, operands and what happens to the sums.
pub(super) struct Operands {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) batch: usize,
    pub(super) tile: (usize, usize, usize),
    /// Bytes between matrices of A.
    a_bs: usize,
    /// Bytes between matrices of B.
    pub(super) b_bs: usize,
    /// Bytes between matrices of C.
    c_bs: usize,
    a: Source,
    b: Source,
    epilogue: Epilogue,
}

/// Strides and sizes fit the address space, because the operands do.
#[allow(clippy::cast_possible_truncation)]
fn address(x: u64) -> usize {
    debug_assert!(usize::try_from(x).is_ok());
    x as usize
}

impl Operands {
    /// Reads the call: bindings A, B, C, the bias (C again where there is none), and scratch memory if the plan asked
    /// for it.
    ///
    /// # Safety
    /// The bindings hold the matrices that the arguments describe, in these element types.
    pub(super) unsafe fn new(call: &KernelCall<'_>, input: DType, output: DType) -> (Self, Option<(*mut u8, usize)>) {
        let args: &GemmArgs = call.args();
        let bias = call.binding(3).ptr.cast_const();
        let scratch = (call.len() > 4).then(|| (call.binding(4).ptr, call.binding(4).bytes));
        let source = |i: usize, lane: u64, step: u64| Source {
            ptr: call.binding(i).ptr,
            dtype: input,
            lane: address(lane),
            step: address(step),
        };
        let epilogue = Epilogue {
            c: call.binding(2).ptr,
            c_rs: address(args.c_rs),
            output,
            alpha: if args.k == 0 { 1.0 } else { args.alpha },
            beta: args.beta,
            bias_axis: args.bias,
            bias,
            bias_dtype: if args.bias_typed == 0 { DType::F32 } else { output },
            activation: Activation::from_code(args.activation).unwrap_or(Activation::None),
            stream: false,
        };
        let op = Operands {
            m: args.m as usize,
            n: args.n as usize,
            k: args.k as usize,
            batch: args.batch as usize,
            tile: (args.tile_m as usize, args.tile_n as usize, args.tile_k as usize),
            a_bs: address(args.a_bs) * input.size(),
            b_bs: address(args.b_bs) * input.size(),
            c_bs: address(args.c_bs) * output.size(),
            a: source(0, args.a_rs, args.a_cs),
            b: source(1, args.b_cs, args.b_rs),
            epilogue,
        };
        (op, scratch)
    }

    /// A of matrix `z`: lanes are rows.
    pub(super) fn a(&self, z: usize) -> Source {
        Source { ptr: self.a.ptr.wrapping_add(z * self.a_bs), ..self.a }
    }

    /// B of matrix `z`: lanes are columns.
    pub(super) fn b(&self, z: usize) -> Source {
        Source { ptr: self.b.ptr.wrapping_add(z * self.b_bs), ..self.b }
    }

    /// The epilogue for C of matrix `z`.
    pub(super) fn epilogue(&self, z: usize) -> Epilogue {
        Epilogue { c: self.epilogue.c.wrapping_add(z * self.c_bs), ..self.epilogue }.for_size(self.m * self.n)
    }
}
