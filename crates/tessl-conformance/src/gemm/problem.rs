//! One product as data: build the operands, run, compare with the oracle, run again.

use crate::data::{Mem, Placed, compare, format_of};
use crate::env::Env;
use tessl::{Activation, BufferKind, DType, Factor, Gemm, GemmBackend, GemmDesc, Layout, Precision};
use tessl_oracle::pattern::{PatternProduct, pa, pb};
use tessl_oracle::{Epilogue, Rng, bound};

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
            ..Problem::new(size(desc.m), size(desc.n), size(desc.k), (desc.input, desc.output), desc.backend)
        };
        for (place, len) in [
            (&mut problem.a, if desc.a == Layout::RowMajor { desc.k } else { desc.m }),
            (&mut problem.b, if desc.b == Layout::RowMajor { desc.n } else { desc.k }),
            (&mut problem.c, desc.n),
        ] {
            place.pad = size(len.next_multiple_of(64) - len);
        }
        if flipped {
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

    fn placed(&self, place: &Place, dtype: DType, rows: usize, columns: usize) -> Placed {
        let (unit, outer) = if place.transposed { (rows, columns) } else { (columns, rows) };
        let leading = (unit + place.pad).max(1);
        let (row, column) = if place.transposed { (1, leading) } else { (leading, 1) };
        let Some(batch) = self.batch else {
            return Placed::new(dtype, &[rows, columns], &[row, column], place.offset);
        };
        let stride = if place.shared { 0 } else { leading * outer.max(1) + place.gap };
        Placed::new(dtype, &[batch, rows, columns], &[stride, row, column], place.offset)
    }

    /// A(batch, i, k) of the contents.
    fn inputs(&self) -> (Vec<f64>, Vec<f64>) {
        let (m, n, k) = (self.m, self.n, self.k);
        let batch = self.batch.unwrap_or(1);
        let (batch_a, batch_b) = (if self.a.shared { 1 } else { batch }, if self.b.shared { 1 } else { batch });
        let mut rng = Rng::new(self.seed);
        let format = format_of(self.input);
        let mut fill = |batches: usize, rows: usize, columns: usize, pattern: &dyn Fn(usize, usize, usize) -> f64| {
            let mut out = Vec::with_capacity(batches * rows * columns);
            for (b, i) in (0..batches).flat_map(|b| (0..rows).map(move |i| (b, i))) {
                out.extend((0..columns).map(|j| match self.data {
                    Data::Pattern => pattern(b, i, j),
                    Data::Integers => rng.integer(-3, 4),
                    Data::Normal => format.round(rng.normal()),
                }));
            }
            out
        };
        let a = fill(batch_a, m, k, &|b, i, p| pa(i + b, p));
        let b = fill(batch_b, k, n, &|b, p, j| pb(p, j + 3 * b));
        (a, b)
    }

    /// Sums and sums of magnitudes, [batch, m, n].
    fn reference(&self, a: &[f64], b: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (m, n, k) = (self.m, self.n, self.k);
        let batch = self.batch.unwrap_or(1);
        if self.data == Data::Pattern {
            let table = PatternProduct::new(k);
            let mut sums = Vec::with_capacity(batch * m * n);
            for x in 0..batch {
                let (da, db) = (if self.a.shared { 0 } else { x }, if self.b.shared { 0 } else { 3 * x });
                sums.extend((0..m * n).map(|at| table.at(at / n + da, at % n + db)));
            }
            return (sums, Vec::new());
        }
        let (mut sums, mut magnitudes) = (Vec::new(), Vec::new());
        for x in 0..batch {
            let (oa, ob) = (if self.a.shared { 0 } else { x * m * k }, if self.b.shared { 0 } else { x * k * n });
            let product = tessl_oracle::gemm(m, n, k, |i, p| a[oa + i * k + p], |p, j| b[ob + p * n + j]);
            sums.extend(product.sum);
            magnitudes.extend(product.magnitude);
        }
        (sums, magnitudes)
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, self.kind, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let (m, n, k) = (self.m, self.n, self.k);
        let batch = self.batch.unwrap_or(1);
        let (a_data, b_data) = self.inputs();
        let (mut a, mut b, mut c) = (
            self.placed(&self.a, self.input, m, k),
            self.placed(&self.b, self.input, k, n),
            self.placed(&self.c, self.output, m, n),
        );
        for operand in [&mut a, &mut b, &mut c] {
            operand.allocate(mem)?;
        }
        let (a_len, b_len) = (a_data.len().max(1), b_data.len().max(1));
        a.fill_input(mem, |at| a_data[at % a_len])?;
        b.fill_input(mem, |at| b_data[at % b_len])?;
        let bias_at = |j: usize| if self.bias.is_some() { (j % 9) as f64 - 4.0 } else { 0.0 };
        let bias = match self.bias {
            Some(dtype) => {
                let mut bias = Placed::new(dtype, &[n], &[1], self.c.offset);
                bias.allocate(mem)?;
                bias.fill_input(mem, bias_at)?;
                Some(bias.view()?)
            }
            None => None,
        };
        // beta = 0 must not read C: it holds NaN then.
        let old_at = |at: usize| if self.beta == 0.0 { f64::NAN } else { (at % 7) as f64 - 3.0 };
        let (ta, tb, tc) = (a.view()?, b.view()?, c.view()?);
        let mut op = Gemm::new(&ta, &tb, &tc).backend(self.backend).precision(self.precision);
        op = op.alpha(self.alpha).beta(self.beta).activation(self.activation);
        if let Some(bias) = &bias {
            op = op.bias(bias);
        }
        let mut runs = Vec::new();
        for run in 0..2 {
            c.fill_output(mem, old_at)?;
            if run == 0 { mem.gemm(&op) } else { mem.gemm_again(&op) }?;
            if mem.env.computes {
                runs.push(c.fetch_output()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let (sums, magnitudes) = self.reference(&a_data, &b_data);
        let epilogue = Epilogue {
            alpha: self.alpha.into(),
            beta: self.beta.into(),
            activation: oracle_activation(self.activation),
        };
        let relative = if self.data == Data::Normal { bound::sum(k) } else { 0.0 };
        compare(self.output, first, &[batch, m, n], |at| {
            let (acc, bias) = (sums[at], bias_at(at % n));
            let old = if self.beta == 0.0 { 0.0 } else { old_at(at) };
            let magnitude = magnitudes.get(at).copied().unwrap_or(0.0);
            let exact = epilogue.apply(acc, old, bias);
            (exact, if self.is_exact() { 0.0 } else { bound::gemm(relative, acc, magnitude, old, bias, &epilogue) })
        })
    }

    /// Whether every step is exact in f32: whole numbers and factors of 0, 1, 0.5 or a power of two.
    fn is_exact(&self) -> bool {
        let whole = |f: f32| f == 0.0 || f.abs().log2().fract() == 0.0;
        self.data != Data::Normal
            && whole(self.alpha)
            && whole(self.beta)
            && matches!(self.activation, Activation::None | Activation::Relu)
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
        self
    }
}
