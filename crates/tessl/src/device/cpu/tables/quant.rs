//! Which kernel multiplies with quantised weights. The first row that fits is taken.

use super::super::quant::{FIXED_MAX_K, MAX_ROWS};
use crate::device::Isa;
use crate::dtype::DType;
use crate::nn::QuantDesc;
use serde::Serialize;

/// The code that a row chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QuantKernel {
    /// Multiplies codes with x in fixed point.
    Dot,
    /// Decodes the weights in place.
    Few,
    /// Decodes blocks of weights for a dense product.
    Many,
}

/// A rule of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QuantRow {
    /// Its name: the plan's reason.
    pub name: &'static str,
    /// Processors it is for.
    pub isas: &'static [Isa],
    /// Types of x that it is for.
    pub inputs: &'static [DType],
    /// Rows of x, at most.
    pub max_m: u32,
    /// Length of the sums, at most.
    pub max_k: u32,
    /// Code.
    pub kernel: QuantKernel,
}

impl QuantRow {
    /// Whether the row is for this problem on this instruction set.
    pub fn fits(&self, d: &QuantDesc, isa: Isa) -> bool {
        self.isas.contains(&isa) && self.inputs.contains(&d.input) && d.m <= self.max_m && d.k <= self.max_k
    }
}

const ALL: &[Isa] = &[Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx];
const HALVES: &[DType] = &[DType::F16, DType::Bf16];

const FEW: QuantRow = QuantRow {
    name: "few rows: weights decoded in place",
    isas: ALL,
    inputs: &[DType::F32, DType::F16, DType::Bf16],
    max_m: MAX_ROWS,
    max_k: u32::MAX,
    kernel: QuantKernel::Few,
};
const DOT: QuantRow = QuantRow {
    name: "few rows: whole codes times x in fixed point",
    isas: &[Isa::Avx512, Isa::Amx],
    max_k: FIXED_MAX_K,
    kernel: QuantKernel::Dot,
    ..FEW
};
const EXACT: QuantRow = QuantRow {
    name: "many rows: blocks of weights decoded to f32, dense product",
    inputs: &[DType::F32],
    max_m: u32::MAX,
    kernel: QuantKernel::Many,
    ..FEW
};
const ROUNDED: QuantRow =
    QuantRow { name: "many rows: blocks of weights rounded to the type of x, dense product", inputs: HALVES, ..EXACT };

/// Every row, in the order of preference.
pub fn quant_rows() -> &'static [QuantRow] {
    &[DOT, FEW, EXACT, ROUNDED]
}
