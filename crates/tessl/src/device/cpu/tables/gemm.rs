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
    /// Reads B once and packs it piece by piece on the way.
    Piecewise,
    /// Packs A and B; each thread has a product of its own.
    PackedLocal,
    /// Packs A and B; the threads share B.
    Packed,
    /// B is packed already.
    Weights,
    /// Rows in groups, one product after the other.
    Groups,
}

/// A quantity that rows compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Rows of C.
    M,
    /// Rows of C: at least this many.
    ManyRows,
    /// `m * n * k` of one matrix.
    Volume,
    /// Bytes of one B, packed for the row's instruction set.
    PackedB,
    /// Matrices: at least this many.
    Batch,
}

/// One comparison of a row: at most `value`, or at least for [`Axis::Batch`] and [`Axis::ManyRows`].
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
            Axis::M | Axis::ManyRows => m,
            Axis::Volume => m.saturating_mul(n).saturating_mul(k),
            Axis::PackedB => {
                let g = geometry(isa, desc.input);
                let (columns, steps) = (n.next_multiple_of(g.cols.into()), k.next_multiple_of(g.step.into()));
                columns.saturating_mul(steps).saturating_mul(g.bytes.into())
            }
            Axis::Batch => u64::from(desc.batch),
        }
    }

    /// Whether `desc` passes.
    pub fn holds(&self, desc: &GemmDesc, isa: Isa) -> bool {
        match self.axis {
            Axis::Batch | Axis::ManyRows => self.quantity(desc, isa) >= self.value,
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
            && match self.kernel {
                Kernel::Groups => desc.extras.groups > 0,
                Kernel::Weights => desc.extras.packed,
                Kernel::FewRows | Kernel::Piecewise => !desc.extras.packed && desc.extras.groups == 0,
                Kernel::PackedLocal => desc.extras.groups == 0 && !desc.extras.packed && !desc.extras.gated,
                Kernel::Packed => true,
            }
            && self.when.iter().all(|t| t.holds(desc, self.isa))
    }
}

const INT8: &[DType] = &[DType::I8, DType::U8];
const FP8: &[DType] = &[DType::F8E4M3, DType::F8E5M2];
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
/// The rows of a type with a kernel for few rows.
macro_rules! rows {
    ($name:literal, $isas:expr, $inputs:expr, $few:expr, $packed:expr, $tile:expr) => {
        [
            row!(concat!($name, ": few rows"), $isas, $inputs, FEW, Kernel::FewRows, $few, [MAX_ROWS, 1024, 1024]),
            blocked!($name, $isas, $inputs, $packed, $tile)[0],
            blocked!($name, $isas, $inputs, $packed, $tile)[1],
            blocked!($name, $isas, $inputs, $packed, $tile)[2],
            blocked!($name, $isas, $inputs, $packed, $tile)[3],
            blocked!($name, $isas, $inputs, $packed, $tile)[4],
        ]
    };
}

/// The rows of the blocked kernel.
macro_rules! blocked {
    ($name:literal, $isas:expr, $inputs:expr, $isa:expr, $tile:expr) => {
        [
            row!(concat!($name, ": groups of rows"), $isas, $inputs, &[], Kernel::Groups, $isa, $tile),
            row!(concat!($name, ": packed weights"), $isas, $inputs, &[], Kernel::Weights, $isa, $tile),
            row!(concat!($name, ": one tiny product"), $isas, $inputs, TINY, Kernel::PackedLocal, $isa, $tile),
            row!(concat!($name, ": many small products"), $isas, $inputs, MANY, Kernel::PackedLocal, $isa, $tile),
            row!(concat!($name, ": packed tiles"), $isas, $inputs, &[], Kernel::Packed, $isa, $tile),
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

const AMX: &[Isa] = &[Isa::Amx];
const AVX512: &[Isa] = &[Isa::Amx, Isa::Avx512];
const FLOAT_SETS: [[GemmRow; 6]; 5] = [
    rows!("amx bf16", AMX, BF16, Isa::Avx512, Isa::Amx, [256, 1024, 256]),
    rows!("avx512 f32", AVX512, FLOATS, Isa::Avx512, Isa::Avx512, [192, 1024, 384]),
    rows!("avx2 f32", &[Isa::Avx2], FLOATS, Isa::Avx2, Isa::Avx2, [96, 1024, 256]),
    rows!("neon f32", &[Isa::Neon], FLOATS, Isa::Neon, Isa::Neon, [96, 1020, 256]),
    rows!("portable f32", &[Isa::Scalar], FLOATS, Isa::Scalar, Isa::Scalar, [96, 1024, 256]),
];

const SHORT_SETS: [[GemmRow; 5]; 9] = [
    blocked!("amx int8", AMX, INT8, Isa::Amx, [256, 1024, 768]),
    blocked!("avx512 int8", &[Isa::Avx512], INT8, Isa::Avx512, [96, 1024, 256]),
    blocked!("avx2 int8", &[Isa::Avx2], INT8, Isa::Avx2, [96, 1024, 256]),
    blocked!("neon int8", &[Isa::Neon], INT8, Isa::Neon, [96, 1020, 256]),
    blocked!("portable int8", &[Isa::Scalar], INT8, Isa::Scalar, [96, 1024, 256]),
    blocked!("avx512 fp8", AVX512, FP8, Isa::Avx512, [96, 1024, 256]),
    blocked!("avx2 fp8", &[Isa::Avx2], FP8, Isa::Avx2, [96, 1024, 256]),
    blocked!("neon fp8", &[Isa::Neon], FP8, Isa::Neon, [96, 1020, 256]),
    blocked!("portable fp8", &[Isa::Scalar], FP8, Isa::Scalar, [96, 1024, 256]),
];

/// Below this many rows vectors keep up with the memory.
const TILES_PAY: Threshold = Threshold { axis: Axis::ManyRows, value: 5 };
const AT_MOST_16: Threshold = Threshold { axis: Axis::M, value: MAX_ROWS as u64 };

const PIECEWISE: [GemmRow; 2] = [
    row!(
        "amx bf16: few rows, B packed on the way",
        AMX,
        BF16,
        &[TILES_PAY, AT_MOST_16],
        Kernel::Piecewise,
        Isa::Amx,
        [MAX_ROWS, 512, 64]
    ),
    row!(
        "amx int8: few rows, B packed on the way",
        AMX,
        INT8,
        &[AT_MOST_16],
        Kernel::Piecewise,
        Isa::Amx,
        [MAX_ROWS, 512, 128]
    ),
];

const FLOAT_ROWS: &[GemmRow] = FLOAT_SETS.as_flattened();
const SHORT_ROWS: &[GemmRow] = SHORT_SETS.as_flattened();
const COUNT: usize = PIECEWISE.len() + FLOAT_ROWS.len() + SHORT_ROWS.len();

const fn joined() -> [GemmRow; COUNT] {
    let mut all = [FLOAT_ROWS[0]; COUNT];
    let mut i = 0;
    while i < COUNT {
        let (first, second) = (PIECEWISE.len(), PIECEWISE.len() + FLOAT_ROWS.len());
        all[i] = match i {
            _ if i < first => PIECEWISE[i],
            _ if i < second => FLOAT_ROWS[i - first],
            _ => SHORT_ROWS[i - second],
        };
        i += 1;
    }
    all
}

/// Every row, in the order of preference.
pub(in super::super) const ROWS: &[GemmRow] = &joined();
