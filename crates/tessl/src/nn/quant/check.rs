//! What products with quantised weights check, and how they are encoded.

use super::{QuantDesc, QuantOp};
use crate::args::QuantArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::Activation;
use crate::plan::Desc;
use crate::qtensor::QTensor;
use crate::stream::{Access, Binding, Encoded, Stream, Work};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// Kernels count rows and columns in 31 bits.
const MAX_EXTENT: usize = (u32::MAX >> 1) as usize;

/// A call: `W` matrices of weights and `Y` outputs.
#[derive(Clone, Debug)]
pub(super) struct Product<'a, const W: usize, const Y: usize> {
    pub(super) op: QuantOp,
    pub(super) x: &'a Tensor,
    pub(super) weights: [(&'static str, &'a QTensor); W],
    pub(super) outputs: [(&'static str, &'a Tensor); Y],
    pub(super) biases: [Option<(&'static str, &'a Tensor)>; W],
    pub(super) residual: Option<&'a Tensor>,
    pub(super) activation: Activation,
}

/// What a checked call hands to the encoder beside its description.
struct Strides<const Y: usize> {
    x: usize,
    residual: usize,
    outputs: [usize; Y],
}

/// Rows of an operand along its last axis, and the distance between them.
struct Even {
    count: usize,
    stride: usize,
}

impl<'a, const W: usize, const Y: usize> Product<'a, W, Y> {
    /// The problem as data.
    pub(super) fn desc(&self) -> Result<QuantDesc> {
        Ok(self.check()?.0)
    }

    /// Every operand of the call that is not quantised, with its name.
    fn tensors(&self) -> SmallVec<[(&'static str, &'a Tensor); 8]> {
        let biases = self.biases.iter().flatten().copied();
        let residual = self.residual.map(|r| ("residual", r));
        std::iter::once(("x", self.x)).chain(biases).chain(residual).chain(self.outputs).collect()
    }

    fn check(&self) -> Result<(QuantDesc, Strides<Y>)> {
        let (op, x, rt) = (self.op.name(), self.x, self.x.runtime());
        self.tensors().iter().try_for_each(|(name, t)| t.check_usable(op, name, rt))?;
        self.weights.iter().try_for_each(|(name, w)| w.check_usable(op, name, rt))?;
        self.check_types()?;
        let Some((&k, outer)) = x.shape().split_last() else {
            return Err(Error::shape(op, "x", "a scalar", "it must be [.., K]"));
        };
        let x_rows = even_rows(op, "x", x)?;
        let mut n = [0u32; 3];
        for (i, &(name, w)) in self.weights.iter().enumerate() {
            let &[rows, depth] = w.shape() else {
                let actual = format_args!("{:?}", w.shape()).to_string();
                let error = Error::shape(op, name, actual, "it must be one matrix [N, K]");
                return Err(error.help(format!("did you mean {name}.select(index)?")));
            };
            if depth != k {
                let expected = format!("K = {k} (from `x` {:?})", x.shape());
                return Err(Error::shape(op, name, format_args!("{:?}", w.shape()), expected));
            }
            if self.op == QuantOp::Glu && rows != self.weights[0].1.shape()[0] {
                let expected = format!("`gate` is {:?}", self.weights[0].1.shape());
                return Err(Error::shape(op, name, format_args!("{:?}", w.shape()), expected));
            }
            n[i] = extent(op, "N", rows)?;
        }
        let output_rows = self.check_outputs(outer, &n)?;
        let residual = self.residual.map(|r| self.check_residual(r)).transpose()?;
        self.check_biases(&n)?;
        let first = self.weights[0].1;
        let desc = QuantDesc {
            op: self.op,
            m: extent(op, "the number of rows", x_rows.count)?,
            n,
            k: extent(op, "K", k)?,
            format: first.format(),
            layout: first.layout(),
            factors: first.factors_dtype(),
            input: x.dtype(),
            output: self.outputs[0].1.dtype(),
            activation: self.activation,
            bias: self.biases.iter().any(Option::is_some),
            residual: residual.is_some(),
            align: x.alignment((x_rows.count > 1).then_some(x_rows.stride)),
        };
        let strides = Strides { x: x_rows.stride, residual: residual.unwrap_or(0), outputs: output_rows };
        Ok((desc, strides))
    }

    fn check_types(&self) -> Result<()> {
        let op = self.op.name();
        let float = |operand, t: &Tensor| match t.dtype() {
            d if d.is_float() => Ok(()),
            actual => Err(Error::DType { op, operand, actual, expected: "f32, f16 or bf16" }),
        };
        float("x", self.x)?;
        let (first_name, first) = self.outputs[0];
        float(first_name, first)?;
        for &(operand, t) in &self.outputs[1..] {
            if t.dtype() != first.dtype() {
                return Err(Error::DType { op, operand, actual: t.dtype(), expected: "the dtype of the first output" });
            }
        }
        let (name, w) = self.weights[0];
        for &(operand, other) in &self.weights[1..] {
            let class = |w: &QTensor| (w.format(), w.layout(), w.factors_dtype());
            if class(other) != class(w) {
                let expected = format!("`{name}` is {w:?}, and one launch reads one format");
                return Err(Error::layout(op, operand, format_args!("{other:?}"), expected));
            }
        }
        Ok(())
    }

    fn check_outputs(&self, outer: &[usize], n: &[u32; 3]) -> Result<[usize; Y]> {
        let op = self.op.name();
        let mut strides = [0; Y];
        for (i, &(name, y)) in self.outputs.iter().enumerate() {
            let columns = n[i] as usize;
            if !y.shape().split_last().is_some_and(|(&last, rows)| last == columns && rows == outer) {
                let expected = format!("it must be the axes of `x` before K {outer:?} and then {columns}");
                return Err(Error::shape(op, name, format_args!("{:?}", y.shape()), expected));
            }
            strides[i] = even_rows(op, name, y)?.stride;
            if y.repeats_elements() {
                let actual = format!("{:?} with strides {:?}", y.shape(), y.strides());
                return Err(Error::layout(op, name, actual, "an output cannot repeat elements"));
            }
            let overlap = |input| Err(Error::Overlap { op, output: name, input });
            for (other, t) in self.tensors().into_iter().filter(|&(other, _)| other != name) {
                if t.may_overlap(y) && !(other == "residual" && t.same_view(y)) {
                    return overlap(other);
                }
            }
            for &(weights, w) in &self.weights {
                if w.parts().any(|part| part.may_overlap(y)) {
                    return overlap(weights);
                }
            }
        }
        Ok(strides)
    }

    fn check_residual(&self, residual: &Tensor) -> Result<usize> {
        let (op, (_, y)) = (self.op.name(), self.outputs[0]);
        if residual.dtype() != y.dtype() {
            let (operand, actual) = ("residual", residual.dtype());
            return Err(Error::DType { op, operand, actual, expected: "the dtype of the output" });
        }
        if residual.shape() != y.shape() {
            let expected = format!("the output is {:?}", y.shape());
            return Err(Error::shape(op, "residual", format_args!("{:?}", residual.shape()), expected));
        }
        Ok(even_rows(op, "residual", residual)?.stride)
    }

    fn check_biases(&self, n: &[u32; 3]) -> Result<()> {
        let (op, output) = (self.op.name(), self.outputs[0].1.dtype());
        let first = self.biases.iter().flatten().next().map(|(_, b)| b.dtype());
        for (&(name, bias), &columns) in self.biases.iter().zip(n).filter_map(|(b, n)| Some((b.as_ref()?, n))) {
            let fits = bias.dtype() == DType::F32 || bias.dtype() == output;
            if !fits || Some(bias.dtype()) != first {
                let expected = if fits { "the dtype of the other biases" } else { "f32 or the dtype of the output" };
                return Err(Error::DType { op, operand: name, actual: bias.dtype(), expected });
            }
            if bias.shape() != [columns as usize] {
                let expected = format!("it must be [{columns}]");
                return Err(Error::shape(op, name, format_args!("{:?}", bias.shape()), expected));
            }
            even_rows(op, name, bias)?;
        }
        Ok(())
    }

    pub(super) fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let stream = stream.as_deref();
        let (desc, strides) = self.check()?;
        let (op, rt) = (self.op.name(), self.x.runtime());
        if stream.is_some_and(|s| !rt.is_same(s.runtime())) {
            return Err(Error::WrongRuntime { op, operand: "stream" });
        }
        if desc.m == 0 || desc.n == [0; 3] {
            return Ok(());
        }
        let prepared = rt.prepare(&Desc::Quant(desc.clone()))?;
        let plan = &prepared.plan;
        let output = |i: usize| strides.outputs.get(i).copied().unwrap_or(0) as u64;
        let bias_bits = (0u32..).zip(&self.biases).map(|(i, b)| u32::from(b.is_some()) << i).sum();
        let typed = self.biases.iter().flatten().next().is_some_and(|(_, b)| b.dtype() != DType::F32);
        let args = QuantArgs {
            x_rs: strides.x as u64,
            r_rs: strides.residual as u64,
            y0_rs: output(0),
            y1_rs: output(1),
            y2_rs: output(2),
            row: desc.format.row_bytes(desc.k as usize) as u64,
            m: desc.m,
            n0: desc.n[0],
            n1: desc.n[1],
            n2: desc.n[2],
            k: desc.k,
            group: u32::try_from(desc.format.group()).expect("INVARIANT: at most 512"),
            factors: factors_code(desc.factors),
            output: dtype_code(desc.output),
            bias: bias_bits,
            bias_typed: u32::from(typed),
            residual: u32::from(desc.residual),
            activation: desc.activation.code(),
            matrices: u32::try_from(W).expect("INVARIANT: at most 3"),
            gated: u32::from(desc.op == QuantOp::Glu),
            tile_m: plan.tile[0],
            tile_n: plan.tile[1],
            tile_k: plan.tile[2],
            groups: plan.grid[0],
        };
        // Every place is taken: x stands for what is absent, and the kernel does not read it.
        let read = |t: &Tensor| t.binding(Access::Read);
        let mut bindings: SmallVec<[Binding; 6]> = SmallVec::new();
        bindings.push(read(self.x));
        bindings.extend(self.weights.iter().flat_map(|(_, w)| w.bound()).map(read));
        bindings.extend(self.biases.iter().map(|b| read(b.map_or(self.x, |(_, b)| b))));
        bindings.push(read(self.residual.unwrap_or(self.x)));
        bindings.extend(self.outputs.iter().map(|(_, y)| y.binding(Access::Write)));
        bindings.extend(rt.scratch(stream, op, plan.scratch_bytes)?);
        let work = Work::Kernel {
            pipeline: prepared.pipeline,
            grid: plan.grid,
            threads: plan.threads,
            shared_bytes: plan.shared_bytes,
        };
        rt.encode_on(stream, Encoded { label: op, work, args: bytemuck::bytes_of(&args), bindings })
    }
}

/// Float types as kernels number them.
pub(in crate::nn) fn dtype_code(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 1,
        DType::Bf16 => 2,
        _ => 0,
    }
}

/// The number of the factors' type; that of f32 where blocks hold them.
pub(in super::super) fn factors_code(factors: Option<DType>) -> u32 {
    factors.map_or(0, dtype_code)
}

fn extent(op: &'static str, what: &'static str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(small) if value <= MAX_EXTENT => Ok(small),
        _ => Err(Error::TooLarge { op, what, value: value as u64, limit: MAX_EXTENT as u64 }),
    }
}

/// The rows of `t`: the last stride is 1, the other axes make one line of rows.
fn even_rows(op: &'static str, name: &'static str, t: &Tensor) -> Result<Even> {
    let (shape, strides) = (t.shape(), t.strides());
    let last = shape.len() - 1;
    let layout = |expected: &str| {
        let actual = format!("{shape:?} with strides {strides:?}");
        Err(Error::layout(op, name, actual, expected))
    };
    if shape.contains(&0) {
        let rows = shape[..last].iter().product();
        return Ok(Even { count: rows, stride: shape[last] });
    }
    if shape[last] > 1 && strides[last] != 1 {
        return layout("its last stride must be 1");
    }
    let mut even: Option<Even> = None;
    for (&extent, &stride) in shape[..last].iter().zip(strides).filter(|(d, _)| **d != 1) {
        even = match even {
            Some(e) if e.stride != stride * extent => return layout("its rows must be evenly spaced"),
            Some(e) => Some(Even { count: e.count.saturating_mul(extent), stride }),
            None => Some(Even { count: extent, stride }),
        };
    }
    Ok(even.unwrap_or(Even { count: 1, stride: shape[last] }))
}
