//! Operands in memory with slack and canaries, a plan for one instruction set, and the reference.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::super::super::plan::plan;
use super::super::super::registry::builtins;
use super::super::super::tables::PROFILES;
use super::super::super::{FaultCell, KernelCall, Pool, isa, memory};
use crate::args::GemmArgs;
use crate::device::cpu::Bound;
use crate::device::{DeviceProfile, Isa};
use crate::dtype::DType;
use crate::gemm::{Activation, Bias, Factor, GemmBackend, GemmDesc, GemmExtras, Layout, Precision};
use crate::plan::{Desc, Plan};
use crate::stream::Access;
use half::{bf16, f16};

/// Elements between, before and behind the operands.
const SLACK: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Strides {
    /// Rows contiguous.
    Row,
    /// Columns contiguous.
    Col,
    /// Every second element of every row.
    Wide,
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) batch: usize,
    pub(super) input: DType,
    pub(super) output: DType,
    pub(super) a: Strides,
    pub(super) b: Strides,
    pub(super) b_shared: bool,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) bias: u32,
    /// Element type of the bias.
    pub(super) bias_dtype: DType,
    pub(super) activation: Activation,
    pub(super) backend: GemmBackend,
    /// The reference is wanted.
    pub(super) check: bool,
}

impl Case {
    pub(super) fn new(m: usize, n: usize, k: usize, input: DType, output: DType) -> Self {
        Case {
            m,
            n,
            k,
            batch: 1,
            input,
            output,
            a: Strides::Row,
            b: Strides::Row,
            b_shared: false,
            alpha: 1.0,
            beta: 0.0,
            bias: 0,
            bias_dtype: DType::F32,
            activation: Activation::None,
            backend: GemmBackend::TensorOps,
            check: true,
        }
    }

    pub(super) fn desc(&self) -> GemmDesc {
        let size = |x: usize| u32::try_from(x).expect("small");
        let layout = |s| if s == Strides::Col { Layout::ColMajor } else { Layout::RowMajor };
        GemmDesc {
            m: size(self.m),
            n: size(self.n),
            k: size(self.k),
            batch: size(self.batch),
            input: self.input,
            output: self.output,
            a: layout(self.a),
            b: layout(self.b),
            b_shared: self.b_shared,
            a_align: 2,
            b_align: 2,
            c_align: 2,
            alpha: Factor::of(self.alpha),
            beta: Factor::of(self.beta),
            bias: match self.bias {
                0 => Bias::None,
                1 => Bias::Column(self.bias_dtype),
                _ => Bias::Row(self.bias_dtype),
            },
            activation: self.activation,
            precision: Precision::Exact,
            backend: self.backend,
            extras: GemmExtras::default(),
        }
    }
}

/// The small integers of known-faults.md.
pub(super) fn pa(i: usize, k: usize) -> f64 {
    ((131 * i + 71 * k + i * k) % 7) as f64 - 1.0
}

pub(super) fn pb(k: usize, j: usize) -> f64 {
    ((57 * k + 101 * j + k * j) % 5) as f64 - 1.0
}

/// Profiles whose kernels run here.
pub(super) fn profiles() -> impl Iterator<Item = &'static DeviceProfile> {
    PROFILES.iter().filter(|p| isa::usable(p.isa))
}

fn encode(x: f64, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(x).to_bits().to_ne_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(x).to_bits().to_ne_bytes().to_vec(),
        _ => (x as f32).to_ne_bytes().to_vec(),
    }
}

fn decode(bytes: &[u8], dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        _ => f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    }
}

/// Bytes filled with NaN of `dtype`, where elements are set one by one.
struct Operand {
    bytes: Vec<u8>,
    dtype: DType,
    strides: [usize; 3],
}

impl Operand {
    fn new(batch: usize, rows: usize, cols: usize, kind: Strides, dtype: DType) -> Self {
        let (rs, cs) = match kind {
            Strides::Row => (cols + SLACK, 1),
            Strides::Col => (1, rows + SLACK),
            Strides::Wide => (2 * cols + SLACK, 2),
        };
        let matrix = rows * rs.max(1) + cols * cs + SLACK;
        let nan = encode(f64::NAN, dtype);
        let bytes = nan.iter().copied().cycle().take((batch * matrix + 2 * SLACK) * dtype.size()).collect();
        Operand { bytes, dtype, strides: [matrix, rs, cs] }
    }

    fn offset(&self, z: usize, i: usize, j: usize) -> usize {
        (SLACK + z * self.strides[0] + i * self.strides[1] + j * self.strides[2]) * self.dtype.size()
    }

    fn set(&mut self, z: usize, i: usize, j: usize, x: f64) {
        let (at, value) = (self.offset(z, i, j), encode(x, self.dtype));
        self.bytes[at..at + value.len()].copy_from_slice(&value);
    }

    fn get(&self, z: usize, i: usize, j: usize) -> f64 {
        decode(&self.bytes[self.offset(z, i, j)..], self.dtype)
    }

    fn bound(&mut self, access: Access) -> Bound {
        let start = SLACK * self.dtype.size();
        Bound { ptr: self.bytes[start..].as_mut_ptr(), bytes: self.bytes.len() - start, access }
    }
}

/// What a run gives: the plan, the values of C, and all bytes of its memory.
pub(super) struct Outcome {
    pub(super) plan: Plan,
    pub(super) got: Vec<f64>,
    pub(super) want: Vec<f64>,
    pub(super) bytes: Vec<u8>,
}

/// Runs the case with the plan of `profile`, on values A[z,i,k] and B[z,k,j].
pub(super) fn run(
    case: &Case,
    profile: &DeviceProfile,
    threads: usize,
    a: &dyn Fn(usize, usize, usize) -> f64,
    b: &dyn Fn(usize, usize, usize) -> f64,
) -> Outcome {
    let plan = plan(&Desc::Gemm(case.desc()), profile).expect("a plan");
    run_plan(case, plan, threads, a, b)
}

pub(super) fn run_plan(
    case: &Case,
    plan: Plan,
    threads: usize,
    a: &dyn Fn(usize, usize, usize) -> f64,
    b: &dyn Fn(usize, usize, usize) -> f64,
) -> Outcome {
    let c @ &Case { m, n, k, batch, .. } = case;
    let mut oa = Operand::new(batch, m, k, c.a, c.input);
    let mut ob = Operand::new(if c.b_shared { 1 } else { batch }, k, n, c.b, c.input);
    let mut oc = Operand::new(batch, m, n, Strides::Row, c.output);
    let mut bias = Operand::new(1, 1, m.max(n), Strides::Row, c.bias_dtype);
    let canary = |i: usize| (i % 251) as u8;
    (0..oc.bytes.len()).for_each(|i| oc.bytes[i] = canary(i));
    let old = |z: usize, i: usize, j: usize| (z + 2 * i + j) as f64 % 5.0 - 2.0;
    for z in 0..batch {
        for i in 0..m {
            (0..k).for_each(|p| oa.set(z, i, p, a(z, i, p)));
            (0..n).for_each(|j| oc.set(z, i, j, if c.beta == 0.0 { f64::NAN } else { old(z, i, j) }));
        }
        for p in 0..if c.b_shared && z > 0 { 0 } else { k } {
            (0..n).for_each(|j| ob.set(z, p, j, b(z, p, j)));
        }
    }
    (0..m.max(n)).for_each(|j| bias.set(0, 0, j, (j % 9) as f64 - 4.0));
    let want = if case.check { reference(case, [&oa, &ob, &oc, &bias]) } else { Vec::new() };
    let mut bindings = vec![oa.bound(Access::Read), ob.bound(Access::Read), oc.bound(Access::Write)];
    bindings.push(if c.bias == 0 { oc.bound(Access::Read) } else { bias.bound(Access::Read) });
    let scratch = (plan.scratch_bytes > 0).then(|| {
        let bytes = usize::try_from(plan.scratch_bytes).expect("fits");
        let ptr = memory::map(bytes).expect("room");
        // NaN, so that what is not packed shows.
        // SAFETY: just mapped.
        unsafe { ptr.write_bytes(0xFF, bytes) };
        Bound { ptr, bytes, access: Access::Write }
    });
    bindings.extend(scratch);
    launch(c, &plan, threads, &bindings, [&oa, &ob, &oc].map(|o| o.strides.map(|s| s as u64)));
    if let Some(Bound { ptr, bytes, .. }) = scratch {
        // SAFETY: mapped above.
        unsafe { memory::unmap(ptr, bytes) };
    }
    let mut got = Vec::with_capacity(want.len());
    let mut bytes = oc.bytes.clone();
    for z in 0..batch {
        for i in 0..m {
            for j in 0..n {
                got.push(oc.get(z, i, j));
                let at = oc.offset(z, i, j);
                (at..at + c.output.size()).for_each(|i| bytes[i] = canary(i));
            }
        }
    }
    assert!((0..bytes.len()).all(|i| bytes[i] == canary(i)), "bytes beside C were written: {case:?}");
    Outcome { plan, got, want, bytes: oc.bytes }
}

/// The values of C, as the operands were stored.
fn reference(c: &Case, [oa, ob, oc, bias]: [&Operand; 4]) -> Vec<f64> {
    let mut want = Vec::with_capacity(c.batch * c.m * c.n);
    for z in 0..c.batch {
        let zb = if c.b_shared { 0 } else { z };
        let columns: Vec<f64> = (0..c.n).flat_map(|j| (0..c.k).map(move |p| ob.get(zb, p, j))).collect();
        for i in 0..c.m {
            let row: Vec<f64> = (0..c.k).map(|p| oa.get(z, i, p)).collect();
            for j in 0..c.n {
                let column = &columns[j * c.k..][..c.k];
                let sum: f64 = row.iter().zip(column).map(|(a, b)| a * b).sum();
                let mut t = if c.k == 0 { 0.0 } else { f64::from(c.alpha) * sum };
                if c.beta != 0.0 {
                    t += f64::from(c.beta) * oc.get(z, i, j);
                }
                t += [0.0, bias.get(0, 0, j), bias.get(0, 0, i)][c.bias as usize];
                want.push(activate(t, c.activation));
            }
        }
    }
    want
}

fn launch(c: &Case, plan: &Plan, threads: usize, bindings: &[Bound], [sa, sb, sc]: [[u64; 3]; 3]) {
    let size = |x: usize| u32::try_from(x).expect("small");
    let args = GemmArgs {
        a_rs: sa[1],
        a_cs: sa[2],
        a_bs: sa[0],
        b_rs: sb[1],
        b_cs: sb[2],
        b_bs: if c.b_shared { 0 } else { sb[0] },
        c_rs: sc[1],
        c_bs: sc[0],
        m: size(c.m),
        n: size(c.n),
        k: size(c.k),
        batch: size(c.batch),
        tile_m: plan.tile[0],
        tile_n: plan.tile[1],
        tile_k: plan.tile[2],
        tiles_m: plan.tiles[0],
        tiles_n: plan.tiles[1],
        bias: c.bias,
        activation: c.activation.code(),
        alpha: c.alpha,
        beta: c.beta,
        bias_typed: u32::from(c.bias_dtype != DType::F32),
        ..GemmArgs::default()
    };
    let builtin = builtins().find(|b| b.name == plan.kernel.name).unwrap_or_else(|| panic!("{}", plan.kernel.name));
    let (pool, fault) = (Pool::new(threads), FaultCell::default());
    let call = KernelCall { args: bytemuck::bytes_of(&args), bindings, pool: &pool, fault: &fault };
    // SAFETY: the bindings hold the matrices that `args` describes, and `profiles` filtered the instruction set.
    unsafe { (builtin.function)(&call) };
}

fn activate(t: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => t,
        Activation::Relu => t.max(0.0),
        Activation::Silu => t / (1.0 + (-t).exp()),
        _ => 0.5 * t * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (t + 0.044715 * t.powi(3))).tanh()),
    }
}

/// `want` as the output's type holds it.
pub(super) fn rounded(want: f64, output: DType) -> f64 {
    decode(&encode(f64::from(want as f32), output), output)
}

/// Exact equality, for integer patterns.
pub(super) fn assert_equal(case: &Case, outcome: &Outcome) {
    for (at, (&got, &want)) in outcome.got.iter().zip(&outcome.want).enumerate() {
        let want = rounded(want, case.output);
        let (i, j) = (at / case.n, at % case.n);
        assert!(got == want, "C[{i}, {j}] = {got}, not {want}: {case:?}\n{:?}", outcome.plan);
    }
}

/// The instruction set of a plan's kernel.
pub(super) fn isa_of(plan: &Plan) -> Isa {
    builtins().find(|b| b.name == plan.kernel.name).expect("a built-in kernel").isa
}
