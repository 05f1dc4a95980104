//! Many rows of x: blocks of weights are decoded into scratch memory in the type of x, then multiplied as dense matrices.
//!
//! A block has as many columns as fit [`DENSE_BYTES`], so that it is still in a cache when the product reads it. Without
//! a gate and a residual the dense product finishes the outputs itself; else it leaves f32 sums, which a last pass finishes.

use super::super::call::{Bound, KernelCall, KernelFn};
use super::super::convert::narrow;
use super::super::gemm;
use super::super::simd::{Simd, Task};
use super::finish::finish;
use super::operands::{DecodeFn, Operands, STRIP, Segment, Weights, address};
use crate::args::GemmArgs;
use crate::device::Isa;
use crate::dtype::DType;
use crate::gemm::{Activation, Bias, Factor, GemmBackend, GemmDesc, GemmExtras, Layout, Precision};
use crate::nn::{QuantDesc, QuantOp};
use crate::stream::Access;

/// Bytes of decoded weights, at most (some columns are always allowed).
const DENSE_BYTES: usize = 8 << 20;
/// Columns of a block: a multiple of this.
const UNIT: usize = 256;
/// Rows of weights of one chunk.
const CHUNK_ROWS: usize = 16;
/// Parts of the scratch memory start at multiples of this.
const ALIGN: usize = 4096;

/// Columns of a block of rows of `k` elements.
pub(in super::super) fn block_columns(k: u32, input: DType) -> usize {
    (DENSE_BYTES / (k.max(1) as usize * input.size())).max(UNIT) / UNIT * UNIT
}

/// Bytes of the decoded weights and of the sums of a block, and all that comes before the dense product's own scratch memory.
#[derive(Clone, Copy)]
struct Room {
    sums: usize,
    dense_scratch: usize,
}

impl Room {
    fn new(m: usize, widest: usize, k: usize, input: DType, parts: usize) -> Self {
        let block = block_columns(u32::try_from(k).unwrap_or(u32::MAX), input).min(widest.next_multiple_of(UNIT));
        let sums = (block * k * input.size()).next_multiple_of(ALIGN);
        let dense_scratch = (sums + parts * m * block * 4).next_multiple_of(ALIGN);
        Room { sums, dense_scratch }
    }
}

/// Matrices of f32 sums that a block needs: none where the dense product stores the outputs.
fn parts(gated: bool, residual: bool) -> usize {
    match (gated, residual) {
        (true, _) => 2,
        (false, true) => 1,
        (false, false) => 0,
    }
}

/// The dense product of one whole block.
pub(in super::super) fn dense(d: &QuantDesc) -> GemmDesc {
    let widest = d.n.into_iter().max().unwrap_or(0) as usize;
    let columns = block_columns(d.k, d.input).min(widest);
    let output = if parts(d.op == QuantOp::Glu, d.residual) > 0 { DType::F32 } else { d.output };
    GemmDesc {
        m: d.m,
        n: u32::try_from(columns).unwrap_or(u32::MAX),
        k: d.k,
        batch: 1,
        input: d.input,
        output,
        a: Layout::RowMajor,
        b: Layout::ColMajor,
        b_shared: true,
        a_align: d.align,
        b_align: 7,
        c_align: 7,
        alpha: Factor::One,
        beta: Factor::Zero,
        bias: Bias::None,
        activation: Activation::None,
        precision: Precision::Exact,
        backend: GemmBackend::TensorOps,
        extras: GemmExtras::default(),
    }
}

/// Scratch memory of a product whose dense product needs `dense` bytes.
pub(in super::super) fn scratch_bytes(d: &QuantDesc, dense: u64) -> u64 {
    let widest = d.n.into_iter().max().unwrap_or(0) as usize;
    let gated = d.op == QuantOp::Glu;
    let room = Room::new(d.m as usize, widest, d.k as usize, d.input, parts(gated, d.residual));
    room.dense_scratch as u64 + dense
}

/// Runs the product.
///
/// # Safety
/// The bindings are those of a product whose weights `decode` decodes, with scratch memory; the processor has `S` and `isa`.
pub(super) unsafe fn run<S: Simd>(call: &KernelCall<'_>, input: DType, isa: Isa, decode: DecodeFn) {
    let op = Operands::new(call, input, decode);
    let (m, k) = (op.args.m as usize, op.args.k as usize);
    let parts = parts(op.gated(), op.residual.is_some());
    let widest = op.segments().iter().map(|s| s.n).max().unwrap_or(0);
    let room = Room::new(m, widest, k, input, parts);
    let (scratch, bytes) = op.scratch.expect("INVARIANT: the plan asks for scratch memory");
    assert!(bytes >= room.dense_scratch, "scratch for decoded weights");
    let output = if parts > 0 { DType::F32 } else { op.output };
    let dense = gemm::blocked_kernel(input, output, isa);
    let columns = block_columns(op.args.k, input);
    for segment in op.segments() {
        for first in (0..segment.n).step_by(columns) {
            let block =
                Product { op: &op, segment, first, count: columns.min(segment.n - first), scratch, bytes, room };
            // SAFETY: forwarded; the block is inside the segment.
            unsafe {
                for part in 0..=usize::from(op.gated()) {
                    block.decode::<S>(call, part);
                    block.multiply(call, dense, part, parts > 0);
                }
                if parts > 0 {
                    block.finish::<S>(call);
                }
            }
        }
    }
}

/// One block of columns of an output.
#[derive(Clone, Copy)]
struct Product<'a> {
    op: &'a Operands<'a>,
    segment: &'a Segment,
    first: usize,
    count: usize,
    scratch: *mut u8,
    bytes: usize,
    room: Room,
}

// SAFETY: chunks write disjoint rows of the scratch memory and of the output.
unsafe impl Sync for Product<'_> {}

impl Product<'_> {
    /// Decodes the rows of matrix `part`.
    unsafe fn decode<S: Simd>(&self, call: &KernelCall<'_>, part: usize) {
        let (k, size) = (self.op.args.k as usize, self.op.input.size());
        call.pool().run(self.count.div_ceil(CHUNK_ROWS), &|chunk| {
            let all = self;
            let (row, rows) = (chunk * CHUNK_ROWS, CHUNK_ROWS.min(all.count - chunk * CHUNK_ROWS));
            let dst = all.scratch.wrapping_add(row * k * size);
            let weights = &all.segment.weights[part];
            let task = Decode { weights, row: all.first + row, rows, k, dst, dtype: all.op.input };
            // SAFETY: forwarded; chunks are disjoint.
            unsafe { S::vectorize(task) };
        });
    }

    /// The dense product with the decoded rows.
    unsafe fn multiply(&self, call: &KernelCall<'_>, dense: KernelFn, part: usize, sums_only: bool) {
        let (op, args) = (self.op, self.op.args);
        let (m, k) = (args.m as usize, args.k as usize);
        let bound = |ptr: *const u8, bytes: usize, access| Bound { ptr: ptr.cast_mut(), bytes, access };
        let bias = self.segment.bias[0].filter(|_| !sums_only);
        let c = if sums_only {
            bound(
                self.scratch.wrapping_add(self.room.sums + part * m * self.count * 4),
                m * self.count * 4,
                Access::Write,
            )
        } else {
            let at = self.segment.y.wrapping_add(self.first * op.output.size());
            bound(at, ((m - 1) * self.segment.y_rs + self.count) * op.output.size(), Access::Write)
        };
        let bias_at = bias.map_or(c.ptr.cast_const(), |b| b.wrapping_add(self.first * op.bias_dtype.size()));
        let x_bytes = ((m - 1) * address(args.x_rs) + k) * op.input.size();
        let own = self.room.dense_scratch;
        let mut bindings = vec![
            bound(op.x, x_bytes, Access::Read),
            bound(self.scratch, self.count * k * op.input.size(), Access::Read),
            c,
            bound(bias_at, self.count * op.bias_dtype.size(), Access::Read),
        ];
        if self.bytes > own {
            bindings.push(bound(self.scratch.wrapping_add(own), self.bytes - own, Access::Write));
        }
        let narrow = |n: usize| u32::try_from(n).expect("INVARIANT: sizes are checked");
        let args = GemmArgs {
            a_rs: args.x_rs,
            a_cs: 1,
            b_rs: 1,
            b_cs: k as u64,
            c_rs: if sums_only { self.count } else { self.segment.y_rs } as u64,
            m: args.m,
            n: narrow(self.count),
            k: args.k,
            batch: 1,
            tile_m: args.tile_m,
            tile_n: args.tile_n,
            tile_k: args.tile_k,
            tiles_m: args.m.div_ceil(args.tile_m),
            tiles_n: narrow(self.count).div_ceil(args.tile_n),
            bias: u32::from(bias.is_some()),
            bias_typed: args.bias_typed,
            activation: if sums_only { 0 } else { args.activation },
            alpha: 1.0,
            ..GemmArgs::default()
        };
        let inner =
            KernelCall { args: bytemuck::bytes_of(&args), bindings: &bindings, pool: call.pool, fault: call.fault };
        // SAFETY: the bindings hold the matrices that the arguments describe.
        unsafe { dense(&inner) };
    }

    /// Turns the sums of the block into rows of the output.
    unsafe fn finish<S: Simd>(&self, call: &KernelCall<'_>) {
        call.pool().run(self.op.args.m as usize, &|row| {
            let all = self;
            // SAFETY: forwarded; rows are disjoint.
            unsafe { S::vectorize(Finish { block: all, row }) };
        });
    }
}

/// Rows of weights in the type of x.
struct Decode<'a> {
    weights: &'a Weights,
    row: usize,
    rows: usize,
    k: usize,
    dst: *mut u8,
    dtype: DType,
}

impl Task for Decode<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut strip = [0.0f32; STRIP];
        let size = self.dtype.size();
        for row in 0..self.rows {
            for at in (0..self.k).step_by(STRIP) {
                let count = STRIP.min(self.k - at);
                // SAFETY: forwarded.
                unsafe {
                    self.weights.decode(self.row + row, at, count, strip.as_mut_ptr());
                    narrow::<S>(strip.as_ptr(), self.dst.add((row * self.k + at) * size), self.dtype, count);
                }
            }
        }
    }
}

/// One row of a block.
struct Finish<'a> {
    block: &'a Product<'a>,
    row: usize,
}

impl Task for Finish<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let b = self.block;
        let m = b.op.args.m as usize;
        // SAFETY: forwarded; the sums of each part are `[m][count]`.
        unsafe {
            let sums = |part: usize| {
                let at = b.scratch.add(b.room.sums).cast::<f32>().add((part * m + self.row) * b.count);
                std::slice::from_raw_parts_mut(at, b.count)
            };
            finish::<S>(b.op, b.segment, self.row, b.first, sums(0), b.op.gated().then(|| sums(1)));
        }
    }
}
