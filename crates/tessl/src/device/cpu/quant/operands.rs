//! The bindings and arguments of a product with quantised weights, and how its weights are decoded.

use super::super::call::KernelCall;
use super::super::convert::{element, widen};
use super::super::simd::{Simd, Task};
use crate::args::QuantArgs;
use crate::dtype::DType;
use crate::quant::Code;
use crate::quant::formats::f16_to_f32;
#[cfg(target_arch = "x86_64")]
use crate::quant::rows16::{MAX_BLOCK, ROWS};
use std::marker::PhantomData;

/// Weights decoded at once: a multiple of the run of every code.
pub(super) const STRIP: usize = 256;

/// One quantised matrix: rows of codes and of factors, packed.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) biases: *const u8,
    /// Bytes of a row of codes.
    pub(super) row: usize,
    /// Groups of a row.
    pub(super) groups: usize,
    /// Weights of a group.
    pub(super) group: usize,
    pub(super) factors: DType,
    pub(super) decode: DecodeFn,
}

// SAFETY: only read.
unsafe impl Sync for Weights {}

impl Weights {
    /// Bindings `first` to `first + 2` hold the codes, scales and biases of rows of `k` weights.
    pub(super) fn new(
        call: &KernelCall<'_>,
        first: usize,
        [k, row]: [usize; 2],
        [group, factors]: [u32; 2],
        decode: DecodeFn,
    ) -> Self {
        let pointer = |i: usize| call.binding(first + i).ptr.cast_const();
        let group = group as usize;
        Weights {
            codes: pointer(0),
            scales: pointer(1),
            biases: pointer(2),
            row,
            groups: k / group,
            group,
            factors: dtype(factors),
            decode,
        }
    }

    /// Decodes `count` weights of row `row` from weight `start` on; both are multiples of the run of the code.
    ///
    /// # Safety
    /// The row has these weights, and `out` room for them; the processor has the instructions of `decode`.
    #[inline(always)]
    pub(super) unsafe fn decode(&self, row: usize, start: usize, count: usize, out: *mut f32) {
        // SAFETY: forwarded.
        unsafe { (self.decode)(self, row, start, count, out) }
    }

    #[inline(always)]
    unsafe fn factor(&self, array: *const u8, at: usize) -> f32 {
        // SAFETY: forwarded.
        unsafe {
            match self.factors {
                DType::F16 => f16_to_f32(array.cast::<u16>().add(at).read_unaligned()),
                other => element(array.add(at * other.size()), other),
            }
        }
    }
}

/// Decodes some weights of a row, with one instruction set: the kernels that call it are compiled once for all formats.
pub(super) type DecodeFn = unsafe fn(&Weights, usize, usize, usize, *mut f32);

/// [`Weights::decode`] for the code `C` on vectors of `S`.
pub(super) unsafe fn decode<S: Simd, C: Code>(w: &Weights, row: usize, start: usize, count: usize, out: *mut f32) {
    // SAFETY: forwarded.
    unsafe { S::vectorize(Decode::<C> { weights: w, row, start, count, out, code: PhantomData }) }
}

/// Decodes dense weights: f32, f16 or bf16, by the numbers of argument blocks behind those of the codes.
pub(super) fn dense<S: Simd>(number: u32) -> DecodeFn {
    match dtype(number - 12) {
        DType::F16 => widen_f16::<S>,
        DType::Bf16 => widen_bf16::<S>,
        _ => widen_f32::<S>,
    }
}

macro_rules! dense {
    ($($name:ident $dtype:ident),*) => {$(
        unsafe fn $name<S: Simd>(w: &Weights, row: usize, start: usize, count: usize, out: *mut f32) {
            // SAFETY: forwarded.
            unsafe { widen_row::<S>(w, DType::$dtype, [row, start, count], out) }
        }
    )*};
}

dense! { widen_f32 F32, widen_f16 F16, widen_bf16 Bf16 }

/// # Safety
/// As [`Weights::decode`]; the rows are dense, of `dtype`.
unsafe fn widen_row<S: Simd>(w: &Weights, dtype: DType, [row, start, count]: [usize; 3], out: *mut f32) {
    // SAFETY: forwarded.
    unsafe { S::vectorize(Widen { from: w.codes.add(row * w.row + start * dtype.size()), dtype, count, out }) }
}

struct Widen {
    from: *const u8,
    dtype: DType,
    count: usize,
    out: *mut f32,
}

impl Task for Widen {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        unsafe { widen::<S>(self.from, self.dtype, self.out, self.count) }
    }
}

/// The same where sixteen rows lie side by side ([`Rows16`](crate::QLayout::Rows16)), for codes of blocks of 32.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn decode_rows16<S: Simd, C: Code>(
    w: &Weights,
    row: usize,
    start: usize,
    count: usize,
    out: *mut f32,
) {
    // SAFETY: forwarded.
    unsafe { S::vectorize(DecodeRows16::<C>(Decode { weights: w, row, start, count, out, code: PhantomData })) }
}

#[cfg(target_arch = "x86_64")]
struct DecodeRows16<'a, C>(Decode<'a, C>);

#[cfg(target_arch = "x86_64")]
impl<C: Code> Task for DecodeRows16<'_, C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Decode { weights: w, row, start, count, out, .. } = self.0;
        let parts = C::ROWS16.expect("INVARIANT: a kernel of a format that lies so");
        let (mut block, sixteen) = ([0u8; MAX_BLOCK], ROWS * C::BYTES);
        for at in (0..count).step_by(C::RUN) {
            // SAFETY: forwarded: the rows of this sixteen have the block.
            unsafe {
                let place = w.codes.add(row / ROWS * ROWS * w.row + (start + at) / C::RUN * sixteen);
                parts.take(std::slice::from_raw_parts(place, sixteen), row % ROWS, &mut block[..C::BYTES]);
                C::unpack(&block[..C::BYTES], [0.0; 2], std::slice::from_raw_parts_mut(out.add(at), C::RUN));
            }
        }
    }
}

struct Decode<'a, C> {
    weights: &'a Weights,
    row: usize,
    start: usize,
    count: usize,
    out: *mut f32,
    code: PhantomData<C>,
}

impl<C: Code> Task for Decode<'_, C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Decode { weights: w, row, start, count, out, .. } = self;
        debug_assert!(start.is_multiple_of(C::RUN) && count.is_multiple_of(C::RUN));
        for at in (0..count).step_by(C::RUN) {
            let run = (start + at) / C::RUN;
            // SAFETY: forwarded.
            unsafe {
                let codes = std::slice::from_raw_parts(w.codes.add(row * w.row + run * C::BYTES), C::BYTES);
                let weights = std::slice::from_raw_parts_mut(out.add(at), C::RUN);
                let mut factors = [0.0; 2];
                if C::FACTORS > 0 {
                    let group = row * w.groups + (start + at) / w.group;
                    factors[0] = w.factor(w.scales, group);
                    if C::FACTORS > 1 {
                        factors[1] = w.factor(w.biases, group);
                    }
                }
                C::unpack(codes, factors, weights);
            }
        }
    }
}

/// Element types by the numbers of argument blocks.
pub(in super::super) fn dtype(code: u32) -> DType {
    match code {
        1 => DType::F16,
        2 => DType::Bf16,
        _ => DType::F32,
    }
}

/// One output: the matrix (or two, gated) it comes from, and its place.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) weights: [Weights; 2],
    pub(super) bias: [Option<*const u8>; 2],
    pub(super) y: *mut u8,
    pub(super) y_rs: usize,
    pub(super) n: usize,
}

/// One call.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) args: &'a QuantArgs,
    pub(super) x: *const u8,
    pub(super) input: DType,
    pub(super) output: DType,
    pub(super) bias_dtype: DType,
    pub(super) residual: Option<*const u8>,
    pub(super) segments: [Segment; 3],
    /// Outputs.
    pub(super) count: usize,
    pub(super) scratch: Option<(*mut u8, usize)>,
}

// SAFETY: threads write disjoint parts of the outputs and only read the rest.
unsafe impl Sync for Operands<'_> {}

/// Strides and sizes fit the address space, because the operands do.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn address(x: u64) -> usize {
    x as usize
}

impl<'a> Operands<'a> {
    /// Reads the call; the weights are decoded by `decode`.
    pub(super) fn new(call: &KernelCall<'a>, input: DType, decode: DecodeFn) -> Self {
        let args: &QuantArgs = call.args();
        let gated = args.gated != 0;
        let matrices = args.matrices as usize;
        let count = if gated { 1 } else { matrices };
        let output = dtype(args.output);
        let weights = |i: usize| {
            let sizes = [args.k as usize, address(args.row)];
            Weights::new(call, 1 + 3 * i, sizes, [args.group, args.factors], decode)
        };
        let bias = |i: usize| (args.bias >> i & 1 != 0).then(|| call.binding(1 + 3 * matrices + i).ptr.cast_const());
        let after = 1 + 4 * matrices;
        let sizes = [args.n0, args.n1, args.n2].map(|n| n as usize);
        let strides = [args.y0_rs, args.y1_rs, args.y2_rs].map(address);
        let segment = |i: usize| {
            let i = i.min(count - 1);
            let second = if gated { 1 } else { i };
            Segment {
                weights: [weights(i), weights(second)],
                bias: [bias(i), bias(second)],
                y: call.binding(after + 1 + i).ptr,
                y_rs: strides[i],
                n: sizes[i],
            }
        };
        let last = after + 1 + count;
        Operands {
            args,
            x: call.binding(0).ptr,
            input,
            output,
            bias_dtype: if args.bias_typed == 0 { DType::F32 } else { output },
            residual: (args.residual != 0).then(|| call.binding(after).ptr.cast_const()),
            segments: [segment(0), segment(1), segment(2)],
            count,
            scratch: (call.len() > last).then(|| (call.binding(last).ptr, call.binding(last).bytes)),
        }
    }

    /// Whether the output is `act(first) * second`.
    pub(super) fn gated(&self) -> bool {
        self.args.gated != 0
    }

    /// The outputs.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments[..self.count]
    }

    /// The segment that tile `tile` belongs to, and the number of the tile in it; tiles of `columns` columns.
    pub(super) fn place(&self, mut tile: usize, columns: usize) -> (&Segment, usize) {
        for segment in self.segments() {
            let tiles = segment.n.div_ceil(columns);
            if tile < tiles {
                return (segment, tile);
            }
            tile -= tiles;
        }
        unreachable!("INVARIANT: there are as many tiles as `tiles` counts")
    }

    /// Tiles of all segments.
    pub(super) fn tiles(&self, columns: usize) -> usize {
        self.segments().iter().map(|s| s.n.div_ceil(columns)).sum()
    }
}
