//! From a checked product to a command.

use super::Gemm;
use super::check::{Checked, Matrix};
use crate::args::GemmArgs;
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Desc;
use crate::stream::{Access, Encoded, Stream, Work};
use smallvec::SmallVec;

impl Gemm<'_> {
    pub(super) fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let stream = stream.as_deref();
        let checked = self.check()?;
        let rt = self.a.runtime();
        if let Some(stream) = stream
            && !rt.is_same(stream.runtime())
        {
            return Err(crate::Error::WrongRuntime { op: "gemm", operand: "stream" });
        }
        let Checked { desc, a, b, c } = checked;
        if desc.m == 0 || desc.n == 0 || desc.batch == 0 {
            return Ok(());
        }
        let (bias_code, bias_dtype) = (desc.bias.code(), self.epilogue.bias.map(|t| t.dtype()));
        let problem = Desc::Gemm(desc.clone());
        let prepared = match self.plan {
            Some(plan) => rt.prepare_candidate("gemm", &problem, plan)?,
            None => rt.prepare(&problem)?,
        };
        let plan = &prepared.plan;
        let strides = |m: &Matrix| (m.row_stride as u64, m.column_stride as u64, m.batch_stride as u64);
        let ((a_rs, a_cs, a_bs), (b_rs, b_cs, b_bs), (c_rs, _, c_bs)) = (strides(&a.1), strides(&b.1), strides(&c.1));
        let args = GemmArgs {
            a_rs,
            a_cs,
            a_bs,
            b_rs,
            b_cs,
            b_bs,
            c_rs,
            c_bs,
            m: desc.m,
            n: desc.n,
            k: desc.k,
            batch: desc.batch,
            tile_m: plan.tile[0],
            tile_n: plan.tile[1],
            tile_k: plan.tile[2],
            tiles_m: plan.tiles[0],
            tiles_n: plan.tiles[1],
            bias: bias_code,
            bias_typed: u32::from(bias_dtype.is_some_and(|d| d != DType::F32)),
            activation: desc.activation.code(),
            alpha: self.epilogue.alpha,
            beta: self.epilogue.beta,
        };
        // Four operands always: without a bias its place is taken by C, which the kernel then does not read.
        let mut bindings = SmallVec::new();
        bindings.push(a.0.binding(Access::Read));
        bindings.push(b.0.binding(Access::Read));
        bindings.push(c.0.binding(Access::Write));
        bindings.push(self.epilogue.bias.unwrap_or(c.0).binding(Access::Read));
        bindings.extend(rt.scratch(stream, "gemm", plan.scratch_bytes)?);
        let work = Work::Kernel {
            pipeline: prepared.pipeline,
            grid: plan.grid,
            threads: plan.threads,
            shared_bytes: plan.shared_bytes,
        };
        rt.encode_on(stream, Encoded { label: "gemm", work, args: bytemuck::bytes_of(&args), bindings })
    }
}
