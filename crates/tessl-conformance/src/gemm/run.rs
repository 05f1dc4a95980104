//! A problem run and compared with the oracle.

use super::extra::{Gate, Residual};
use super::problem::{Data, Place, Problem, oracle_activation};
use crate::data::{Mem, Placed, compare, format_of};
use crate::env::Env;
use tessl::{Activation, DType, Gemm, PackedWeights, Tensor, Weights};
use tessl_oracle::pattern::{PatternProduct, pa, pb};
use tessl_oracle::{Epilogue, Rng, bound};

/// Whole numbers below this are exact in f32, with some room for halves and quarters.
const EXACT: f64 = (1u64 << 21) as f64;

impl Problem {
    /// Matrices of A and C, and of B.
    fn batches(&self) -> (usize, usize) {
        let batch = self.batch.unwrap_or(1);
        (batch, self.extra.groups.as_ref().map_or(batch, |g| g.sizes.len()))
    }

    /// The type of B.
    fn input_b(&self) -> DType {
        self.extra.other_b.unwrap_or(self.input)
    }

    /// A(batch, i, k), B(batch, k, j) and up of the contents.
    fn inputs(&self) -> [Vec<f64>; 3] {
        let (m, n, k) = (self.m, self.n, self.k);
        let (batch, batch_b) = self.batches();
        let batch_a = if self.a.shared { 1 } else { batch };
        let batch_b = if self.b.shared { 1 } else { batch_b };
        let mut rng = Rng::new(self.seed);
        let mut fill =
            |dtype: DType, [batches, rows, columns]: [usize; 3], pattern: &dyn Fn(usize, usize, usize) -> f64| {
                let mut out = Vec::with_capacity(batches * rows * columns);
                for (b, i) in (0..batches).flat_map(|b| (0..rows).map(move |i| (b, i))) {
                    out.extend((0..columns).map(|j| match self.data {
                        Data::Pattern => pattern(b, i, j),
                        Data::Integers => match dtype {
                            DType::I8 => rng.integer(-128, 127),
                            DType::U8 => rng.integer(0, 255),
                            _ => rng.integer(-3, 4),
                        },
                        Data::Normal => format_of(dtype).round(rng.normal()),
                    }));
                }
                out
            };
        let a = fill(self.input, [batch_a, m, k], &|b, i, p| pa(i + b, p));
        let b = fill(self.input_b(), [batch_b, k, n], &|b, p, j| pb(p, j + 3 * b));
        let up = if self.extra.gate == Gate::None {
            Vec::new()
        } else {
            fill(self.input_b(), [batch_b, k, n], &|b, p, j| pb(p, j + 3 * b + 2))
        };
        [a, b, up]
    }

    /// Sums and sums of magnitudes, [batch, m, n]; `shift` is where the pattern of B starts.
    fn reference(&self, a: &[f64], b: &[f64], shift: usize) -> (Vec<f64>, Vec<f64>) {
        let (m, n, k) = (self.m, self.n, self.k);
        let batch = self.batches().0;
        let plain = self.extra.groups.is_none() && !self.extra.blocks;
        if self.data == Data::Pattern && plain {
            let table = PatternProduct::new(k);
            let mut sums = Vec::with_capacity(batch * m * n);
            for x in 0..batch {
                let (da, db) = (if self.a.shared { 0 } else { x }, if self.b.shared { 0 } else { 3 * x } + shift);
                sums.extend((0..m * n).map(|at| table.at(at / n + da, at % n + db)));
            }
            return (sums, Vec::new());
        }
        let (mut sums, mut magnitudes) = (Vec::new(), Vec::new());
        for x in 0..batch {
            let oa = if self.a.shared { 0 } else { x * m * k };
            let group = |i: usize| self.extra.group_of(i).unwrap_or(0);
            // Rows of one group at a time.
            let mut first = 0;
            while first < m {
                let g = group(first);
                let rows = (first..m).take_while(|&i| group(i) == g).count();
                let ob = match (&self.extra.groups, self.b.shared) {
                    (Some(_), _) => g * k * n,
                    (None, true) => 0,
                    (None, false) => x * k * n,
                };
                let a = |i: usize, p: usize| a[oa + (first + i) * k + p] * self.extra.block_a(first + i, p);
                let product = tessl_oracle::gemm(rows, n, k, a, |p, j| b[ob + p * n + j] * self.extra.block_b(p, j));
                sums.extend(product.sum);
                magnitudes.extend(product.magnitude);
                first += rows;
            }
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
        let extra = &self.extra;
        let ((batch, batch_b), gated) = (self.batches(), extra.gate != Gate::None);
        let [a_data, b_data, up_data] = self.inputs();
        let half = extra.gate == Gate::Half;
        let columns = if half { 2 * n } else { n };
        let in_groups = Problem { batch: extra.groups.as_ref().map(|g| g.sizes.len()).or(self.batch), ..self.clone() };
        let mut a = self.placed(&self.a, self.input, m, k);
        let mut b = in_groups.placed(&self.b, self.input_b(), k, columns);
        let mut up = in_groups.placed(&self.b, self.input_b(), k, n);
        let mut c = self.placed(&self.c, self.output, m, n);
        for operand in [&mut a, &mut b, &mut up, &mut c] {
            operand.allocate(mem)?;
        }
        let or_zero = |data: &[f64], at: usize| if data.is_empty() { 0.0 } else { data[at % data.len()] };
        a.fill_input(mem, |at| or_zero(&a_data, at))?;
        b.fill_input(mem, |at| match (half, at / columns.max(1), at % columns.max(1)) {
            (true, row, j) if j >= n => or_zero(&up_data, row * n + j - n),
            (true, row, j) => or_zero(&b_data, row * n + j),
            _ => or_zero(&b_data, at),
        })?;
        up.fill_input(mem, |at| or_zero(&up_data, at))?;
        let bias_at = |j: usize| if self.bias.is_some() { (j % 9) as f64 - 4.0 } else { 0.0 };
        let bias_len = if extra.row_bias { m } else { columns.max(if gated { 2 * n } else { n }) };
        let bias = self.vector(mem, self.bias, bias_len, bias_at)?;
        let wide = if gated { 2 * n } else { n };
        let (row_scale_at, col_scale_at) = (|i: usize| extra.row_factor(i), |j: usize| extra.col_factor(j));
        let row_scale = self.vector(mem, extra.row_scale, m, row_scale_at)?;
        let col_scale = self.vector(mem, extra.col_scale, wide, col_scale_at)?;
        // beta = 0 must not read C: it holds NaN then.
        let reads_c = self.beta != 0.0 || extra.residual == Residual::InPlace;
        let old_at = |at: usize| if reads_c { (at % 7) as f64 - 3.0 } else { f64::NAN };
        let residual_at = |at: usize| match extra.residual {
            Residual::None => 0.0,
            Residual::Other => (at % 5) as f64 - 2.0,
            Residual::InPlace => old_at(at),
        };
        let mut other = self.placed(&Place { gap: self.c.gap + 3, ..self.c }, self.output, m, n);
        other.allocate(mem)?;
        if extra.residual == Residual::Other {
            other.fill_input(mem, residual_at)?;
        }
        let (ta, tb, tu, tc, other) = (a.view()?, b.view()?, up.view()?, c.view()?, other.view()?);
        let (block_a, block_b) = extra.block_tensors(mem, [m, n, k])?;
        let offsets = extra.offsets(mem, m)?;
        let packed;
        let weights: Weights<'_> = if extra.packed {
            let up = (extra.gate == Gate::Two).then_some(&tu);
            packed = PackedWeights::pack(&tb, up, self.backend).map_err(|e| e.to_string())?;
            extra.cover_packing(mem.env, &packed, batch_b, self.b.shared)?;
            (&packed).into()
        } else {
            (&tb).into()
        };
        let mut op = Gemm::new(&ta, weights, &tc).backend(self.backend).precision(self.precision);
        op = op.alpha(self.alpha).beta(self.beta).activation(self.activation);
        if let Some(bias) = &bias {
            op = if extra.row_bias { op.row_bias(bias) } else { op.bias(bias) };
        }
        if let Some(scale) = &row_scale {
            op = op.row_scale(scale);
        }
        if let Some(scale) = &col_scale {
            op = op.col_scale(scale);
        }
        op = match extra.residual {
            Residual::None => op,
            Residual::Other => op.residual(&other),
            Residual::InPlace => op.residual(&tc),
        };
        op = match (extra.gate, extra.packed) {
            (Gate::Two, false) => op.up(&tu),
            (Gate::Half, false) => op.gated(),
            _ => op,
        };
        if let (Some(a), Some(b)) = (&block_a, &block_b) {
            op = op.block_scales(a, b);
        }
        if let Some(offsets) = &offsets {
            op = op.grouped(offsets.get());
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
        let (sums, magnitudes) = self.reference(&a_data, &b_data, 0);
        let (up_sums, up_magnitudes) = if gated { self.reference(&a_data, &up_data, 2) } else { Default::default() };
        let relative =
            if self.data == Data::Normal || extra.blocks { bound::sum(k) + extra.block_error() } else { 0.0 };
        let roundings = extra.roundings(self.input);
        // The linear part of one matrix: value and error.
        let linear = |sum: f64, magnitude: f64, i: usize, j: usize, old: f64| {
            let scale = extra.scale(i, j);
            let e = Epilogue {
                alpha: f64::from(self.alpha) * scale,
                beta: self.beta.into(),
                activation: oracle_activation(Activation::None),
            };
            let bias = if extra.row_bias { bias_at(i) } else { bias_at(j) };
            let exact = self.is_exact() && sum.abs() < EXACT && relative == 0.0 || self.output == DType::I32;
            let error = if exact { 0.0 } else { bound::linear([relative, roundings], sum, magnitude, old, bias, &e) };
            (e.linear(sum, old, bias), error)
        };
        let act = oracle_activation(self.activation);
        compare(self.output, first, &[batch, m, n], |at| {
            let (i, j) = (at / n % m, at % n);
            if extra.is_outside(i) {
                return (if reads_c { old_at(at) } else { f64::NAN }, 0.0);
            }
            let old = if self.beta == 0.0 { 0.0 } else { old_at(at) };
            let (t, error) = linear(sums[at], magnitudes.get(at).copied().unwrap_or(0.0), i, j, old);
            let smooth = !matches!(self.activation, Activation::None | Activation::Relu);
            let exact = error == 0.0 && !smooth;
            let mut error = if exact { 0.0 } else { act.slope() * error + act.error(t) };
            let mut y = act.apply(t);
            if gated {
                let (u, u_error) = linear(up_sums[at], up_magnitudes.get(at).copied().unwrap_or(0.0), i, n + j, 0.0);
                // Halves and quarters of both would not fit.
                let plain = self.alpha == 1.0 && extra.row_scale.is_none() && extra.col_scale.is_none();
                let whole = plain && error == 0.0 && u_error == 0.0 && (y * u).abs() < EXACT;
                error = if whole { 0.0 } else { bound::product([y, u], [error, u_error]) };
                y *= u;
            }
            let r = residual_at(at);
            if error != 0.0 || ((y + r).abs() >= EXACT && self.output != DType::I32) {
                error += if r == 0.0 { 0.0 } else { bound::rounding(y + r) };
            }
            (y + r, error)
        })
    }

    /// A vector along rows or columns.
    fn vector(
        &self,
        mem: &mut Mem<'_>,
        dtype: Option<DType>,
        len: usize,
        value: impl Fn(usize) -> f64,
    ) -> Result<Option<Tensor>, String> {
        let Some(dtype) = dtype else { return Ok(None) };
        let mut vector = Placed::new(dtype, &[len], &[1], self.c.offset);
        vector.allocate(mem)?;
        vector.fill_input(mem, value)?;
        Ok(Some(vector.view()?))
    }

    /// Whether every step is exact in f32: whole numbers and factors of 0, 1, 0.5 or a power of two.
    fn is_exact(&self) -> bool {
        let whole = |f: f32| f == 0.0 || f.abs().log2().fract() == 0.0;
        self.data != Data::Normal
            && !self.extra.odd_scales
            && whole(self.alpha)
            && whole(self.beta)
            && matches!(self.activation, Activation::None | Activation::Relu)
    }
}
