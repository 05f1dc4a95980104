//! The answers of experts back to their tokens.

use crate::args::CombineExpertsArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::check::{Call, Launch, Rows, steps};
use crate::nn::{ExpertsDesc, ExpertsOp};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = ExpertsOp::Combine.name();
/// Rows of experts are counted in 31 bits; no place may be `u32::MAX`.
const MAX_COUNT: usize = (u32::MAX >> 1) as usize;

/// `y[t, :] = sum_j weights[t, j] rows[places[t, j], :]`, plus a residual where there is one: the answers of the experts of
/// each token, as places by [`SortByExpert`](crate::nn::SortByExpert) name them.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | rows | `[R, n]` | f32, f16, bf16 |
/// | places | `[.., k]` | u32 |
/// | weights | places' | f32, rows' |
/// | residual | y's | rows' |
/// | y | `[.., n]` | rows' |
///
/// The residual and then the terms, in the order of j, are added up in f32 by fused multiply-adds and rounded once: the same
/// bits every time. Last strides are 1; the other axes of places, weights, residual and y may be strided on their own, three
/// of them at most. y may be exactly the residual. NaN gives NaN. k = 0 gives the residual, or 0.
///
/// A place outside of rows is found on the device: its row of y is not written, the others are, and the next wait or read
/// returns [`Error::Fault`](crate::Error::Fault) with the number of one such choice and its place (on the CPU the first).
///
/// ```
/// use tessl::{nn::CombineExperts, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let rows = rt.from_slice(&[1.0f32, 10.0, 100.0], &[3, 1])?;
/// let places = rt.from_slice(&[2u32, 0, 1, 0], &[2, 2])?;
/// let weights = rt.from_slice(&[0.5f32, 0.5, 2.0, -1.0], &[2, 2])?;
/// let y = rt.from_slice(&[0.0f32, 1000.0], &[2, 1])?;
/// CombineExperts::new(&rows, &places, &weights, &y).residual(&y).run()?;
/// assert_eq!(y.read::<f32>()?, [50.5, 1019.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a CombineExperts does nothing until run() or run_on()"]
pub struct CombineExperts<'a> {
    rows: &'a Tensor,
    places: &'a Tensor,
    weights: &'a Tensor,
    y: &'a Tensor,
    residual: Option<&'a Tensor>,
}

impl<'a> CombineExperts<'a> {
    /// Without a residual.
    pub fn new(rows: &'a Tensor, places: &'a Tensor, weights: &'a Tensor, y: &'a Tensor) -> Self {
        CombineExperts { rows, places, weights, y, residual: None }
    }

    /// Added to the sum: what the tokens were before, or the answer of an expert that all share.
    pub fn residual(mut self, residual: &'a Tensor) -> Self {
        self.residual = Some(residual);
        self
    }

    fn check(&self) -> Result<(Call<'a, 5>, ExpertsDesc, Rows<4>)> {
        let (rows, places, weights, y) = (self.rows, self.places, self.weights, self.y);
        // Where there is no residual, y takes its place and is not read there.
        let residual = self.residual.unwrap_or(y);
        let operands = [("rows", rows), ("places", places), ("weights", weights), ("residual", residual), ("y", y)];
        let call = Call::new(OP, operands)?;
        call.float(0)?;
        let dtype = rows.dtype();
        call.dtype(1, &[DType::U32], "u32")?;
        call.dtype(2, &[DType::F32, dtype], "f32 or the dtype of `rows`")?;
        [3, 4].into_iter().try_for_each(|i| call.dtype(i, &[dtype], "the dtype of `rows`"))?;
        call.same_shape(2, 1)?;
        call.same_shape(3, 4)?;
        let &[count, n] = rows.shape() else {
            return Err(Error::shape(OP, "rows", format_args!("{:?}", rows.shape()), "it must be [R, n]"));
        };
        let Some((&each, outer)) = places.shape().split_last() else {
            let expected = "it must be [.., k], the places of each token";
            return Err(Error::shape(OP, "places", "a scalar", expected));
        };
        if !y.shape().split_last().is_some_and(|(&last, tokens)| last == n && tokens == outer) {
            let expected = format!("it must be {outer:?}, as of `places`, and then {n}, as of `rows`");
            return Err(Error::shape(OP, "y", format_args!("{:?}", y.shape()), expected));
        }
        (0..5).try_for_each(|i| call.unit_stride(i))?;
        call.output(4, &[3])?;
        let large = [("the number of rows", count), ("the experts of a token", each)];
        if let Some((what, value)) = large.into_iter().find(|(_, n)| *n > MAX_COUNT) {
            return Err(Error::TooLarge { op: OP, what, value: value as u64, limit: MAX_COUNT as u64 });
        }
        let strides = [y.strides(), residual.strides(), places.strides(), weights.strides()];
        let walked = Rows::strided(OP, "y", y.shape(), strides)?;
        let align = walked.align(0, y).min(walked.align(1, residual)).min(rows.alignment([rows.strides()[0]]));
        let each = u32::try_from(each).expect("INVARIANT: checked against the limit");
        let desc = ExpertsDesc { op: ExpertsOp::Combine, rows: walked.count, each, n: walked.n, dtype, align };
        Ok((call, desc, walked))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.rows.runtime();
        let each = desc.each;
        let prepared = rt.prepare(&Desc::Experts(desc))?;
        let plan = &prepared.plan;
        let vectors = rows.n.div_ceil(plan.tile[1]);
        let [[y_s0, y_s1, y_s2], [r_s0, r_s1, r_s2], [p_s0, p_s1, p_s2], [w_s0, w_s1, w_s2]] =
            [0, 1, 2, 3].map(|i| rows.strides(i));
        let ([r1, r2], [step_rows, step_vectors]) = (rows.splits(), steps(plan, vectors));
        let args = CombineExpertsArgs {
            y_s0,
            y_s1,
            y_s2,
            r_s0,
            r_s1,
            r_s2,
            p_s0,
            p_s1,
            p_s2,
            w_s0,
            w_s1,
            w_s2,
            x_s: self.rows.strides()[0] as u64,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            vectors,
            step_rows,
            step_vectors,
            each,
            places: u32::try_from(self.rows.shape()[0]).expect("INVARIANT: checked against the limit"),
            weights_typed: u32::from(self.weights.dtype() != DType::F32),
            residual: u32::from(self.residual.is_some()),
        };
        let [x, places, weights, residual, y] = call.operands.map(|(_, tensor)| tensor);
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[x, places, weights, residual],
            &[y],
        )
    }
}

operation!(CombineExperts, ExpertsDesc, |checked| checked.1);
