//! Rotary position embedding.

use super::check::{Call, Launch, Rows, steps};
use super::{RopeDesc, RopeStyle};
use crate::args::RopeArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::BufferKind;
use crate::plan::Desc;
use crate::runtime::GpuRuntime;
use crate::stream::Stream;
use crate::tensor::{Dims, Scalar, Tensor};

const OP: &str = "rope";
const TABLE: &str = "RopeFrequencies::new";
/// The CPU kernel keeps the angles of one position on its stack.
const MAX_DIMS: usize = 1024;

/// How a model stretches its context over longer positions than it was trained with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Positions are divided by this number.
    Linear(f64),
    /// NTK-aware: the base grows to `base * factor^(dims / (dims - 2))`, so that the slowest pair is stretched by this
    /// factor and the fastest one not at all. For the dynamic form with a context of `length`, the factor is
    /// `factor * length / original - (factor - 1)`.
    Ntk(f64),
    /// YaRN: pairs that turn more than `fast` times in the original context are kept, those that turn less than `slow` times
    /// are stretched by `factor`, and between them the frequency is blended along the number of the pair. Scores want to be
    /// multiplied by the square of [`attention_factor`](RopeScaling::attention_factor).
    Yarn {
        /// By how much slow pairs are stretched.
        factor: f64,
        /// Context length of training.
        original: f64,
        /// Turns above which pairs are kept; 32 as published.
        fast: f64,
        /// Turns below which pairs are stretched; 1 as published.
        slow: f64,
    },
    /// Llama 3: wavelengths above `original / low` are stretched by `factor`, those below `original / high` are kept, and
    /// between them the frequency is blended.
    Llama3 {
        /// By how much long wavelengths are stretched.
        factor: f64,
        /// Longest kept fraction of the original context.
        low: f64,
        /// Shortest stretched fraction of the original context.
        high: f64,
        /// Context length of training.
        original: f64,
    },
}

impl RopeScaling {
    /// The frequency of pair i in radians per position.
    fn frequency(self, i: usize, dims: usize, base: f64) -> f64 {
        let (i, dims) = (i as f64, dims as f64);
        let frequency = base.powf(-2.0 * i / dims);
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear(factor) => frequency / factor,
            // With two dims there is one pair, the fastest.
            RopeScaling::Ntk(_) if dims <= 2.0 => frequency,
            RopeScaling::Ntk(factor) => (base * factor.powf(dims / (dims - 2.0))).powf(-2.0 * i / dims),
            RopeScaling::Yarn { factor, original, fast, slow } => {
                // The pair that turns so often in the original context.
                let pair = |turns: f64| dims * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
                let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(dims - 1.0));
                let stretched = ((i - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
                frequency / factor * stretched + frequency * (1.0 - stretched)
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / std::f64::consts::TAU;
                if turns > high {
                    frequency
                } else if turns < low {
                    frequency / factor
                } else {
                    let blend = (turns - low) / (high - low);
                    (1.0 - blend) * frequency / factor + blend * frequency
                }
            }
        }
    }

    /// What queries and keys are each multiplied by: `0.1 ln(factor) + 1` for YaRN with a factor above 1, else 1. Its square
    /// belongs into the scale of the attention scores.
    pub fn attention_factor(self) -> f64 {
        match self {
            RopeScaling::Yarn { factor, .. } if factor > 1.0 => 0.1 * factor.ln() + 1.0,
            _ => 1.0,
        }
    }

    /// The first parameter outside its domain.
    fn wrong(self) -> Option<(&'static str, f64)> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match self {
            RopeScaling::None => None,
            RopeScaling::Linear(factor) | RopeScaling::Ntk(factor) => (!positive(factor)).then_some(("factor", factor)),
            RopeScaling::Yarn { factor, original, fast, slow } => {
                let all = [("factor", factor), ("original", original), ("slow", slow), ("fast", fast - slow)];
                all.into_iter().find(|(_, x)| !positive(*x))
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                let all = [("factor", factor), ("low", low), ("original", original), ("high", high - low)];
                all.into_iter().find(|(_, x)| !positive(*x))
            }
        }
    }
}

/// The frequencies of rotary embedding, `base^(-2 i / dims)` for pair i, in device memory: made once for a model.
///
/// They are kept as turns per position in 64-bit fixed point. Position times frequency, modulo one turn, is then an
/// integer product, without the rounding by which f32 angles lose all meaning at long contexts.
#[derive(Clone, Debug)]
pub struct RopeFrequencies {
    /// [dims / 2, 2]: low and high words.
    table: Tensor,
    dims: usize,
}

impl RopeFrequencies {
    /// Frequencies for `dims` elements of each head, an even number of at most 1024: the whole head, or its rotary part.
    ///
    /// # Errors
    /// `Scalar` for an odd or zero `dims`, and for a base or scaling that is not finite and above 0; `TooLarge`; what an
    /// allocation reports.
    pub fn new(rt: &GpuRuntime, dims: usize, base: f64, scaling: RopeScaling) -> Result<Self> {
        Self::check_dims(dims)?;
        let expected =
            "finite and above 0 (with `low` below `high`, `slow` below `fast`, and above 1 for the base of YaRN)";
        let least = if matches!(scaling, RopeScaling::Yarn { .. }) { 1.0 } else { 0.0 };
        let wrong = scaling.wrong().or_else(|| (!(base.is_finite() && base > least)).then_some(("base", base)));
        if let Some((name, value)) = wrong {
            return Err(Error::Scalar { op: TABLE, name, value, expected });
        }
        Self::upload(rt, dims, |i| scaling.frequency(i, dims, base))
    }

    /// Frequencies of which that of pair i is divided by `factors[i]`, as files of Llama 3 list them (`rope_freqs`).
    ///
    /// ```
    /// use tessl::{Device, GpuRuntime, nn::RopeFrequencies};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let frequencies = RopeFrequencies::with_factors(&rt, 500_000.0, &[1.0, 1.0, 2.5, 8.0])?;
    /// assert_eq!(frequencies.dims(), 8);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new), with twice as many dims as there are factors; `Scalar` for a factor that is not finite and above 0.
    pub fn with_factors(rt: &GpuRuntime, base: f64, factors: &[f32]) -> Result<Self> {
        let dims = factors.len().saturating_mul(2);
        Self::check_dims(dims)?;
        let bad = |x: &f64| !(x.is_finite() && *x > 0.0);
        let factor = factors.iter().map(|&f| f64::from(f)).find(bad).map(|f| ("factors", f));
        if let Some((name, value)) = factor.or(Some(("base", base)).filter(|(_, base)| bad(base))) {
            return Err(Error::Scalar { op: TABLE, name, value, expected: "finite and above 0" });
        }
        Self::upload(rt, dims, |i| RopeScaling::None.frequency(i, dims, base) / f64::from(factors[i]))
    }

    fn check_dims(dims: usize) -> Result<()> {
        if dims == 0 || !dims.is_multiple_of(2) {
            let expected = "an even number above 0";
            return Err(Error::Scalar { op: TABLE, name: "dims", value: dims as f64, expected });
        }
        if dims > MAX_DIMS {
            return Err(Error::TooLarge { op: TABLE, what: "dims", value: dims as u64, limit: MAX_DIMS as u64 });
        }
        Ok(())
    }

    fn upload(rt: &GpuRuntime, dims: usize, frequency: impl Fn(usize) -> f64) -> Result<Self> {
        let words: Vec<u32> = (0..dims / 2)
            .flat_map(|i| {
                let turns = fixed_turns(frequency(i));
                [low_word(turns), low_word(turns >> 32)]
            })
            .collect();
        let table = rt.uninit(DType::U32, &[dims / 2, 2], BufferKind::Hot)?;
        table.write(&words)?;
        Ok(RopeFrequencies { table, dims })
    }

    /// The table as kernels bind it.
    pub(super) fn table(&self) -> &Tensor {
        &self.table
    }

    /// Elements of a row that are turned.
    pub fn dims(&self) -> usize {
        self.dims
    }
}

/// Turns per position as a fraction of 2^64; whole turns do not matter at whole positions.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // In 0..2^64, and a conversion saturates.
fn fixed_turns(frequency: f64) -> u64 {
    ((frequency / std::f64::consts::TAU).fract() * 2f64.powi(64)) as u64
}

#[allow(clippy::cast_possible_truncation)] // The low half is what is asked for.
fn low_word(x: u64) -> u32 {
    x as u32
}

/// Where the tokens of a [`Rope`] stand.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// Token t stands at this number plus t. A device tensor (u32 or i32) is read when the command runs.
    From(Scalar<'a, u32>),
    /// One position for each row: u32 or i32, of x's shape without the last axis ([`Tensor::broadcast_to`] repeats them
    /// over heads).
    Each(&'a Tensor),
}

impl From<u32> for Positions<'_> {
    fn from(first: u32) -> Self {
        Positions::From(Scalar::Host(first))
    }
}

/// Rotary position embedding: pairs of elements turn by `position * frequency`.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., T, H, n]`, or `[T, n]` | f32, f16, bf16 |
/// | positions | a number, one element, or x's without the last axis | u32, i32 |
/// | y | x's | x's |
///
/// `y0 = x0 cos a - x1 sin a`, `y1 = x1 cos a + x0 sin a`, in f32 from sines and cosines within 2^-23, for every 32-bit
/// position; rounded once. Pair i is elements i and i + dims / 2, or 2 i and 2 i + 1 ([`style`](Self::style)); elements
/// from `dims` on are copied. The last stride of x and y is 1; up to three other axes may be strided on their own. y may be
/// exactly x. Positions are never rounded, whatever the type of x. NaN in a pair makes the pair NaN.
///
/// ```
/// use tessl::{nn::{Rope, RopeFrequencies, RopeScaling}, Device, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let frequencies = RopeFrequencies::new(&rt, 2, 10_000.0, RopeScaling::None)?;
/// // Three tokens, one head of two elements.
/// let x = rt.from_slice(&[1.0f32, 0.0, 1.0, 0.0, 1.0, 0.0], &[3, 1, 2])?;
/// Rope::new(&x, &frequencies, 5, &x).run()?;
/// let got = x.read::<f32>()?;
/// for t in 0..3 {
///     let angle = (5 + t) as f32;
///     assert!((got[2 * t] - angle.cos()).abs() < 1e-6 && (got[2 * t + 1] - angle.sin()).abs() < 1e-6);
/// }
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Rope does nothing until run() or run_on()"]
pub struct Rope<'a> {
    x: &'a Tensor,
    frequencies: &'a RopeFrequencies,
    positions: Positions<'a>,
    y: &'a Tensor,
    style: RopeStyle,
    token_axis: Option<usize>,
}

/// A call that has passed all checks.
struct Checked<'a> {
    call: Call<'a, 4>,
    desc: RopeDesc,
    rows: Rows<3>,
}

impl<'a> Rope<'a> {
    /// Half-split pairs; tokens along the third axis from the end, or the first of two.
    pub fn new(
        x: &'a Tensor,
        frequencies: &'a RopeFrequencies,
        positions: impl Into<Positions<'a>>,
        y: &'a Tensor,
    ) -> Self {
        Rope { x, frequencies, positions: positions.into(), y, style: RopeStyle::HalfSplit, token_axis: None }
    }

    /// Which elements make a pair.
    pub fn style(mut self, style: RopeStyle) -> Self {
        self.style = style;
        self
    }

    /// The axis of x along which [`Positions::From`] counts: 2 for `[B, H, T, n]`.
    pub fn token_axis(mut self, axis: usize) -> Self {
        self.token_axis = Some(axis);
        self
    }

    fn check(&self) -> Result<Checked<'a>> {
        let (x, y) = (self.x, self.y);
        // A number of the host takes the place of its operand by the frequencies, which are then not read there.
        let positions = match self.positions {
            Positions::From(Scalar::Device(tensor)) | Positions::Each(tensor) => tensor,
            Positions::From(Scalar::Host(_)) => &self.frequencies.table,
        };
        let operands = [("x", x), ("frequencies", &self.frequencies.table), ("positions", positions), ("y", y)];
        let call = Call::new(OP, operands)?;
        call.float(0)?;
        call.dtype(2, &[DType::U32, DType::I32], "u32 or i32")?;
        call.dtype(3, &[x.dtype()], "the dtype of `x`")?;
        if x.rank() < 2 {
            let actual = format_args!("{:?}", x.shape());
            return Err(Error::shape(OP, "x", actual, "it must have an axis of tokens and one of elements"));
        }
        call.same_shape(3, 0)?;
        let (n, outer) = x.shape().split_last().map_or((0, &[][..]), |(&n, outer)| (n, outer));
        let dims = self.frequencies.dims;
        if dims > n {
            let expected = format!("`frequencies` turns {dims} elements of each row");
            return Err(Error::shape(OP, "x", format_args!("{:?}", x.shape()), expected));
        }
        let axis = self.token_axis.unwrap_or(outer.len().saturating_sub(2));
        let counted = match self.positions {
            Positions::Each(each) if each.shape() != outer => {
                let expected = format!("it must be {outer:?} (`x` {:?} without its last axis)", x.shape());
                let error = Error::shape(OP, "positions", format_args!("{:?}", each.shape()), expected);
                let fits = each.broadcast_to(outer).is_ok();
                return Err(if fits { error.help(format!("did you mean broadcast_to({outer:?})?")) } else { error });
            }
            Positions::From(Scalar::Device(first)) if first.len() != 1 => {
                let actual = format_args!("{:?}", first.shape());
                return Err(Error::shape(OP, "positions", actual, "it must have one element, or be Positions::Each"));
            }
            Positions::From(_) if axis >= outer.len() => {
                let expected = format!("`x` has the axes 0..{} before its last one", outer.len());
                return Err(Error::shape(OP, "token_axis", axis, expected));
            }
            // What is counted: 1 along tokens.
            _ => (0..outer.len()).map(|i| usize::from(i == axis)).collect::<Dims>(),
        };
        [0, 3].into_iter().try_for_each(|i| call.unit_stride(i))?;
        call.output(3, &[0])?;
        let p_strides = match self.positions {
            Positions::Each(each) => each.strides(),
            Positions::From(_) => &counted,
        };
        let rows = Rows::strided(OP, "x", x.shape(), [x.strides(), p_strides, y.strides()])?;
        let mut align = rows.align(0, x).min(rows.align(2, y));
        if self.style == RopeStyle::HalfSplit {
            align = align.min(x.alignment([dims / 2]));
        }
        let narrow = |n: usize| u32::try_from(n).expect("INVARIANT: at most 1024");
        let (style, dtype) = (self.style, x.dtype());
        let desc = RopeDesc { rows: rows.count, n: rows.n, dims: narrow(dims), style, dtype, align };
        Ok(Checked { call, desc, rows })
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows } = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let (mode, offset) = match self.positions {
            Positions::From(Scalar::Host(first)) => (0, first.into()),
            Positions::From(Scalar::Device(first)) => (1 + signed(first), 0),
            Positions::Each(each) => (2 + signed(each), 0),
        };
        let rt = self.x.runtime();
        let prepared = rt.prepare(&Desc::Rope(desc.clone()))?;
        let plan = &prepared.plan;
        let vectors = desc.vectors(plan.tile[1]);
        let ([x_s0, x_s1, x_s2], [p_s0, p_s1, p_s2], [y_s0, y_s1, y_s2]) =
            (rows.strides(0), rows.strides(1), rows.strides(2));
        let ([r1, r2], [step_rows, step_vectors]) = (rows.splits(), steps(plan, vectors));
        let args = RopeArgs {
            x_s0,
            x_s1,
            x_s2,
            p_s0,
            p_s1,
            p_s2,
            y_s0,
            y_s1,
            y_s2,
            rows: rows.count,
            offset,
            r1,
            r2,
            n: rows.n,
            dims: desc.dims,
            vectors,
            step_rows,
            step_vectors,
            mode,
        };
        let [_, (_, table), (_, positions), _] = call.operands;
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[self.x, table, positions],
            &[self.y],
        )
    }
}

operation!(Rope, RopeDesc, |checked| checked.desc);

/// What an i32 tensor adds to the mode.
fn signed(positions: &Tensor) -> u32 {
    if positions.dtype() == DType::I32 { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_point_turns() {
        let tau = std::f64::consts::TAU;
        assert_eq!(fixed_turns(tau / 4.0), 1 << 62);
        assert_eq!(fixed_turns(tau * 1.5), 1 << 63);
        let turns = fixed_turns(1.0);
        // A million positions later the angle is still right to 2^-30 of a turn.
        let after = turns.wrapping_mul(1_000_000) as f64 / 2f64.powi(64);
        assert!((after - (1e6 / tau).fract()).abs() < 2f64.powi(-30), "{after}");
    }

    #[test]
    fn llama3_keeps_short_and_stretches_long_wavelengths() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        // With dims 2 and base f, pair 1 would have frequency 1 / f.
        let of = |scaling: RopeScaling, frequency: f64| scaling.frequency(1, 2, 1.0 / frequency);
        assert_eq!((of(scaling, 1.0), of(scaling, 0.5)), (1.0, 0.5));
        assert!((of(scaling, 1e-5) - 1e-5 / 8.0).abs() < 1e-18);
        let turns = 2.5 * std::f64::consts::TAU / 8192.0;
        assert!((of(scaling, turns) - turns * (0.5 / 8.0 + 0.5)).abs() < 1e-12);
        assert_eq!(of(RopeScaling::Linear(4.0), 1.0), 0.25);
        assert!(RopeScaling::Linear(0.0).wrong().is_some() && scaling.wrong().is_none());
    }

    #[test]
    fn ntk_stretches_the_slowest_pair_and_keeps_the_fastest() {
        let (plain, ntk) = (RopeScaling::None, RopeScaling::Ntk(8.0));
        assert_eq!(ntk.frequency(0, 128, 1e4), 1.0);
        let ratio = plain.frequency(63, 128, 1e4) / ntk.frequency(63, 128, 1e4);
        assert!((ratio - 8.0).abs() < 1e-9, "{ratio}");
        assert_eq!(ntk.frequency(0, 2, 1e4), 1.0);
    }

    /// The bounds of 128 dims at base 10,000 and a context of 4096 are pairs 20 and 46, worked by hand.
    #[test]
    fn yarn_blends_between_the_pairs_of_its_bounds() {
        let (plain, yarn) =
            (RopeScaling::None, RopeScaling::Yarn { factor: 16.0, original: 4096.0, fast: 32.0, slow: 1.0 });
        let ratio = |i| yarn.frequency(i, 128, 1e4) / plain.frequency(i, 128, 1e4);
        assert_eq!((ratio(0), ratio(20)), (1.0, 1.0));
        for (i, want) in [(33, 0.5 + 0.5 / 16.0), (46, 1.0 / 16.0), (63, 1.0 / 16.0)] {
            assert!((ratio(i) - want).abs() < 1e-12, "{i}: {}", ratio(i));
        }
        assert!((yarn.attention_factor() - 1.277_258_872).abs() < 1e-9);
        assert_eq!(RopeScaling::Ntk(8.0).attention_factor(), 1.0);
    }
}
