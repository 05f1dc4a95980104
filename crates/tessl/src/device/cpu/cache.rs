//! New tokens into caches, and rings in order; kernels/simt/cache.metal has the formulas.
//!
//! Kernels are `kv_store_{bits}_{isa}` (bindings k, v, first positions, table, caches of k and v) and
//! `ring_densify_{bits}_{isa}` (ring, first positions, out); copies are the same on every instruction set.
//! `kv_store_coded_{dtype}_{isa}` has scales of k and v behind the caches (`codes.rs`).

mod codes;

use super::call::{KernelCall, KernelFn};
use super::registry::Builtin;
use super::rows::{Part, for_each_isa, for_each_part};
use crate::args::CacheArgs;
use crate::dtype::DType;
use crate::error::FaultKind;

pub(super) use codes::rows_of_chunk;

/// What a kernel reports.
pub(super) type Fault = (FaultKind, u64, i64);

/// How a cache keeps tokens.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    pub(super) table: *const u32,
    pub(super) table_s: u64,
    /// New tokens of each sequence.
    pub(super) tokens: u32,
    pub(super) ring: bool,
    pub(super) capacity: u32,
    /// Tokens of a page, 0 without pages.
    pub(super) page: u32,
    pub(super) pages: u32,
    pub(super) width: u32,
}

impl Slots {
    /// Sequence or page, and slot, of new token t of sequence b at `position`; or what is wrong.
    #[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
    pub(super) fn place(&self, [b, t]: [u64; 2], position: u64) -> Result<[u64; 2], Fault> {
        let position = if self.ring { position % u64::from(self.capacity) } else { position };
        if position >= u64::from(self.capacity) {
            return Err((FaultKind::CacheOverflow, b * u64::from(self.tokens) + t, position.cast_signed()));
        }
        if self.page == 0 {
            return Ok([b, position]);
        }
        let i = position / u64::from(self.page);
        // SAFETY: the table has a place for each page of a sequence.
        let page = unsafe { self.table.add((b * self.table_s + i) as usize).read_unaligned() };
        if page >= self.pages {
            return Err((FaultKind::IndexOutOfRange, b * u64::from(self.width) + i, page.into()));
        }
        Ok([page.into(), position % u64::from(self.page)])
    }
}

#[derive(Clone, Copy)]
struct Cache<'a> {
    args: &'a CacheArgs,
    size: usize,
    starts: *const u32,
    table: *const u32,
    /// Rows of tokens and rows of the cache, of one operand or two.
    sides: [(*mut u8, *mut u8); 2],
}

// SAFETY: threads write disjoint rows, which are apart from what is read.
unsafe impl Sync for Cache<'_> {}

#[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
impl Cache<'_> {
    /// Sequence, token and head of a row.
    fn split(&self, row: u64) -> [u64; 3] {
        let (heads, tokens) = (u64::from(self.args.heads), u64::from(self.args.tokens));
        [row / heads / tokens, row / heads % tokens, row % heads]
    }

    /// Where token t of a sequence is kept; or what is wrong.
    fn place(&self, b: u64, t: u64) -> Result<[u64; 2], Fault> {
        let a = self.args;
        // SAFETY: there is a first position for each sequence.
        let read = || unsafe { self.starts.add((b * a.start_s) as usize).read_unaligned() };
        let start = if a.start_known != 0 { a.start } else { read().into() };
        let (table, table_s, tokens) = (self.table, a.table_s, a.tokens);
        let (ring, capacity) = (a.ring != 0, a.capacity);
        let slots = Slots { table, table_s, tokens, ring, capacity, page: a.page, pages: a.pages, width: a.width };
        slots.place([b, t], start + t)
    }

    /// Copies a part of the rows of one side, into the cache or out of it.
    unsafe fn copy(&self, part: Part, side: usize, into: bool) {
        let (a, size) = (self.args, self.size);
        let (rows, cache) = self.sides[side];
        let strides = if side == 0 {
            ([a.a_b, a.a_t, a.a_h], [a.c_b, a.c_t, a.c_h])
        } else {
            ([a.b_b, a.b_t, a.b_h], [a.d_b, a.d_t, a.d_h])
        };
        for row in part.row..part.row + part.rows {
            let [b, t, h] = self.split(row);
            let Ok([outer, slot]) = self.place(b, t) else { continue };
            let at = |[x, y, z]: [u64; 3], index: [u64; 3]| {
                ((x * index[0] + y * index[1] + z * index[2]) as usize + part.column) * size
            };
            // SAFETY: both rows are inside their operands.
            unsafe {
                let (token, kept) = (rows.add(at(strides.0, [b, t, h])), cache.add(at(strides.1, [outer, slot, h])));
                let (from, to) = if into { (token, kept) } else { (kept, token) };
                std::ptr::copy_nonoverlapping(from, to, part.columns * size);
            }
        }
    }
}

/// A store, after the first token without a place has been reported.
fn reported<'a>(call: &KernelCall<'a>, size: usize) -> Cache<'a> {
    let args: &CacheArgs = call.args();
    let p = |i: usize| call.binding(i).ptr;
    let all = Cache { args, size, starts: p(2).cast(), table: p(3).cast(), sides: [(p(0), p(4)), (p(1), p(5))] };
    let tokens = args.rows / u64::from(args.heads);
    let of = |i: u64| all.place(i / u64::from(args.tokens), i % u64::from(args.tokens));
    // A number that the host knows has been checked, unless it leads into pages.
    if (args.start_known == 0 || args.page != 0)
        && let Some((kind, index, value)) = (0..tokens).find_map(|i| of(i).err())
    {
        call.fault(kind, index, value);
    }
    all
}

unsafe fn store(call: &KernelCall<'_>, size: usize) {
    let (args, all): (&CacheArgs, _) = (call.args(), reported(call, size));
    let sides = usize::from(args.vectors > args.vectors_of_one) + 1;
    for_each_part(call, args.rows, args.n, &|part| {
        let all = &all;
        // SAFETY: forwarded; parts are disjoint.
        (0..sides).for_each(|side| unsafe { all.copy(part, side, true) });
    });
}

unsafe fn densify(call: &KernelCall<'_>, size: usize) {
    let args: &CacheArgs = call.args();
    let p = |i: usize| call.binding(i).ptr;
    let all = Cache { args, size, starts: p(1).cast(), table: std::ptr::null(), sides: [(p(2), p(0)); 2] };
    for_each_part(call, args.rows, args.n, &|part| {
        let all = &all;
        // SAFETY: forwarded; parts are disjoint.
        unsafe { all.copy(part, 0, false) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s;
            "kv_store_16" |call| store(call, 2), "kv_store_32" |call| store(call, 4),
            "kv_store_coded_f32" |call| codes::store::<$s>(call, DType::F32),
            "kv_store_coded_f16" |call| codes::store::<$s>(call, DType::F16),
            "kv_store_coded_bf16" |call| codes::store::<$s>(call, DType::Bf16),
            "ring_densify_8" |call| densify(call, 1), "ring_densify_16" |call| densify(call, 2),
            "ring_densify_32" |call| densify(call, 4) }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal |$call:ident| $body:expr),*) => {
        &[$({
            unsafe fn entry($call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { $body }
            }
            Builtin { module: "cache", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
