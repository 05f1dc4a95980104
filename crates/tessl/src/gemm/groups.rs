//! Groups of rows: where their bounds are.

use super::Gemm;
use super::check::OP;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Bounds of groups of rows, one more than there are groups.
#[derive(Clone, Copy, Debug)]
pub enum Offsets<'a> {
    /// Known on the host.
    Host(&'a [u32]),
    /// A u32 tensor that the device reads when the command runs.
    Device(&'a Tensor),
}

impl<'a> From<&'a [u32]> for Offsets<'a> {
    fn from(offsets: &'a [u32]) -> Self {
        Offsets::Host(offsets)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Offsets<'a> {
    fn from(offsets: &'a [u32; N]) -> Self {
        Offsets::Host(offsets)
    }
}

impl<'a> From<&'a Vec<u32>> for Offsets<'a> {
    fn from(offsets: &'a Vec<u32>) -> Self {
        Offsets::Host(offsets)
    }
}

impl<'a> From<&'a Tensor> for Offsets<'a> {
    fn from(offsets: &'a Tensor) -> Self {
        Offsets::Device(offsets)
    }
}

impl Gemm<'_> {
    /// `groups + 1` offsets that fit `rows` rows, as far as the host can tell.
    pub(super) fn check_offsets(&self, offsets: Offsets<'_>, groups: usize, rows: usize) -> Result<()> {
        let expected = || format!("it must have {} values, one more than `b` has matrices", groups + 1);
        match offsets {
            Offsets::Host(values) => {
                if values.len() != groups + 1 {
                    return Err(Error::shape(OP, "offsets", format!("[{}]", values.len()), expected()));
                }
                let ordered = values.is_sorted() && values.last().is_none_or(|&last| last as usize <= rows);
                if !ordered {
                    let expected = format!("they must not decrease, nor pass the {rows} rows of `a`");
                    return Err(Error::shape(OP, "offsets", format_args!("{values:?}"), expected));
                }
            }
            Offsets::Device(tensor) => {
                tensor.check_usable(OP, "offsets", self.a.runtime())?;
                if tensor.dtype() != DType::U32 {
                    let actual = tensor.dtype();
                    return Err(Error::DType { op: OP, operand: "offsets", actual, expected: "u32" });
                }
                if tensor.shape() != [groups + 1] {
                    return Err(Error::shape(OP, "offsets", format_args!("{:?}", tensor.shape()), expected()));
                }
                if !tensor.is_contiguous() {
                    let actual = format!("strided {:?}", tensor.strides());
                    return Err(Error::layout(OP, "offsets", actual, "its stride must be 1"));
                }
                if tensor.may_overlap(self.c) {
                    return Err(Error::Overlap { op: OP, output: "c", input: "offsets" });
                }
            }
        }
        Ok(())
    }
}
