//! Tokens from logits.

use super::super::call::{KernelCall, KernelFn};
use super::super::gemm::activation::{exp, tanh};
use super::super::reduce::{HELD, LANES, halve, larger, load_block, max_of};
use super::super::registry::Builtin;
use super::super::rows::{for_each_isa, row_offset};
use super::super::simd::{Simd, Task};
use super::{order_key, philox};
use crate::args::SampleArgs;
use crate::dtype::DType;
use crate::error::FaultKind;

/// Blocks of a row, at most: rows have 2^21 elements or fewer.
const BLOCKS: usize = (1 << 21) / HELD;
/// Digits of a key, from the top: bits below a digit, and its width.
const DIGITS: [(u32, u32); 3] = [(21, 11), (10, 11), (0, 10)];
const BINS: usize = 1 << 11;

/// Operands that the pool's threads share.
#[derive(Clone, Copy)]
struct Operands<'a, 'c> {
    call: &'a KernelCall<'c>,
    args: &'a SampleArgs,
    dtype: DType,
    row: u64,
}

/// The parameters of one row.
#[derive(Clone, Copy)]
struct Params {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    penalty: f32,
    seed: [u32; 2],
    position: u32,
}

/// What is kept: keys above this one, and of those that have it the indices up to `last`.
#[derive(Clone, Copy)]
struct Limit {
    key: u32,
    last: u32,
}

impl Limit {
    const ALL: Limit = Limit { key: 0, last: u32::MAX };

    #[inline(always)]
    fn keeps(self, key: u32, i: u32) -> bool {
        key > self.key || (key == self.key && i <= self.last)
    }
}

/// One row of scores.
#[derive(Clone, Copy)]
struct Scores<'a> {
    x: *const u8,
    dtype: DType,
    n: usize,
    /// Bits of the tokens that were there before; empty where nothing is penalised.
    seen: &'a [u32],
    softcap: f32,
    inverse_softcap: f32,
    penalty: f32,
    inverse_temperature: f32,
}

impl Scores<'_> {
    /// Calls `body(first index, scores)` for each block of the row.
    #[inline(always)]
    fn for_each<S: Simd>(&self, held: &mut [f32; HELD], mut body: impl FnMut(usize, &[f32])) {
        for start in (0..self.n).step_by(HELD) {
            let count = self.block::<S>(start, held);
            body(start, &held[..count]);
        }
    }

    /// The block at `start`; -infinity beyond the row, up to a multiple of [`LANES`].
    #[inline(always)]
    fn block<S: Simd>(&self, start: usize, held: &mut [f32; HELD]) -> usize {
        // SAFETY: x has n elements.
        unsafe { load_block::<S>(self.x, self.dtype, start, self.n, f32::NEG_INFINITY, held) };
        let count = HELD.min(self.n - start);
        let row = &mut held[..count];
        if self.softcap > 0.0 {
            for t in row.iter_mut() {
                *t = self.softcap * tanh(*t * self.inverse_softcap);
            }
        }
        if !self.seen.is_empty() {
            for (i, t) in row.iter_mut().enumerate() {
                let at = start + i;
                if self.seen[at / 32] >> (at % 32) & 1 != 0 {
                    *t = if *t > 0.0 { *t / self.penalty } else { *t * self.penalty };
                }
            }
        }
        if self.inverse_temperature != 1.0 {
            for t in row.iter_mut() {
                *t *= self.inverse_temperature;
            }
        }
        count
    }

    /// The largest score and its first index; the first NaN before all numbers.
    #[inline(always)]
    fn largest<S: Simd>(&self, held: &mut [f32; HELD]) -> (f32, usize) {
        let (mut most, mut place) = (f32::NEG_INFINITY, 0);
        for start in (0..self.n).step_by(HELD) {
            let used = self.block::<S>(start, held).next_multiple_of(LANES);
            let here = halve(max_of(&held[..used], [f32::NEG_INFINITY; LANES]), larger);
            if here > most || here.is_nan() {
                let found = held.iter().position(|&v| v == here || v.is_nan() && here.is_nan());
                (most, place) = (here, start + found.expect("INVARIANT: one of the elements"));
            }
            if most.is_nan() {
                break;
            }
        }
        (most, place)
    }

    /// The limit at which `need` is reached, where each element that `kept` keeps counts `measure(score)`: equal elements
    /// count the same. Without a need, it is that `need(sum of all)`.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Bins and indices of a row are small.
    fn limit<S: Simd>(
        &self,
        held: &mut [f32; HELD],
        kept: Limit,
        need: impl Fn(u64) -> u64,
        measure: impl Fn(f32) -> u64,
    ) -> Limit {
        let (mut prefix, mut left) = (0u32, 0u64);
        for (turn, (shift, width)) in DIGITS.into_iter().enumerate() {
            let mut bins = [0u64; BINS];
            let above = shift + width;
            self.for_each::<S>(held, |start, row| {
                for (i, &t) in row.iter().enumerate() {
                    let key = order_key(t);
                    if (above == 32 || key >> above == prefix >> above) && kept.keeps(key, (start + i) as u32) {
                        bins[(key >> shift) as usize & ((1 << width) - 1)] += measure(t);
                    }
                }
            });
            if turn == 0 {
                left = need(bins.iter().sum());
            }
            let mut bin = (1usize << width) - 1;
            while bin > 0 && bins[bin] < left {
                left -= bins[bin];
                bin -= 1;
            }
            prefix |= (bin as u32) << shift;
        }
        // Of the elements with this very key, the first ones.
        let mut last = 0;
        self.for_each::<S>(held, |start, row| {
            for (i, &t) in row.iter().enumerate() {
                if left > 0 && order_key(t) == prefix {
                    (last, left) = ((start + i) as u32, left.saturating_sub(measure(t)));
                }
            }
        });
        Limit { key: prefix, last }
    }
}

/// The weight of t among scores of which `most` is the largest, also where that is infinite.
#[inline(always)]
fn weight_of(t: f32, most: f32) -> f32 {
    if t == most { 1.0 } else { exp(t - most) }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // From 0 to 2^31.
fn mass_of(weight: f32) -> u64 {
    u64::from((weight * 2_147_483_648.0) as u32)
}

/// `floor(share * total / 2^24)`.
fn part_of(total: u64, share: u32) -> u64 {
    let share = u64::from(share);
    share * (total >> 24) + ((share * (total & 0xFF_FFFF)) >> 24)
}

impl Operands<'_, '_> {
    /// The element of parameter `which` for this row, as bits; `given` where it is not read from memory.
    fn word(&self, which: usize, words: u64, at: u64, given: u32) -> u32 {
        if self.args.from_memory >> which & 1 == 0 {
            return given;
        }
        let row = if self.args.per_row >> which & 1 != 0 { self.row } else { 0 };
        let index = usize::try_from(row * words + at).expect("INVARIANT: rows lie in memory");
        // SAFETY: the operand has an element for all rows or one for each.
        unsafe { self.call.binding(2 + which).ptr.cast::<u32>().add(index).read_unaligned() }
    }

    /// The parameters of this row, or the bits of one that is outside its domain.
    fn params(&self) -> Result<Params, u32> {
        let a = self.args;
        let float = |which, given: f32| f32::from_bits(self.word(which, 1, 0, given.to_bits()));
        let p = Params {
            temperature: float(0, a.temperature),
            top_k: self.word(1, 1, 0, a.top_k),
            top_p: float(2, a.top_p),
            min_p: float(3, a.min_p),
            penalty: float(4, a.penalty),
            seed: [self.word(5, 2, 0, a.seed_low), self.word(5, 2, 1, a.seed_high)],
            position: self.word(6, 1, 0, a.position),
        };
        let checks = [
            (p.temperature >= 0.0 && p.temperature < f32::INFINITY, p.temperature),
            (p.top_p > 0.0 && p.top_p <= 1.0, p.top_p),
            (p.min_p >= 0.0 && p.min_p <= 1.0, p.min_p),
            (p.penalty > 0.0 && p.penalty < f32::INFINITY, p.penalty),
        ];
        checks.into_iter().find(|(good, _)| !good).map_or(Ok(p), |(_, value)| Err(value.to_bits()))
    }

    /// Marks the previous tokens as bits of `seen`; false when one of them is outside of the row.
    fn mark(&self, seen: &mut [u32]) -> bool {
        let a = self.args;
        seen.fill(0);
        let start = row_offset(self.row, [a.r1, a.r2], [a.p_s0, a.p_s1, a.p_s2]);
        let mut good = true;
        for j in 0..a.previous {
            // SAFETY: the row of previous tokens has that many.
            let token = unsafe { self.call.binding(1).ptr.cast::<u32>().add(start + j as usize).read_unaligned() };
            if token < a.n {
                seen[token as usize / 32] |= 1 << (token % 32);
            } else if token != u32::MAX {
                let value = if a.is_signed != 0 { token.cast_signed().into() } else { token.into() };
                let at = self.row * u64::from(a.previous) + u64::from(j);
                self.call.fault(FaultKind::IndexOutOfRange, at, value);
                good = false;
            }
        }
        good
    }
}

impl Task for Operands<'_, '_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Indices of a row; a probability of 24 bits.
    unsafe fn run<S: Simd>(self) {
        let (a, row) = (self.args, self.row);
        let p = match self.params() {
            Ok(params) => params,
            Err(bits) => return self.call.fault(FaultKind::BadValue, row, bits.into()),
        };
        let words = if a.previous == 0 { 0 } else { a.n.div_ceil(32) as usize };
        let first = usize::try_from(row).expect("INVARIANT: rows lie in memory") * words;
        // SAFETY: scratch memory has a bit for each token of each row; this row's words are this task's.
        let seen = unsafe {
            let words_of_row = self.call.binding(10).ptr.cast::<u32>().add(first);
            words_of_row.write_bytes(0, words);
            std::slice::from_raw_parts_mut(words_of_row, words)
        };
        if a.previous != 0 && !self.mark(seen) {
            return;
        }
        let at = row_offset(row, [a.r1, a.r2], [a.x_s0, a.x_s1, a.x_s2]) * self.dtype.size();
        let scores = Scores {
            x: self.call.binding(0).ptr.wrapping_add(at),
            dtype: self.dtype,
            n: a.n as usize,
            seen,
            softcap: a.softcap,
            inverse_softcap: a.inverse_softcap,
            penalty: p.penalty,
            inverse_temperature: if p.temperature > 0.0 { 1.0 / p.temperature } else { 1.0 },
        };
        let mut held = [0.0f32; HELD];
        let (most, place) = scores.largest::<S>(&mut held);
        if most.is_nan() {
            let at = row * u64::from(a.n) + place as u64;
            return self.call.fault(FaultKind::BadValue, at, most.to_bits().into());
        }
        let mut token = place;
        if p.temperature > 0.0 {
            let mut limit = Limit::ALL;
            if p.top_k != 0 && p.top_k < a.n {
                limit = scores.limit::<S>(&mut held, limit, |_| p.top_k.into(), |_| 1);
            }
            if p.top_p < 1.0 {
                let share = (p.top_p * 16_777_216.0) as u32;
                let need = |total| part_of(total, share).max(1);
                limit = scores.limit::<S>(&mut held, limit, need, |t| mass_of(weight_of(t, most)));
            }
            let random = philox([p.position, row as u32, 0, 0], p.seed) >> 8;
            token = draw::<S>(&scores, &mut held, limit, most, p.min_p, random);
        }
        let at = row_offset(row, [a.r1, a.r2], [a.y_s0, a.y_s1, a.y_s2]);
        // SAFETY: tokens has an element for this row.
        unsafe { self.call.binding(9).ptr.cast::<u32>().add(at).write_unaligned(token as u32) };
    }
}

/// The token at which the mass of what is kept passes the random part of it, in order of indices.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // Indices of a row.
fn draw<S: Simd>(
    scores: &Scores<'_>,
    held: &mut [f32; HELD],
    limit: Limit,
    most: f32,
    min_p: f32,
    random: u32,
) -> usize {
    let mass = |t: f32, i: usize| {
        let weight = weight_of(t, most);
        if weight >= min_p && limit.keeps(order_key(t), i as u32) { mass_of(weight) } else { 0 }
    };
    let mut sums = [0u64; BLOCKS];
    scores.for_each::<S>(held, |start, row| {
        sums[start / HELD] = row.iter().enumerate().map(|(i, &t)| mass(t, start + i)).sum();
    });
    let mut target = part_of(sums.iter().sum(), random);
    let mut block = 0;
    while target >= sums[block] {
        target -= sums[block];
        block += 1;
    }
    let start = block * HELD;
    let count = scores.block::<S>(start, held);
    for (i, &t) in held[..count].iter().enumerate() {
        let own = mass(t, start + i);
        if target < own {
            return start + i;
        }
        target -= own;
    }
    unreachable!("INVARIANT: the target is below the sum of the block")
}

/// One launch on vectors of `S`.
unsafe fn sample<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let args: &SampleArgs = call.args();
    call.pool().run(usize::try_from(args.rows).expect("INVARIANT: rows lie in memory"), &|row| {
        // SAFETY: forwarded; rows are disjoint.
        unsafe { S::vectorize(Operands { call, args, dtype, row: row as u64 }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s; "sample_f32" F32, "sample_f16" F16, "sample_bf16" Bf16 }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal $dtype:ident),*) => {
        &[$({
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { sample::<$s>(call, DType::$dtype) }
            }
            Builtin { module: "sample", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(in super::super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
