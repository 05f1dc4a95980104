//! From a checked call to one or two commands.

use super::check::{Checked, OUT};
use super::{Attention, Causal, OP};
use crate::args::{AttentionArgs, CombineArgs};
use crate::dtype::DType;
use crate::error::Result;
use crate::nn::AttentionDesc;
use crate::nn::cache::Start;
use crate::plan::{ATTENTION, Desc, Plan};
use crate::stream::{Access, Binding, Encoded, Stream, Work};
use crate::tensor::{Scalar, Tensor};
use smallvec::{SmallVec, smallvec};

/// Strides of batch (pages), token and head.
fn strides(t: &Tensor) -> [u64; 3] {
    match *t.strides() {
        [b, t, h, _] => [b as u64, t as u64, h as u64],
        [t, h, _] => [0, t as u64, h as u64],
        _ => unreachable!("INVARIANT: checked"),
    }
}

/// The same of one number for each row.
fn scale_strides(t: &Tensor) -> [u64; 3] {
    match *t.strides() {
        [b, t, h] => [b as u64, t as u64, h as u64],
        [t, h] => [0, t as u64, h as u64],
        _ => unreachable!("INVARIANT: checked"),
    }
}

impl Attention<'_> {
    pub(super) fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let checked = self.check()?;
        let stream = checked.call.stream(stream)?;
        let desc = &checked.desc;
        if desc.rows() == 0 || desc.dim == 0 || desc.sequences == 0 {
            return Ok(());
        }
        let rt = self.q.runtime();
        let problem = Desc::Attention(desc.clone());
        let prepared = match self.plan {
            Some(plan) => rt.prepare_candidate(OP, &problem, plan)?,
            None => rt.prepare(&problem)?,
        };
        let plan = &prepared.plan;
        let args = self.args(&checked, plan);
        let mut bindings: SmallVec<[Binding; 6]> =
            checked.call.operands[..OUT].iter().map(|(_, t)| t.binding(Access::Read)).collect();
        bindings.push(self.out.binding(Access::Write));
        // Kernels that read coded keys take their scales last.
        let scales = if plan.kernel.module == ATTENTION { &checked.call.operands[OUT + 1..] } else { &[] };
        let scales = scales.iter().map(|(_, t)| t.binding(Access::Read));
        let kernel = |pipeline, plan: &Plan| {
            let (grid, threads, shared_bytes) = (plan.grid, plan.threads, plan.shared_bytes);
            Work::Kernel { pipeline, grid, threads, shared_bytes }
        };
        if plan.split == 1 {
            // Where there are no parts, out takes the place of their memory.
            bindings.push(self.out.binding(Access::Write));
            bindings.extend(scales);
            let work = kernel(prepared.pipeline, plan);
            return rt.encode_on(stream, Encoded { label: OP, work, args: bytemuck::bytes_of(&args), bindings });
        }
        let joined = rt.prepare(&Desc::Combine(desc.combine(plan.split)))?;
        let scratch = rt.scratch(stream, OP, plan.scratch_bytes)?.expect("INVARIANT: parts take memory");
        bindings.push(scratch.clone());
        bindings.extend(scales);
        let combine = self.combine_args(&checked, plan, &joined.plan);
        let out = self.out.binding(Access::Write);
        let parts = Binding { access: Access::Read, ..scratch };
        let sinks = checked.call.operands[4].1.binding(Access::Read);
        let commands = [
            Encoded { label: OP, work: kernel(prepared.pipeline, plan), args: bytemuck::bytes_of(&args), bindings },
            Encoded {
                label: OP,
                work: kernel(joined.pipeline, &joined.plan),
                args: bytemuck::bytes_of(&combine),
                bindings: smallvec![parts, sinks, out],
            },
        ];
        rt.encode_all_on(stream, commands)
    }

    fn args(&self, checked: &Checked<'_>, plan: &Plan) -> AttentionArgs {
        let d: &AttentionDesc = &checked.desc;
        let ([q_b, q_t, q_h], [k_b, k_t, k_h]) = (strides(self.q), strides(self.k));
        let ([v_b, v_t, v_h], [o_b, o_t, o_h]) = (strides(self.v), strides(self.out));
        let [m_b, m_h, m_t, m_k] = checked.mask;
        let none = [0; 3];
        let scales = |i: usize| self.scales.map_or(none, |scales| scale_strides(scales[i]));
        let ([ks_b, ks_t, ks_h], [vs_b, vs_t, vs_h]) = (scales(0), scales(1));
        let first = |t: Option<&Tensor>| t.map_or(0, |t| t.strides()[0] as u64);
        let lengths = self.cu_k.or(self.lengths);
        let (start_mode, start) = match self.causal {
            None => (0, 0),
            Some(Causal::At(Start::At(Scalar::Host(start)))) => (1, start.into()),
            Some(Causal::At(_)) => (2, 0),
            Some(Causal::End) => (3, 0),
        };
        #[allow(clippy::cast_possible_truncation)] // Rounded once.
        let scale = self.scale.unwrap_or_else(|| f64::from(d.dim).sqrt().recip() as f32);
        let (softcap, inverse_softcap) = self.softcap.map_or((0.0, 0.0), |c| (c, 1.0 / c));
        let k_rows = if d.page > 0 { self.k.shape()[0] } else { 0 };
        AttentionArgs {
            q_b,
            q_t,
            q_h,
            k_b,
            k_t,
            k_h,
            v_b,
            v_t,
            v_h,
            o_b,
            o_t,
            o_h,
            ks_b,
            ks_t,
            ks_h,
            vs_b,
            vs_t,
            vs_h,
            m_b,
            m_h,
            m_t,
            m_k,
            table_s: first(self.table),
            length_s: first(lengths),
            cu_s: first(self.cu_q),
            sink_s: first(self.sinks),
            start_s: checked.start_stride,
            start,
            work: plan.tiles.iter().map(|&t| u64::from(t)).product(),
            sequences: d.sequences,
            queries: d.queries,
            keys: d.keys,
            heads: d.heads,
            kv_heads: d.kv_heads,
            group: d.group(),
            dim: d.dim,
            page: d.page,
            pages: u32::try_from(k_rows).expect("INVARIANT: checked against the limit"),
            packed: u32::from(d.packed),
            length_mode: if self.cu_k.is_some() { 2 } else { u32::from(lengths.is_some()) },
            start_mode,
            window: self.window.unwrap_or(0),
            mask: match d.mask {
                None => 0,
                Some(DType::U8) => 1,
                Some(DType::F32) => 2,
                Some(DType::F16) => 3,
                Some(_) => 4,
            },
            has_sinks: u32::from(self.sinks.is_some()),
            coded: u32::from(d.coded),
            unused: 0,
            tile: plan.tile[0],
            tiles: plan.tiles[0],
            split: plan.split,
            groups: plan.grid[0],
            scale,
            softcap,
            inverse_softcap,
        }
    }

    fn combine_args(&self, checked: &Checked<'_>, plan: &Plan, joined: &Plan) -> CombineArgs {
        let [o_b, o_t, o_h] = strides(self.out);
        let d = &checked.desc;
        CombineArgs {
            o_b,
            o_t,
            o_h,
            sink_s: self.sinks.map_or(0, |t| t.strides()[0] as u64),
            rows: d.rows(),
            queries: d.queries,
            heads: d.heads,
            dim: d.dim,
            split: plan.split,
            has_sinks: u32::from(self.sinks.is_some()),
            groups: joined.grid[0],
        }
    }
}
