//! From a checked product to a command.

use super::check::{Checked, Matrix};
use super::packed::Weights;
use super::{Gemm, Offsets, Up};
use crate::args::GemmArgs;
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::{Desc, FUSED_GEMM, Plan};
use crate::runtime::Prepared;
use crate::stream::{Access, Encoded, Stream, Work};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::sync::Arc;

/// The number that kernels know an 8-bit type by.
pub(super) fn short_type(dtype: DType) -> u32 {
    match dtype {
        DType::U8 => 1,
        DType::F8E4M3 => 2,
        DType::F8E5M2 => 3,
        _ => 0,
    }
}

/// 0 none, 1 f32, 2 the type of C.
fn vector_type(vector: Option<&Tensor>) -> u32 {
    vector.map_or(0, |t| if t.dtype() == DType::F32 { 1 } else { 2 })
}

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
        let no_groups = matches!(self.offsets, Some(Offsets::Device(_))) && checked.desc.extras.groups == 0;
        if checked.is_empty() || no_groups {
            return Ok(());
        }
        if let Some(Offsets::Host(offsets)) = self.offsets {
            return self.encode_groups(offsets, stream);
        }
        let prepared = self.prepare(&checked)?;
        self.encode_checked(&checked, &prepared, stream)
    }

    fn prepare(&self, checked: &Checked<'_>) -> Result<Arc<Prepared>> {
        let (rt, problem) = (self.a.runtime(), Desc::Gemm(checked.desc.clone()));
        match self.plan {
            Some(plan) => rt.prepare_candidate("gemm", &problem, plan),
            None => rt.prepare(&problem),
        }
    }

    /// Groups that the host knows: a product each, all of them planned before the first is encoded.
    fn encode_groups(&self, offsets: &[u32], stream: Option<&Stream>) -> Result<()> {
        let mut plans: Vec<(usize, Arc<Prepared>)> = Vec::new();
        for (g, bounds) in offsets.windows(2).enumerate().filter(|(_, b)| b[0] < b[1]) {
            let prepared = self.with_group(g, bounds, |gemm, checked| gemm.prepare(checked))?;
            plans.push((g, prepared));
        }
        for (g, prepared) in plans {
            self.with_group(g, &offsets[g..g + 2], |gemm, checked| gemm.encode_checked(checked, &prepared, stream))?;
        }
        Ok(())
    }

    /// Calls `then` with the product of group `g` alone.
    fn with_group<T>(
        &self,
        g: usize,
        bounds: &[u32],
        then: impl FnOnce(&Gemm<'_>, &Checked<'_>) -> Result<T>,
    ) -> Result<T> {
        let (start, rows) = (bounds[0] as usize, (bounds[1] - bounds[0]) as usize);
        let part = |t: &Tensor| t.narrow(t.rank().saturating_sub(2), start, rows);
        let vector = |t: &Tensor| t.narrow(t.rank() - 1, start, rows);
        let (a, c) = (part(self.a)?, part(self.c)?);
        let residual = self.residual.map(part).transpose()?;
        let (row_bias, row_scale) = (self.row_bias.map(vector).transpose()?, self.row_scale.map(vector).transpose()?);
        let (tensor, packed);
        let b = match self.b {
            Weights::Tensor(b) => {
                tensor = b.select(0, g)?;
                Weights::Tensor(&tensor)
            }
            Weights::Packed(p) => {
                packed = p.select(g)?;
                Weights::Packed(&packed)
            }
        };
        let up_tensor;
        let up = match self.up {
            Up::Tensor(t) => {
                up_tensor = t.select(0, g)?;
                Up::Tensor(&up_tensor)
            }
            Up::Half => Up::Half,
            Up::None => Up::None,
        };
        let gemm = Gemm {
            a: &a,
            b,
            c: &c,
            up,
            residual: residual.as_ref(),
            row_bias: row_bias.as_ref(),
            row_scale: row_scale.as_ref(),
            offsets: None,
            ..self.clone()
        };
        let checked = gemm.check()?;
        then(&gemm, &checked)
    }

    fn encode_checked(&self, checked: &Checked<'_>, prepared: &Prepared, stream: Option<&Stream>) -> Result<()> {
        let (rt, plan) = (self.a.runtime(), &prepared.plan);
        let args = self.args(checked, plan);
        // Four operands always: without a bias its place is taken by C, which the kernel then does not read.
        let (c, extras) = (checked.c.0, &checked.desc.extras);
        let mut bindings = SmallVec::new();
        bindings.push(checked.a.0.binding(Access::Read));
        bindings.push(checked.b.0.binding(Access::Read));
        bindings.push(c.binding(Access::Write));
        bindings.push(checked.bias.unwrap_or(c).binding(Access::Read));
        // The kernel for the whole formula takes all operands, also where the formula is the plain one.
        if !extras.is_plain() || plan.kernel.module == FUSED_GEMM {
            let offsets = match self.offsets {
                Some(Offsets::Device(tensor)) => Some(tensor),
                _ => None,
            };
            let (block_a, block_b) = self.block_scales.unzip();
            let up = checked.up.as_ref().map(|(t, _)| &**t);
            let residual = checked.residual.map(|(t, _)| t);
            let more = [up, checked.row_scale, checked.col_scale, residual, offsets, block_a, block_b];
            bindings.extend(more.into_iter().map(|t| t.unwrap_or(c).binding(Access::Read)));
        }
        bindings.extend(rt.scratch(stream, "gemm", plan.scratch_bytes)?);
        let work = Work::Kernel {
            pipeline: prepared.pipeline,
            grid: plan.grid,
            threads: plan.threads,
            shared_bytes: plan.shared_bytes,
        };
        rt.encode_on(stream, Encoded { label: "gemm", work, args: bytemuck::bytes_of(&args), bindings })
    }

    fn args(&self, checked: &Checked<'_>, plan: &Plan) -> GemmArgs {
        let strides = |m: &Matrix| (m.row_stride as u64, m.column_stride as u64, m.batch_stride as u64);
        let Checked { desc, a, b, c, up, .. } = checked;
        let ((a_rs, a_cs, a_bs), (b_rs, b_cs, b_bs), (c_rs, _, c_bs)) = (strides(&a.1), strides(&b.1), strides(&c.1));
        let (u_rs, u_cs, u_bs) = up.as_ref().map_or((0, 0, 0), |up| strides(&up.1));
        let (r_rs, _, r_bs) = checked.residual.as_ref().map_or((0, 0, 0), |r| strides(&r.1));
        let extras = &desc.extras;
        GemmArgs {
            a_rs,
            a_cs,
            a_bs,
            b_rs,
            b_cs,
            b_bs,
            c_rs,
            c_bs,
            u_rs,
            u_cs,
            u_bs,
            r_rs,
            r_bs,
            m: desc.m,
            n: desc.n,
            k: desc.k,
            batch: desc.batch,
            tile_m: plan.tile[0],
            tile_n: plan.tile[1],
            tile_k: plan.tile[2],
            tiles_m: plan.tiles[0],
            tiles_n: plan.tiles[1],
            bias: desc.bias.code(),
            bias_typed: u32::from(checked.bias.is_some_and(|t| t.dtype() != DType::F32)),
            activation: desc.activation.code(),
            alpha: self.epilogue.alpha,
            beta: self.epilogue.beta,
            row_scale: vector_type(checked.row_scale),
            col_scale: vector_type(checked.col_scale),
            residual: u32::from(extras.residual),
            gated: u32::from(extras.gated),
            packed: u32::from(extras.packed),
            a_type: short_type(desc.input),
            b_type: short_type(desc.input_b()),
            groups: extras.groups,
            block_scales: u32::from(extras.block_scales),
            c_type: short_type(desc.output),
        }
    }
}

impl Checked<'_> {
    fn is_empty(&self) -> bool {
        self.desc.m == 0 || self.desc.n == 0 || self.desc.batch == 0
    }
}
