//! Which kernel multiplies what. The first row that fits is taken.

use super::super::gemm::geometry;
use super::super::gemm::small::MAX_ROWS;
use super::super::workspace::B_BYTES;
use crate::device::Isa;
use crate::dtype::DType;
use crate::gemm::GemmDesc;
use serde::Serialize;

/// The code that a row chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// Reads B in place, once.
    FewRows,
    /// Packs A and B; each thread has a product of its own.
    PackedLocal,
    /// Packs A and B; the threads share B.
    Packed,
}

/// A quantity that rows compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Rows of C.
    M,
    /// `m * n * k` of one matrix.
    Volume,
    /// Bytes of one B, packed for the row's instruction set.
    PackedB,
    /// Matrices: at least this many.
    Batch,
}

/// One comparison of a row: at most `value`, or at least for [`Axis::Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Threshold {
    /// What is compared.
    pub axis: Axis,
    /// With what.
    pub value: u64,
}

impl Threshold {
    /// The quantity of `desc`, packed for `isa`.
    pub fn quantity(&self, desc: &GemmDesc, isa: Isa) -> u64 {
        let [m, n, k] = [desc.m, desc.n, desc.k].map(u64::from);
        match self.axis {
            Axis::M => m,
            Axis::Volume => m.saturating_mul(n).saturating_mul(k),
            Axis::PackedB => {
                let g = geometry(isa);
                let (columns, steps) = (n.next_multiple_of(g.cols.into()), k.next_multiple_of(g.step.into()));
                columns.saturating_mul(steps).saturating_mul(g.bytes.into())
            }
            Axis::Batch => u64::from(desc.batch),
        }
    }

    /// Whether `desc` passes.
    pub fn holds(&self, desc: &GemmDesc, isa: Isa) -> bool {
        match self.axis {
            Axis::Batch => self.quantity(desc, isa) >= self.value,
            _ => self.quantity(desc, isa) <= self.value,
        }
    }
}

/// A rule of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GemmRow {
    /// Its name: the plan's reason.
    pub name: &'static str,
    /// Processors it is for.
    pub isas: &'static [Isa],
    /// Inputs it is for.
    pub inputs: &'static [DType],
    /// All of these must hold.
    pub when: &'static [Threshold],
    /// Code.
    pub kernel: Kernel,
    /// Instruction set of the code.
    pub isa: Isa,
    /// Rows of one chunk, at most.
    pub tile_m: u32,
    /// Columns of one chunk, at most (a multiple of the micro-kernel's).
    pub tile_n: u32,
    /// Steps along k that stay in the first-level cache (a multiple of the micro-kernel's).
    pub tile_k: u32,
}

impl GemmRow {
    /// Whether the row is for this problem on this instruction set.
    pub fn fits(&self, desc: &GemmDesc, isa: Isa) -> bool {
        self.isas.contains(&isa)
            && self.inputs.contains(&desc.input)
            && self.when.iter().all(|t| t.holds(desc, self.isa))
    }
}

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
const BF16: &[DType] = &[DType::Bf16];

/// B fits the workspace of a thread.
const LOCAL: Threshold = Threshold { axis: Axis::PackedB, value: B_BYTES as u64 };
const FEW: &[Threshold] = &[Threshold { axis: Axis::M, value: MAX_ROWS as u64 }];
/// A region costs about as much as this many products.
const TINY: &[Threshold] = &[Threshold { axis: Axis::Volume, value: 1 << 18 }, LOCAL];
const MANY: &[Threshold] =
    &[Threshold { axis: Axis::Batch, value: 8 }, Threshold { axis: Axis::Volume, value: 1 << 24 }, LOCAL];

/// The four rows of one instruction set.
macro_rules! rows {
    ($name:literal, $isas:expr, $inputs:expr, $few:expr, $packed:expr, $tile:expr) => {
        [
            row!(concat!($name, ": few rows"), $isas, $inputs, FEW, Kernel::FewRows, $few, [MAX_ROWS, 256, 1024]),
            row!(concat!($name, ": one tiny product"), $isas, $inputs, TINY, Kernel::PackedLocal, $packed, $tile),
            row!(concat!($name, ": many small products"), $isas, $inputs, MANY, Kernel::PackedLocal, $packed, $tile),
            row!(concat!($name, ": packed tiles"), $isas, $inputs, &[], Kernel::Packed, $packed, $tile),
        ]
    };
}

macro_rules! row {
    ($name:expr, $isas:expr, $inputs:expr, $when:expr, $kernel:expr, $isa:expr, $tile:expr) => {
        GemmRow {
            name: $name,
            isas: $isas,
            inputs: $inputs,
            when: $when,
            kernel: $kernel,
            isa: $isa,
            tile_m: $tile[0],
            tile_n: $tile[1],
            tile_k: $tile[2],
        }
    };
}

const SETS: [[GemmRow; 4]; 5] = [
    rows!("amx bf16", &[Isa::Amx], BF16, Isa::Avx512, Isa::Amx, [128, 1024, 256]),
    rows!("avx512 f32", &[Isa::Amx, Isa::Avx512], FLOATS, Isa::Avx512, Isa::Avx512, [96, 1024, 256]),
    rows!("avx2 f32", &[Isa::Avx2], FLOATS, Isa::Avx2, Isa::Avx2, [96, 1024, 256]),
    rows!("neon f32", &[Isa::Neon], FLOATS, Isa::Neon, Isa::Neon, [96, 1020, 256]),
    rows!("portable f32", &[Isa::Scalar], FLOATS, Isa::Scalar, Isa::Scalar, [96, 1024, 256]),
];

/// Every row, in the order of preference.
pub(in super::super) const ROWS: &[GemmRow] = SETS.as_flattened();
