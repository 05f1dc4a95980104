//! Caches of keys and values: storing new tokens, and putting a ring in order.

mod densify;
mod desc;
mod store;

pub use densify::RingDensify;
pub use desc::{CacheDesc, CacheOp};
pub use store::KvStore;

use crate::error::{Error, Result};
use crate::tensor::{Scalar, Tensor};

/// Tokens, rows and slots are counted in 31 bits.
const MAX_COUNT: usize = (u32::MAX >> 1) as usize;
/// Rows of a page.
const PAGES: [usize; 3] = [16, 32, 64];

/// Where the first token of each sequence stands.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// The same place for all. A device tensor (one u32) is read when the command runs.
    At(Scalar<'a, u32>),
    /// One for each sequence: `[B]` u32, read when the command runs.
    Each(&'a Tensor),
}

impl From<u32> for Start<'_> {
    fn from(start: u32) -> Self {
        Start::At(Scalar::Host(start))
    }
}

impl<'a> From<Scalar<'a, u32>> for Start<'a> {
    fn from(start: Scalar<'a, u32>) -> Self {
        Start::At(start)
    }
}

impl<'a> Start<'a> {
    /// The tensor that holds it, if any.
    pub(super) fn tensor(self) -> Option<&'a Tensor> {
        match self {
            Start::At(Scalar::Host(_)) => None,
            Start::At(Scalar::Device(tensor)) | Start::Each(tensor) => Some(tensor),
        }
    }

    /// From one sequence's place to the next one's; checks the shape.
    pub(super) fn stride(self, op: &'static str, sequences: u32) -> Result<u64> {
        match self {
            Start::At(Scalar::Host(_)) => Ok(0),
            Start::At(Scalar::Device(one)) if one.len() == 1 => Ok(0),
            Start::At(Scalar::Device(tensor)) => {
                let actual = format_args!("{:?}", tensor.shape());
                Err(Error::shape(op, "start", actual, "it must have one element, or be Start::Each"))
            }
            Start::Each(each) if *each.shape() == [sequences as usize] => Ok(each.strides()[0] as u64),
            Start::Each(each) => {
                let actual = format_args!("{:?}", each.shape());
                Err(Error::shape(op, "start", actual, format!("it must be [{sequences}], one for each sequence")))
            }
        }
    }
}

/// How much a cache of keys or values holds of each sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvShape {
    /// Tokens of a sequence.
    pub(super) capacity: usize,
    /// Tokens of a page, 0 without pages.
    pub(super) page: usize,
    /// Pages in memory, 0 without pages.
    pub(super) pages: usize,
    /// Pages of a sequence, 0 without pages.
    pub(super) width: usize,
}

impl KvShape {
    /// Of `cache`, which has a table where it is made of pages, for these sequences, heads and elements of a head.
    pub(super) fn new(
        op: &'static str,
        (name, cache): (&'static str, &Tensor),
        table: Option<&Tensor>,
        [sequences, heads, dim]: [usize; 3],
    ) -> Result<Self> {
        let wrong = |name, t: &Tensor, expected| Err(Error::shape(op, name, format_args!("{:?}", t.shape()), expected));
        let Some(table) = table else {
            return match *cache.shape() {
                [n, capacity, h, d] if [n, h, d] == [sequences, heads, dim] => {
                    Ok(KvShape { capacity, page: 0, pages: 0, width: 0 })
                }
                _ => wrong(name, cache, format!("it must be [{sequences}, capacity, {heads}, {dim}], as `k`")),
            };
        };
        let width = match *table.shape() {
            [n, width] if n == sequences => width,
            _ => return wrong("table", table, format!("it must be [{sequences}, pages]")),
        };
        match *cache.shape() {
            [pages, page, h, d] if PAGES.contains(&page) && [h, d] == [heads, dim] => {
                Ok(KvShape { capacity: width.saturating_mul(page), page, pages, width })
            }
            _ => wrong(name, cache, format!("with `table` it must be pages [N, 16, 32 or 64, {heads}, {dim}]")),
        }
    }
}

/// Sizes that kernels count in 32 bits.
fn counted(op: &'static str, counts: &[(&'static str, usize)]) -> Result<()> {
    match counts.iter().find(|(_, n)| *n > MAX_COUNT) {
        Some(&(what, n)) => Err(Error::TooLarge { op, what, value: n as u64, limit: MAX_COUNT as u64 }),
        None => Ok(()),
    }
}

/// A size that has been checked.
fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("INVARIANT: checked against the limit")
}

/// Strides of the first three of four axes.
fn strides(t: &Tensor) -> [u64; 3] {
    std::array::from_fn(|i| t.strides()[i] as u64)
}
