//! One product as data.

use super::extra::Extra;
use crate::data::Placed;
use tessl::{Activation, BufferKind, DType, Factor, GemmBackend, GemmDesc, Layout, Precision};

/// How a matrix operand lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Columns are contiguous instead of rows.
    pub transposed: bool,
    /// Elements of slack after each row (or column).
    pub pad: usize,
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// Elements of slack between the matrices of a batch.
    pub gap: usize,
    /// One matrix serves the whole batch. Not for C.
    pub shared: bool,
}

/// What the operands hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// PA and PB: exact, and cheap to know at any size.
    Pattern,
    /// Small random whole numbers: exact.
    Integers,
    /// Normal random numbers, compared within derived bounds.
    Normal,
}

/// A product with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Matrices; `None` gives operands of two axes.
    pub batch: Option<usize>,
    /// Type of A and B.
    pub input: DType,
    /// Type of C.
    pub output: DType,
    /// Memory of A.
    pub a: Place,
    /// Memory of B.
    pub b: Place,
    /// Memory of C.
    pub c: Place,
    /// Kernels asked for.
    pub backend: GemmBackend,
    /// How exact f32 products are.
    pub precision: Precision,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the old C.
    pub beta: f32,
    /// Type of the bias.
    pub bias: Option<DType>,
    /// Applied last.
    pub activation: Activation,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Contents.
    pub data: Data,
    /// Seed of random contents.
    pub seed: u64,
    /// What goes beyond the plain product.
    pub extra: Extra,
}

/// The oracle's name of an activation.
pub(crate) fn oracle_activation(activation: Activation) -> tessl_oracle::Activation {
    match activation {
        Activation::Relu => tessl_oracle::Activation::Relu,
        Activation::Silu => tessl_oracle::Activation::Silu,
        Activation::Gelu => tessl_oracle::Activation::Gelu,
        Activation::GeluTanh => tessl_oracle::Activation::GeluTanh,
        _ => tessl_oracle::Activation::None,
    }
}

impl Problem {
    /// A contiguous, aligned product of patterns without an epilogue.
    pub fn new(m: usize, n: usize, k: usize, (input, output): (DType, DType), backend: GemmBackend) -> Self {
        Problem {
            m,
            n,
            k,
            batch: None,
            input,
            output,
            a: Place::default(),
            b: Place::default(),
            c: Place::default(),
            backend,
            precision: Precision::Exact,
            alpha: 1.0,
            beta: 0.0,
            bias: None,
            activation: Activation::None,
            kind: BufferKind::Cold,
            data: Data::Pattern,
            seed: 1,
            extra: Extra::default(),
        }
    }

    /// A problem whose description is `desc`.
    pub fn of(desc: &GemmDesc) -> Self {
        let size = |n: u32| n as usize;
        // One element off is enough to lose every alignment above the element's own.
        let place = |layout: Layout, align: u8, dtype: DType, shared: bool| Place {
            transposed: layout == Layout::ColMajor,
            offset: if align >= 7 { 0 } else { (1usize << align) / dtype.size() },
            shared,
            // Leading dimensions of whole cache lines keep the alignment that the offset chooses.
            pad: 0,
            gap: 0,
        };
        let factor = |f: Factor| match f {
            Factor::Zero => 0.0,
            Factor::One => 1.0,
            Factor::Any => 0.5,
        };
        let (bias, flipped) = match desc.bias {
            tessl::Bias::None => (None, false),
            tessl::Bias::Column(dtype) => (Some(dtype), false),
            tessl::Bias::Row(dtype) => (Some(dtype), true),
        };
        let mut problem = Problem {
            batch: (desc.batch > 1).then_some(size(desc.batch)),
            a: place(desc.a, desc.a_align, desc.input, false),
            b: place(desc.b, desc.b_align, desc.input, desc.b_shared && desc.batch > 1),
            c: place(Layout::RowMajor, desc.c_align, desc.output, false),
            precision: desc.precision,
            alpha: factor(desc.alpha),
            beta: factor(desc.beta),
            bias,
            activation: desc.activation,
            extra: Extra::of(&desc.extras),
            data: if desc.input.is_float() { Data::Pattern } else { Data::Integers },
            ..Problem::new(size(desc.m), size(desc.n), size(desc.k), (desc.input, desc.output), desc.backend)
        };
        for (place, len) in [
            (&mut problem.a, if desc.a == Layout::RowMajor { desc.k } else { desc.m }),
            (&mut problem.b, if desc.b == Layout::RowMajor { desc.n } else { desc.k }),
            (&mut problem.c, desc.n),
        ] {
            place.pad = size(len.next_multiple_of(64) - len);
        }
        if flipped && problem.extra.keeps_rows() {
            problem.extra.row_bias = true;
        } else if flipped {
            // A bias along rows is the transposed problem.
            std::mem::swap(&mut problem.m, &mut problem.n);
            std::mem::swap(&mut problem.a, &mut problem.b);
            problem.a.transposed = !problem.a.transposed;
            problem.b.transposed = !problem.b.transposed;
            problem.c.transposed = true;
        }
        problem
    }

    /// Multiply-adds.
    pub fn mac(&self) -> u64 {
        [self.m, self.n, self.k, self.batch.unwrap_or(1)].iter().fold(1, |p, &x| p.saturating_mul(x as u64))
    }

    pub(super) fn placed(&self, place: &Place, dtype: DType, rows: usize, columns: usize) -> Placed {
        let (unit, outer) = if place.transposed { (rows, columns) } else { (columns, rows) };
        let leading = (unit + place.pad).max(1);
        let (row, column) = if place.transposed { (1, leading) } else { (leading, 1) };
        let Some(batch) = self.batch else {
            return Placed::new(dtype, &[rows, columns], &[row, column], place.offset);
        };
        let stride = if place.shared { 0 } else { leading * outer.max(1) + place.gap };
        Placed::new(dtype, &[batch, rows, columns], &[stride, row, column], place.offset)
    }

    /// The problem with sizes cut so that it costs at most `mac`, the remainders of `tile` kept.
    pub fn fit(mut self, mac: u64, tile: [usize; 3]) -> Self {
        while self.mac() > mac {
            let sizes = [self.m, self.n, self.k];
            let largest = (0..3).filter(|&i| sizes[i] > 2 * tile[i]).max_by_key(|&i| sizes[i] / tile[i].max(1));
            match (largest, self.batch) {
                (Some(axis), _) => {
                    let unit = tile[axis].max(1);
                    let cut = (sizes[axis] / unit / 2).max(1) * unit;
                    *[&mut self.m, &mut self.n, &mut self.k][axis] -= cut;
                }
                (None, Some(batch)) if batch > 2 => self.batch = Some(batch / 2 + 1),
                _ => break,
            }
        }
        if let Some(groups) = &mut self.extra.groups {
            groups.cut(self.m);
        }
        self
    }
}
