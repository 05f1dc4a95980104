//! The bindings and arguments of a product, as the kernels use them.

use super::super::call::KernelCall;
use super::epilogue::{Epilogue, Vector};
use super::pack::Source;
use crate::args::GemmArgs;
use crate::dtype::DType;
use crate::gemm::Activation;

/// One call: sizes, operands and what happens to the sums.
#[derive(Clone, Copy)]
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
    /// Bytes between matrices of up.
    u_bs: usize,
    /// Bytes between matrices of the residual.
    r_bs: usize,
    a: Source,
    b: Source,
    up: Source,
    /// B and up are two matrices.
    pub(super) gated: bool,
    /// B is in the kernels' order.
    pub(super) packed: bool,
    /// The matrix of packed weights to begin with.
    pub(super) first_matrix: usize,
    pub(super) groups: Option<Groups>,
    pub(super) blocks: Option<Blocks>,
    epilogue: Epilogue,
}

/// Bounds of groups of rows.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub(super) count: usize,
    pub(super) offsets: *const u32,
}

// SAFETY: only read.
unsafe impl Sync for Groups {}

/// Scales of blocks: of A `[m][ceil(k / 128)]`, of B `[ceil(k / 128)][ceil(n / 128)]`.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) a: *const f32,
    pub(super) b: *const f32,
}

// SAFETY: only read.
unsafe impl Sync for Blocks {}

/// Strides and sizes fit the address space, because the operands do.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn address(x: u64) -> usize {
    debug_assert!(usize::try_from(x).is_ok());
    x as usize
}

/// The type of an operand: types of 8 bits share kernels, and the arguments tell them apart.
pub(super) fn operand_type(kernel: DType, short: u32) -> DType {
    match (kernel.size(), short) {
        (1, 0) => DType::I8,
        (1, 1) => DType::U8,
        (1, 2) => DType::F8E4M3,
        (1, _) => DType::F8E5M2,
        _ => kernel,
    }
}

/// Operands in front of the scratch memory: plain products have four.
const PLAIN: usize = 4;
/// Up, scales of rows and columns, residual, offsets, scales of blocks of A and B.
const EXTRA: usize = 7;

impl Operands {
    /// Reads the call: bindings A, B, C, the bias, and [`EXTRA`] ones where the product goes beyond the plain formula (C in
    /// place of each that there is not), then scratch memory if the plan asked for it.
    ///
    /// # Safety
    /// The bindings hold the matrices that the arguments describe, in these element types.
    pub(super) unsafe fn new(call: &KernelCall<'_>, input: DType, output: DType) -> (Self, Option<(*mut u8, usize)>) {
        let args: &GemmArgs = call.args();
        let output = operand_type(output, args.c_type);
        let extended = call.len() >= PLAIN + EXTRA;
        let at = if extended { PLAIN + EXTRA } else { PLAIN };
        let scratch = (call.len() > at).then(|| (call.binding(at).ptr, call.binding(at).bytes));
        let extra = |i: usize| if extended { call.binding(PLAIN + i).ptr } else { std::ptr::null_mut() };
        let (a_type, b_type) = (operand_type(input, args.a_type), operand_type(input, args.b_type));
        let source =
            |ptr: *mut u8, dtype, lane: u64, step: u64| Source { ptr, dtype, lane: address(lane), step: address(step) };
        let vector = |ptr: *mut u8, typed: u32| Vector {
            ptr: if typed == 0 { std::ptr::null() } else { ptr },
            dtype: if typed == 2 { output } else { DType::F32 },
        };
        let bias_typed = if args.bias == 0 { 0 } else { 1 + args.bias_typed };
        let epilogue = Epilogue {
            c: call.binding(2).ptr,
            c_rs: address(args.c_rs),
            output,
            whole: input == DType::I8,
            alpha: if args.k == 0 { 1.0 } else { args.alpha },
            beta: args.beta,
            bias_axis: args.bias,
            bias: vector(call.binding(3).ptr, bias_typed),
            row_scale: vector(extra(1), args.row_scale),
            col_scale: vector(extra(2), args.col_scale),
            residual: if args.residual == 0 { std::ptr::null() } else { extra(3) },
            r_rs: address(args.r_rs),
            gated: args.gated != 0,
            up: args.n as usize,
            activation: Activation::from_code(args.activation).unwrap_or(Activation::None),
            stream: false,
        };
        let op = Operands {
            m: args.m as usize,
            n: args.n as usize,
            k: args.k as usize,
            batch: args.batch as usize,
            tile: (args.tile_m as usize, args.tile_n as usize, args.tile_k as usize),
            a_bs: address(args.a_bs) * a_type.size(),
            b_bs: address(args.b_bs) * b_type.size(),
            c_bs: address(args.c_bs) * output.size(),
            u_bs: address(args.u_bs) * b_type.size(),
            r_bs: address(args.r_bs) * output.size(),
            a: source(call.binding(0).ptr, a_type, args.a_rs, args.a_cs),
            b: source(call.binding(1).ptr, b_type, args.b_cs, args.b_rs),
            up: source(extra(0), b_type, args.u_cs, args.u_rs),
            gated: args.gated != 0,
            packed: args.packed != 0,
            first_matrix: 0,
            groups: (args.groups > 0).then(|| Groups { count: args.groups as usize, offsets: extra(4).cast() }),
            blocks: (args.block_scales > 0).then(|| Blocks { a: extra(5).cast(), b: extra(6).cast() }),
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

    /// Up of matrix `z`.
    pub(super) fn up(&self, z: usize) -> Source {
        Source { ptr: self.up.ptr.wrapping_add(z * self.u_bs), ..self.up }
    }

    /// The epilogue for C of matrix `z`, in tiles of `cols` columns.
    pub(super) fn epilogue(&self, z: usize, cols: usize) -> Epilogue {
        let (c, residual) = (self.epilogue.c, self.epilogue.residual);
        let residual = if residual.is_null() { residual } else { residual.wrapping_add(z * self.r_bs) };
        Epilogue { c: c.wrapping_add(z * self.c_bs), residual, ..self.epilogue }.for_size(self.m * self.n, cols)
    }

    /// The product of the rows of one group with matrix `g`.
    pub(super) fn group(&self, g: usize, first: usize, rows: usize) -> Self {
        let a = Source { ptr: self.a.at(first, 0).cast_mut(), ..self.a };
        // Packed weights have no strides to follow.
        let (b, up) = if self.packed { (self.b, self.up) } else { (self.b(g), self.up(g)) };
        Operands {
            m: rows,
            a,
            b,
            up,
            first_matrix: g,
            groups: None,
            epilogue: self.epilogue.starting_at_row(first),
            ..*self
        }
    }
}
