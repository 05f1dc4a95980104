//! The operands of one call, and where its tokens stand.

use super::{BASE, EPS, QkvProblem, Stored};
use crate::cache::{From, Kind};
use crate::data::{Mem, Placed, representable};
use crate::quant::weights::Matrix;
use tessl::nn::{KvPlaces, NormQkvRope, NormQkvRopeDesc, RopeFrequencies, RopeScaling, Start, Weights};
use tessl::{DType, QTensor, Scalar, Stream, Tensor};
use tessl_oracle::{Rng, paged_row, slot};

/// One matrix, as the oracle sees it.
pub(super) enum Matrices {
    /// Rows of weights.
    Dense(Vec<Vec<f64>>),
    /// Codes.
    Quantized(Matrix),
}

impl Matrices {
    /// Values of row `n`, and the magnitudes that their roundings are relative to.
    pub(super) fn row(&self, n: usize) -> Vec<(f64, f64)> {
        match self {
            Matrices::Dense(rows) => rows[n].iter().map(|&w| (w, w.abs())).collect(),
            Matrices::Quantized(matrix) => matrix.row(n).iter().map(|w| (w.value(), w.magnitude())).collect(),
        }
    }
}

/// The same on the device.
enum OnDevice {
    Dense(Tensor),
    Quantized(Box<QTensor>),
}

/// Everything of one call.
pub(super) struct Built<'p> {
    p: &'p QkvProblem,
    pub(super) x: Vec<f64>,
    pub(super) added: Vec<f64>,
    pub(super) norm: Vec<f64>,
    pub(super) post: Vec<f64>,
    pub(super) matrices: Vec<Matrices>,
    pub(super) biases: Option<Vec<Vec<f64>>>,
    pub(super) head_norms: Option<Vec<Vec<f64>>>,
    /// Old contents of k and v.
    pub(super) caches: Vec<Vec<f64>>,
    pub(super) kv_shape: [usize; 4],
    starts: Vec<usize>,
    table: Vec<usize>,
    /// q, k, v, the sum.
    outputs: Vec<Placed>,
    /// x and what is added to it.
    inputs: Vec<Tensor>,
    views: Vec<Tensor>,
    /// Norm, norm of what is added, heads of q and of k.
    norms: Vec<Tensor>,
    bias_tensors: Vec<Tensor>,
    weights: Vec<OnDevice>,
    numbers: [Tensor; 3],
    frequencies: RopeFrequencies,
}

fn text(error: tessl::Error) -> String {
    error.to_string()
}

impl<'p> Built<'p> {
    pub(super) fn new(p: &'p QkvProblem, mem: &mut Mem<'_>, rng: &mut Rng) -> Result<Self, String> {
        let rt = mem.env.rt.clone();
        let ([batch, tokens], [nq, nkv], dim, k) = (p.outer, p.heads, p.dim, p.k);
        let page = if let Some(Kind::Paged(page)) = p.cache { page } else { 0 };
        let width = p.capacity.checked_div(page).unwrap_or(0);
        let kv_shape = match p.cache {
            None => [batch, tokens, nkv, dim],
            Some(Kind::Paged(page)) => [batch * width + 1, page, nkv, dim],
            Some(_) => [batch, p.capacity, nkv, dim],
        };
        let room = match p.cache {
            None => 1_000_000,
            Some(Kind::Ring) => 3 * p.capacity,
            Some(_) => p.capacity - tokens,
        };
        let first = rng.below(room + 1);
        let starts: Vec<usize> =
            (0..batch).map(|_| if p.from == From::Each { rng.below(room + 1) } else { first }).collect();
        let mut table: Vec<usize> = (0..batch * width).collect();
        (1..table.len()).for_each(|i| table.swap(i, rng.below(i + 1)));

        let mut draw = |dtype: DType, n: usize, size: f64| -> Vec<f64> {
            (0..n).map(|_| representable(dtype, size * rng.normal())).collect()
        };
        let (rows, kv_len) = (batch * tokens * k, kv_shape.iter().product());
        let (x, added) = (draw(p.dtype, rows, 2.0), draw(p.dtype, rows, 1.0));
        let (norm, post) = (draw(p.norm, k, 1.0), draw(p.norm, k, 1.0));
        let bias_type = p.bias.unwrap_or(DType::F32);
        let biases = p.bias.map(|_| [nq, nkv, nkv].map(|h| draw(bias_type, h * dim, 1.0)).to_vec());
        let head_norms = p.head_norms.then(|| vec![draw(p.norm, dim, 1.0), draw(p.norm, dim, 1.0)]);
        let caches = vec![draw(p.dtype, kv_len, 1.0), draw(p.dtype, kv_len, 1.0)];

        let (mut matrices, mut weights) = (Vec::new(), Vec::new());
        for n in [nq, nkv, nkv].map(|h| h * dim) {
            match p.weights {
                Stored::Quantized(format, factors) => {
                    let matrix = Matrix::random(rng, format, factors, [n, k], false);
                    weights.push(OnDevice::Quantized(Box::new(matrix.place(&rt, p.layout)?)));
                    matrices.push(Matrices::Quantized(matrix));
                }
                Stored::Dense(dtype) => {
                    let values: Vec<f64> = (0..n * k).map(|_| representable(dtype, rng.normal())).collect();
                    let mut placed = Placed::new(dtype, &[n, k], &[k + p.pad, 1], p.shift);
                    placed.allocate(mem)?;
                    placed.fill_input(mem, |at| values[at])?;
                    weights.push(OnDevice::Dense(placed.view()?));
                    matrices.push(Matrices::Dense(values.chunks(k).map(<[f64]>::to_vec).collect()));
                }
            }
        }
        let mut input = |dtype: DType, shape: &[usize], strides: &[usize], shift: usize, values: &[f64]| {
            let mut placed = Placed::new(dtype, shape, strides, shift);
            placed.allocate(mem)?;
            placed.fill_input(mem, |at| values[at])?;
            placed.view()
        };
        let row = k + p.pad;
        let x_strides = [row * tokens + p.pad, row, 1];
        let inputs = [&x, &added]
            .iter()
            .map(|values| input(p.dtype, &[batch, tokens, k], &x_strides, p.shift, values))
            .collect::<Result<Vec<_>, _>>()?;
        let mut norms = vec![input(p.norm, &[k], &[1], 0, &norm)?, input(p.norm, &[k], &[1], 0, &post)?];
        for w in head_norms.iter().flatten() {
            norms.push(input(p.norm, &[dim], &[1], 0, w)?);
        }
        let bias_tensors = biases
            .iter()
            .flatten()
            .map(|b| input(bias_type, &[b.len()], &[1], p.shift, b))
            .collect::<Result<Vec<_>, _>>()?;
        // Values have strides of their own.
        let heads = |shape: [usize; 4], more: usize| {
            let head = dim + p.pad + more;
            let token = head * shape[2] + p.pad;
            Placed::new(p.dtype, &shape, &[token * shape[1].max(1) + p.pad, token, head, 1], p.shift)
        };
        let sum = Placed::new(p.dtype, &[batch, tokens, k], &x_strides, p.shift);
        let mut outputs = vec![heads([batch, tokens, nq, dim], 0), heads(kv_shape, 0), heads(kv_shape, 16), sum];
        outputs.iter_mut().try_for_each(|o| o.allocate(mem))?;
        let views = outputs.iter().map(Placed::view).collect::<Result<Vec<_>, _>>()?;
        let words = |x: &[usize]| x.iter().map(|&x| u32::try_from(x).unwrap_or(0)).collect::<Vec<_>>();
        let number = |x: &[usize], shape: &[usize]| rt.from_slice(&words(x), shape).map_err(text);
        let numbers = [number(&starts, &[batch])?, number(&starts[..1], &[1])?, number(&table, &[batch, width])?];
        let frequencies = RopeFrequencies::new(&rt, p.dims, BASE, RopeScaling::None).map_err(text)?;
        Ok(Built {
            p,
            x,
            added,
            norm,
            post,
            matrices,
            biases,
            head_norms,
            caches,
            kv_shape,
            starts,
            table,
            outputs,
            inputs,
            views,
            norms,
            bias_tensors,
            weights,
            numbers,
            frequencies,
        })
    }

    /// Where row `r` stands.
    pub(super) fn position(&self, r: usize) -> usize {
        self.starts[r / self.p.outer[1]] + r % self.p.outer[1]
    }

    /// Where its keys and values are kept, as a row of the cache.
    pub(super) fn place(&self, r: usize) -> usize {
        let b = r / self.p.outer[1];
        let width = self.numbers[2].shape()[1];
        let row = match self.p.cache {
            None => Some(r),
            Some(Kind::Paged(page)) => paged_row(self.position(r), page, &self.table[b * width..][..width]),
            Some(kind) => {
                let slot = slot(self.position(r), self.p.capacity, kind == Kind::Ring);
                slot.map(|slot| b * self.p.capacity + slot)
            }
        };
        row.expect("starts are drawn so that tokens fit")
    }

    /// Fills the outputs: caches with their old contents, the others with NaN.
    pub(super) fn poison(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        for (i, output) in self.outputs.iter().enumerate() {
            output.fill_output(mem, |at| if i == 1 || i == 2 { self.caches[i - 1][at] } else { f64::NAN })?;
        }
        Ok(())
    }

    /// What the outputs hold; the sum only where there is one.
    pub(super) fn fetch(&self) -> Result<Vec<Vec<u8>>, String> {
        let count = if self.p.residual { 4 } else { 3 };
        self.outputs[..count].iter().map(Placed::fetch_output).collect()
    }

    fn call(&self) -> NormQkvRope<'_> {
        let p = self.p;
        let start = match p.from {
            From::Host => Start::from(u32::try_from(self.starts[0]).unwrap_or(0)),
            From::Device => Start::At(Scalar::Device(&self.numbers[1])),
            From::Each => Start::Each(&self.numbers[0]),
        };
        let weights = [0, 1, 2].map(|i| match &self.weights[i] {
            OnDevice::Dense(t) => Weights::Dense(t),
            OnDevice::Quantized(t) => Weights::Quantized(t),
        });
        let [q, k, v] = [0, 1, 2].map(|i| &self.views[i]);
        #[allow(clippy::cast_possible_truncation)] // A constant.
        let mut op = NormQkvRope::new(&self.inputs[0], &self.norms[0], weights, &self.frequencies, start, [q, k, v])
            .eps(EPS as f32)
            .weight_offset(p.offset)
            .style(p.style)
            .kv(match p.cache {
                None => KvPlaces::Rows,
                Some(Kind::Plain) => KvPlaces::Cache,
                Some(Kind::Ring) => KvPlaces::Ring,
                Some(Kind::Paged(_)) => KvPlaces::Pages(&self.numbers[2]),
            });
        if p.head_norms {
            op = op.head_norms(&self.norms[2], &self.norms[3]);
        }
        if let [q, k, v] = self.bias_tensors.as_slice() {
            op = op.biases([q, k, v]);
        }
        if p.residual {
            op = op.residual(&self.inputs[1], &self.norms[1], &self.views[3]);
        }
        op
    }

    pub(super) fn desc(&self) -> Result<NormQkvRopeDesc, String> {
        self.call().desc().map_err(text)
    }

    /// Runs the call.
    pub(super) fn run(&self, stream: Option<&mut Stream>) -> tessl::Result<NormQkvRopeDesc> {
        match stream {
            Some(stream) => self.call().run_on(stream)?,
            None => self.call().run()?,
        }
        self.call().desc()
    }
}
