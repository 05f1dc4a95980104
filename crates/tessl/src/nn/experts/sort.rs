//! Choices of tokens in the order of their experts.

use crate::args::SortByExpertArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::check::{Call, Launch, Rows};
use crate::nn::{ExpertsDesc, ExpertsOp};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::Tensor;

const OP: &str = ExpertsOp::Sort.name();
/// Choices and experts are counted in 31 bits.
const MAX_COUNT: usize = (u32::MAX >> 1) as usize;

/// The choices of tokens in the order of their experts: what a grouped product needs.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | experts | `[.., k]`: the experts of each token | u32, i32 |
/// | offsets | `[E + 1]` | u32 |
/// | tokens | `[.. * k]` | u32 |
/// | places | experts' | u32 |
///
/// Choice c (in row-major order) is one of token `c / k`. Expert e has the places `offsets[e]..offsets[e + 1]`, its choices in
/// their order; `tokens[p]` is the token at place p, and `places[c]` the place of choice c. So
/// [`GatherRows`](crate::nn::GatherRows) with tokens makes the rows of [`Gemm::grouped`](crate::Gemm::grouped) with offsets,
/// and [`CombineExperts`](crate::nn::CombineExperts) with places takes the answers back. An expert may have no choice, and a
/// token the same expert twice. The last stride of experts and places is 1; up to three other axes may be strided on their
/// own; offsets and tokens are contiguous. Nothing overlaps.
///
/// An expert from E on, or below 0, is found on the device: its choice has no place (`places` is `u32::MAX` there), the
/// others close up, so that the end of tokens is not written, and the next wait or read returns
/// [`Error::Fault`](crate::Error::Fault) with the number of such a choice and its expert (on the CPU the first).
///
/// ```
/// use tessl::{nn::SortByExpert, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// // Two tokens, which chose experts 2 and 0, and 2 and 1.
/// let experts = rt.from_slice(&[2u32, 0, 2, 1], &[2, 2])?;
/// let new = |shape: &[usize]| rt.zeros(DType::U32, shape, BufferKind::Cold);
/// let (offsets, tokens, places) = (new(&[5])?, new(&[4])?, new(&[2, 2])?);
/// SortByExpert::new(&experts, &offsets, &tokens, &places).run()?;
/// assert_eq!(offsets.read::<u32>()?, [0, 1, 2, 4, 4]);
/// assert_eq!(tokens.read::<u32>()?, [0, 1, 0, 1]);
/// assert_eq!(places.read::<u32>()?, [2, 0, 3, 1]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a SortByExpert does nothing until run() or run_on()"]
pub struct SortByExpert<'a> {
    experts: &'a Tensor,
    offsets: &'a Tensor,
    tokens: &'a Tensor,
    places: &'a Tensor,
}

impl<'a> SortByExpert<'a> {
    /// Sorts `experts`; there is one offset more than there are experts.
    pub fn new(experts: &'a Tensor, offsets: &'a Tensor, tokens: &'a Tensor, places: &'a Tensor) -> Self {
        SortByExpert { experts, offsets, tokens, places }
    }

    fn check(&self) -> Result<(Call<'a, 4>, ExpertsDesc, Rows<2>)> {
        let (experts, places) = (self.experts, self.places);
        let operands = [("experts", experts), ("offsets", self.offsets), ("tokens", self.tokens), ("places", places)];
        let call = Call::new(OP, operands)?;
        call.dtype(0, &[DType::U32, DType::I32], "u32 or i32")?;
        (1..4).try_for_each(|i| call.dtype(i, &[DType::U32], "u32"))?;
        call.same_shape(3, 0)?;
        let wrong = |i: usize, expected: &str| {
            let (name, tensor) = call.operands[i];
            Err(Error::shape(OP, name, format_args!("{:?}", tensor.shape()), expected))
        };
        let Some(&each) = experts.shape().last() else {
            return wrong(0, "it must be [.., k], the experts of each token");
        };
        let there = match *self.offsets.shape() {
            [bounds] if bounds > 0 => bounds - 1,
            _ => return wrong(1, "it must be [E + 1], one more than there are experts"),
        };
        if *self.tokens.shape() != [experts.len()] {
            return wrong(2, &format!("it must be [{}], one for each choice", experts.len()));
        }
        [0, 3].into_iter().try_for_each(|i| call.unit_stride(i))?;
        for i in [1, 2] {
            let (name, tensor) = call.operands[i];
            if !tensor.is_contiguous() {
                let actual = format!("strided {:?}", tensor.strides());
                return Err(Error::layout(OP, name, actual, "its stride must be 1"));
            }
        }
        (1..4).try_for_each(|i| call.output(i, &[]))?;
        let counts = [("the number of choices", experts.len()), ("the number of experts", there)];
        if let Some((what, value)) = counts.into_iter().find(|(_, n)| *n > MAX_COUNT) {
            return Err(Error::TooLarge { op: OP, what, value: value as u64, limit: MAX_COUNT as u64 });
        }
        let rows = Rows::new(OP, [("experts", experts), ("places", places)])?;
        let narrow = |n: usize| u32::try_from(n).expect("INVARIANT: checked against the limit");
        let (op, dtype) = (ExpertsOp::Sort, experts.dtype());
        let desc = ExpertsDesc { op, rows: rows.count, each: narrow(each), n: narrow(there), dtype, align: 2 };
        Ok((call, desc, rows))
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let (call, desc, rows) = self.check()?;
        let stream = call.stream(stream)?;
        let rt = self.experts.runtime();
        let experts = desc.n;
        let prepared = rt.prepare(&Desc::Experts(desc))?;
        let plan = &prepared.plan;
        let ([e_s0, e_s1, e_s2], [p_s0, p_s1, p_s2]) = (rows.strides(0), rows.strides(1));
        let [r1, r2] = rows.splits();
        let args = SortByExpertArgs {
            e_s0,
            e_s1,
            e_s2,
            p_s0,
            p_s1,
            p_s2,
            choices: u32::try_from(self.experts.len()).expect("INVARIANT: checked against the limit"),
            r1,
            r2,
            each: rows.n,
            experts,
            is_signed: u32::from(self.experts.dtype() == DType::I32),
            groups: plan.grid[0],
            unused: 0,
        };
        let [experts, offsets, tokens, places] = call.operands.map(|(_, tensor)| tensor);
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[experts],
            &[offsets, tokens, places],
        )
    }
}

operation!(SortByExpert, ExpertsDesc, |checked| checked.1);
