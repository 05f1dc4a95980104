//! Queries, keys and values of a few tokens; kernels/simt/qkv.metal has the formulas.
//!
//! Kernels are `norm_qkv_rope_few_{isa}` and `norm_qkv_rope_dot_avx512`, by the product they use (`quant/`). Bindings are those of
//! the GPU kernel, then scratch memory: rows after the norm, sines and cosines of each row, sums of the products, all f32.

use super::cache::{Fault, Slots};
use super::call::{Bound, KernelCall, KernelFn};
use super::convert::{narrow, widen};
use super::norm::squares;
use super::quant::{self, dtype};
use super::registry::Builtin;
use super::rope::{half_split, interleaved, turn};
use super::rows::for_each_isa;
use super::simd::{Simd, Task};
use crate::args::{NormQkvRopeArgs, QuantArgs};
#[cfg(target_arch = "x86_64")]
use crate::device::Isa;
use crate::dtype::DType;
use crate::nn::NormQkvRope;
use crate::stream::Access;

const MAX_DIM: usize = NormQkvRope::MAX_HEAD_DIM;
/// Elements that one thread finishes alone.
const ALONE: usize = 8 << 10;

/// Bindings.
const ADDED: usize = 2;
const POST: usize = 3;
const WEIGHTS: usize = 4;
const BIASES: usize = 13;
const HEAD_NORMS: usize = 16;
const FREQUENCIES: usize = 18;
const STARTS: usize = 19;
const TABLE: usize = 20;
const OUTPUTS: usize = 21;
const SUM: usize = 24;
const SCRATCH: usize = 25;

/// f32 numbers of scratch memory: rows after the norm, angles, sums.
fn parts(m: usize, k: usize, dims: usize, columns: usize) -> [usize; 3] {
    [m * k, m * dims, m * columns]
}

/// Bytes of scratch memory.
pub(super) fn scratch_bytes(m: u32, k: u32, dims: u32, columns: u64) -> u64 {
    4 * u64::from(m) * (u64::from(k) + u64::from(dims) + columns)
}

/// The product of the rows after the norm with all three matrices.
type Product = unsafe fn(&KernelCall<'_>, u32);

/// One call.
struct Heads<'a> {
    call: &'a KernelCall<'a>,
    args: &'a NormQkvRopeArgs,
    dtype: DType,
    norm: DType,
    bias: DType,
    rows: *mut f32,
    angles: *mut f32,
    sums: *mut f32,
}

// SAFETY: threads write disjoint rows of the scratch memory and disjoint heads of the outputs.
unsafe impl Sync for Heads<'_> {}

#[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
impl<'a> Heads<'a> {
    fn new(call: &'a KernelCall<'a>) -> Self {
        let args: &NormQkvRopeArgs = call.args();
        let [m, k, dims, columns] = [args.m, args.k, args.dims, columns(args)].map(|n| n as usize);
        let scratch = call.binding(SCRATCH);
        let [rows, angles, sums] = parts(m, k, dims, columns);
        assert!((rows + angles + sums) * 4 <= scratch.bytes && args.dim as usize <= MAX_DIM, "scratch of {m} rows");
        let base = scratch.ptr.cast::<f32>();
        Heads {
            call,
            args,
            dtype: dtype(args.x_type),
            norm: dtype(args.norm_type),
            bias: dtype(args.bias.saturating_sub(1)),
            rows: base,
            angles: base.wrapping_add(rows),
            sums: base.wrapping_add(rows + angles),
        }
    }

    /// Sequence and token of a row.
    fn split(&self, row: usize) -> [u64; 2] {
        let tokens = self.args.tokens as usize;
        [(row / tokens) as u64, (row % tokens) as u64]
    }

    fn position(&self, [b, t]: [u64; 2]) -> u64 {
        let a = self.args;
        // SAFETY: there is a first position for each sequence.
        let read =
            || unsafe { self.call.binding(STARTS).ptr.cast::<u32>().add((b * a.start_s) as usize).read_unaligned() };
        (if a.start_known != 0 { a.start } else { read().into() }) + t
    }

    /// Sequence, page or token where keys and values of a row go.
    fn place(&self, row: usize) -> Result<[u64; 2], Fault> {
        let (a, at) = (self.args, self.split(row));
        if a.cached == 0 {
            return Ok(at);
        }
        let table = self.call.binding(TABLE).ptr.cast_const().cast();
        let (table_s, tokens, ring, capacity) = (a.table_s, a.tokens, a.ring != 0, a.capacity);
        let slots = Slots { table, table_s, tokens, ring, capacity, page: a.page, pages: a.pages, width: a.width };
        slots.place(at, self.position(at))
    }

    /// The first element of a row of an operand.
    fn at(&self, binding: usize, strides: [u64; 3], index: [u64; 3]) -> *mut u8 {
        let offset: u64 = strides.iter().zip(index).map(|(s, i)| s * i).sum();
        self.call.binding(binding).ptr.wrapping_add(offset as usize * self.dtype.size())
    }

    /// What the norm multiplies a row with.
    ///
    /// # Safety
    /// `x` has k elements of `dtype`.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss)] // Exact up to 2^24; above, the error is that of one rounding.
    unsafe fn scale<S: Simd>(&self, x: *const u8, dtype: DType) -> f32 {
        let k = self.args.k;
        // SAFETY: forwarded.
        1.0 / (unsafe { squares::<S>(x, dtype, k as usize) } / k as f32 + self.args.eps).sqrt()
    }

    /// Multiplies up to [`RUN`] values with `scale` and with the elements of a norm's weight from `start` on.
    ///
    /// # Safety
    /// `weight` has that many elements.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(&self, weight: *const u8, start: usize, values: &mut [f32], scale: f32) {
        let mut weights = [0.0f32; RUN];
        // SAFETY: forwarded.
        unsafe {
            widen::<S>(weight.add(start * self.norm.size()), self.norm, weights.as_mut_ptr(), values.len());
        }
        for (v, w) in values.iter_mut().zip(&weights) {
            *v *= scale * (w + self.args.weight_offset);
        }
    }

    /// The products, from the rows after the norm to the sums.
    fn multiply(&self, product: Product) {
        let a = self.args;
        let columns = u64::from(columns(a));
        let [n0, n1] = [a.heads, a.kv_heads].map(|h| h * a.dim);
        let args = QuantArgs {
            x_rs: a.k.into(),
            y0_rs: columns,
            y1_rs: columns,
            y2_rs: columns,
            row: a.row,
            m: a.m,
            n0,
            n1,
            n2: n1,
            k: a.k,
            group: a.group,
            factors: a.factors,
            matrices: 3,
            tile_m: a.m,
            tile_n: a.tile_n,
            tile_k: a.tile_k,
            ..QuantArgs::default()
        };
        let bytes = |numbers: u64| numbers as usize * 4;
        let of = |ptr: *mut f32, count: u64, access| Bound { ptr: ptr.cast(), bytes: bytes(count), access };
        let sums = |from: u32, n: u32| {
            let first = self.sums.wrapping_add(from as usize);
            of(first, u64::from(a.m - 1) * columns + u64::from(n), Access::Write)
        };
        // x, weights, no biases, no residual, outputs.
        let mut bindings = [of(self.rows, u64::from(a.m) * u64::from(a.k), Access::Read); 17];
        for (i, binding) in bindings[1..10].iter_mut().enumerate() {
            *binding = self.call.binding(WEIGHTS + i);
        }
        bindings[14..].copy_from_slice(&[sums(0, n0), sums(n0, n1), sums(n0 + n1, n1)]);
        let (pool, fault) = (self.call.pool, self.call.fault);
        let inner = KernelCall { args: bytemuck::bytes_of(&args), bindings: &bindings, pool, fault };
        // SAFETY: the bindings are those of a product of three matrices, as the arguments describe.
        unsafe { product(&inner, a.weights) };
    }
}

fn columns(a: &NormQkvRopeArgs) -> u32 {
    (a.heads + 2 * a.kv_heads) * a.dim
}

/// A row after the norm, and the sines and cosines of its position.
struct Prepare<'a> {
    heads: &'a Heads<'a>,
    row: usize,
}

impl Task for Prepare<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (h, a) = (self.heads, self.heads.args);
        let (k, [b, t]) = (a.k as usize, h.split(self.row));
        let out = h.rows.wrapping_add(self.row * k);
        let x = h.at(0, [a.x_b, a.x_t, 0], [b, t, 0]);
        let binding = |i: usize| h.call.binding(i).ptr.cast_const();
        // SAFETY: the row is inside every operand, and the weights of norms have k elements.
        unsafe {
            let runs = || (0..k).step_by(RUN).map(|start| (start, RUN.min(k - start)));
            let mut from = x;
            if a.residual != 0 {
                let (added, size) = (h.at(ADDED, [a.a_b, a.a_t, 0], [b, t, 0]), h.dtype.size());
                let (sum, own) = (h.at(SUM, [a.s_b, a.s_t, 0], [b, t, 0]), h.scale::<S>(added, h.dtype));
                let (mut values, mut old) = ([0.0f32; RUN], [0.0f32; RUN]);
                for (start, count) in runs() {
                    widen::<S>(added.add(start * size), h.dtype, values.as_mut_ptr(), count);
                    h.weigh::<S>(binding(POST), start, &mut values[..count], own);
                    widen::<S>(x.add(start * size), h.dtype, old.as_mut_ptr(), count);
                    for (v, x) in values.iter_mut().zip(&old) {
                        *v += x;
                    }
                    narrow::<S>(values.as_ptr(), sum.add(start * size), h.dtype, count);
                }
                from = sum;
            }
            let own = h.scale::<S>(from, h.dtype);
            for (start, count) in runs() {
                let values = std::slice::from_raw_parts_mut(out.add(start), count);
                widen::<S>(from.add(start * h.dtype.size()), h.dtype, values.as_mut_ptr(), count);
                h.weigh::<S>(binding(1), start, values, own);
            }
            let (pairs, position) = (a.dims as usize / 2, h.position([b, t]));
            let angles = h.angles.add(2 * self.row * pairs);
            let frequencies = binding(FREQUENCIES).cast::<u64>();
            for i in 0..pairs {
                let [sine, cosine] = turn(position.wrapping_mul(frequencies.add(i).read_unaligned()));
                (*angles.add(i), *angles.add(pairs + i)) = (sine, cosine);
            }
        }
    }
}

/// Elements converted at once.
const RUN: usize = 256;

/// One head of a row, from its sums to where it is stored.
struct Finish<'a> {
    heads: &'a Heads<'a>,
    row: usize,
    head: usize,
}

impl Task for Finish<'_> {
    #[inline(always)]
    #[allow(clippy::cast_precision_loss)] // A head has at most 512 elements.
    unsafe fn run<S: Simd>(self) {
        let (h, a) = (self.heads, self.heads.args);
        let (heads, kv_heads, dim) = (a.heads as usize, a.kv_heads as usize, a.dim as usize);
        // Which of q, k and v, and which of its heads.
        let (part, head) = match self.head {
            at if at < heads => (0, at),
            at if at < heads + kv_heads => (1, at - heads),
            at => (2, at - heads - kv_heads),
        };
        let at = if part == 0 { Ok(h.split(self.row)) } else { h.place(self.row) };
        let Ok([outer, slot]) = at else { return };
        let strides = [[a.q_b, a.q_t, a.q_h], [a.k_b, a.k_t, a.k_h], [a.v_b, a.v_t, a.v_h]][part];
        let out = h.at(OUTPUTS + part, strides, [outer, slot, head as u64]);
        let sums = h.sums.wrapping_add(self.row * columns(a) as usize + self.head * dim);
        let mut other = [0.0f32; MAX_DIM];
        // SAFETY: the head is inside sums and output, its weights and biases inside theirs.
        unsafe {
            let values = std::slice::from_raw_parts_mut(sums, dim);
            if a.bias != 0 {
                let bias = h.call.binding(BIASES + part).ptr.add(head * dim * h.bias.size());
                widen::<S>(bias, h.bias, other.as_mut_ptr(), dim);
                for (v, b) in values.iter_mut().zip(&other) {
                    *v += b;
                }
            }
            if part < 2 {
                if a.head_norm != 0 {
                    let scale = 1.0 / (squares::<S>(sums.cast(), DType::F32, dim) / dim as f32 + a.eps).sqrt();
                    widen::<S>(h.call.binding(HEAD_NORMS + part).ptr, h.norm, other.as_mut_ptr(), dim);
                    for (v, w) in values.iter_mut().zip(&other) {
                        *v *= scale * (w + a.weight_offset);
                    }
                }
                let pairs = a.dims as usize / 2;
                let angles = std::slice::from_raw_parts(h.angles.add(2 * self.row * pairs), 2 * pairs);
                let (sines, cosines) = angles.split_at(pairs);
                let pointer = sums.cast::<u8>();
                if a.interleaved != 0 {
                    interleaved::<S>(pointer, pointer, DType::F32, sines, cosines);
                } else {
                    half_split::<S>(pointer, pointer, DType::F32, sines, cosines);
                }
            }
            narrow::<S>(sums, out, h.dtype, dim);
        }
    }
}

/// One launch on vectors of `S`.
unsafe fn norm_qkv_rope<S: Simd>(call: &KernelCall<'_>, product: Product) {
    let heads = Heads::new(call);
    let (m, all) = (heads.args.m as usize, (heads.args.heads + 2 * heads.args.kv_heads) as usize);
    let each = |count: usize, elements: usize, body: &(dyn Fn(usize) + Sync)| {
        if elements <= ALONE {
            (0..count).for_each(body);
        } else {
            call.pool().run(count, body);
        }
    };
    // SAFETY: rows are disjoint.
    each(m, m * heads.args.k as usize, &|row| unsafe { S::vectorize(Prepare { heads: &heads, row }) });
    heads.multiply(product);
    if let Some((kind, index, value)) = (0..m).find_map(|row| heads.place(row).err()) {
        call.fault(kind, index, value);
    }
    let finish = |at: usize| {
        // SAFETY: heads are disjoint.
        unsafe { S::vectorize(Finish { heads: &heads, row: at / all, head: at % all }) };
    };
    each(m * all, m * columns(heads.args) as usize, &finish);
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels!(concat!("norm_qkv_rope_few_", $isa), $which, $s, quant::few::<$s>)
    };
    ($name:expr, $which:expr, $s:ty, $product:expr) => {
        &[{
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { norm_qkv_rope::<$s>(call, $product) }
            }
            Builtin { module: "qkv", name: $name, isa: $which, function: entry as KernelFn }
        }]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);

/// With the product that needs VNNI, and does without where it is missing.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: &[&[Builtin]] =
    &[kernels!("norm_qkv_rope_dot_avx512", Isa::Avx512, super::simd::Avx512, quant::dot)];

/// No such kernel on other architectures.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const NATIVE: &[&[Builtin]] = &[];
