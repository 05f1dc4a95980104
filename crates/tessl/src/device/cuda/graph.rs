//! Captured batches as CUDA graphs, built node by node: faster to replay than a captured stream, and the edges are ours.

use super::context::Context;
use super::driver::{CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, FillNode, KernelNode};
use super::launch::{Env, unknown_pipeline};
use super::pieces::{CopyPiece, FillPiece, pieces, size};
use super::registry::Registry;
use super::status::StatusBlock;
use crate::device::labels::Labels;
use crate::error::Result;
use crate::stream::{Batch, Command, Work};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

/// Longest linear copy of one node: its pitch has a limit just below 2 GiB.
const MAX_RUN: u64 = 1 << 30;

/// An instantiated graph.
pub(super) struct Baked {
    pub(super) exec: CUgraphExec,
    /// The block its kernels report to, if any does. A graph has its own because addresses are frozen in it.
    pub(super) status: Option<StatusBlock>,
    pub(super) labels: Labels,
    pub(super) context: Arc<Context>,
    /// Keeps the modules loaded.
    _registry: Arc<Registry>,
}

// SAFETY: an executable graph is launched by one queue at a time (a graph never runs twice at once) and destroyed once.
unsafe impl Send for Baked {}
// SAFETY: as for Send; nothing is changed through a shared reference.
unsafe impl Sync for Baked {}

impl Drop for Baked {
    fn drop(&mut self) {
        if self.context.enter_quietly() {
            // SAFETY: destroyed once; the driver keeps a graph in flight until it has finished.
            unsafe { (self.context.driver.f.graph_exec_destroy)(self.exec) };
        }
    }
}

/// The commands between barriers. A barrier waits for all before it, so a level depends on the level before as a whole,
/// and commands of one level are branches that may run side by side.
fn levels(barriers: impl ExactSizeIterator<Item = bool>) -> Vec<Range<usize>> {
    let mut levels = Vec::new();
    let (mut start, end) = (0, barriers.len());
    for (i, barrier) in barriers.enumerate() {
        if barrier && i > start {
            levels.push(start..i);
            start = i;
        }
    }
    if start < end {
        levels.push(start..end);
    }
    levels
}

/// Builds and instantiates the graph of a batch.
pub(super) fn bake(context: &Arc<Context>, registry: &Arc<Registry>, batch: &Batch) -> Result<Baked> {
    context.enter()?;
    let f = &context.driver.f;
    let pipelines = registry.pipelines();
    let mut env = Env { context, pipelines: &pipelines, status: 0 };
    let reports = batch.commands().iter().any(|c| env.pipeline(&c.work).is_some_and(|p| p.status));
    let status = reports.then(|| StatusBlock::new(context)).transpose()?;
    env.status = status.as_ref().map_or(0, |s| s.address);

    let mut graph = Building { context, graph: ptr::null_mut() };
    // SAFETY: the pointer is valid for one handle; flags must be 0.
    let code = unsafe { (f.graph_create)(&mut graph.graph, 0) };
    context.check(code, "cuGraphCreate")?;
    let mut previous: Vec<Node> = Vec::new();
    for level in levels(batch.commands().iter().map(|c| c.barrier)) {
        if previous.len() > 2 && level.len() > 2 {
            previous = vec![graph.join(&previous)?]; // p + l edges in place of p * l
        }
        let mut nodes = Vec::with_capacity(level.len());
        for command in &batch.commands()[level] {
            graph.add(&env, batch, command, &previous, &mut nodes)?;
        }
        // A level of empty commands passes on what it would have waited for.
        if !nodes.is_empty() {
            previous = nodes;
        }
    }
    let mut exec = ptr::null_mut();
    // SAFETY: the graph is complete; the pointer is valid for one handle.
    let code = unsafe { (f.graph_instantiate)(&mut exec, graph.graph, 0) };
    context.driver.check(code, "cuGraphInstantiate", || format!("{} commands", batch.commands().len()))?;
    let labels = Labels::of(batch.commands());
    Ok(Baked { exec, status, labels, context: context.clone(), _registry: registry.clone() })
}

/// A node that others come after.
#[derive(Clone, Copy)]
struct Node {
    node: CUgraphNode,
    kernel: bool,
}

/// The edge from a kernel to one that may start before it ends.
const FROM_RELEASE: CUgraphEdgeData = CUgraphEdgeData { from_port: 1, to_port: 0, type_: 1, reserved: [0; 5] };

/// A graph under construction; the executable graph does not need it afterwards.
struct Building<'a> {
    context: &'a Context,
    graph: CUgraph,
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            // SAFETY: created by `bake`, destroyed once.
            unsafe { (self.context.driver.f.graph_destroy)(self.graph) };
        }
    }
}

impl Building<'_> {
    /// A node that only waits.
    fn join(&self, after: &[Node]) -> Result<Node> {
        let mut node = ptr::null_mut();
        let after: Vec<CUgraphNode> = after.iter().map(|a| a.node).collect();
        // SAFETY: the nodes belong to this graph.
        let code = unsafe { (self.context.driver.f.graph_empty)(&mut node, self.graph, after.as_ptr(), after.len()) };
        self.context.check(code, "cuGraphAddEmptyNode")?;
        Ok(Node { node, kernel: false })
    }

    /// Adds the nodes of one command, each after all of `after`.
    fn add(
        &self,
        env: &Env<'_>,
        batch: &Batch,
        command: &Command,
        after: &[Node],
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        let f = &self.context.driver.f;
        let pipeline = env.pipeline(&command.work);
        // Kernels before a kernel that waits by itself have edges of another kind, which come after the node.
        let early = self.context.driver.add_edges.filter(|_| pipeline.is_some_and(|p| p.dependent));
        let (released, after): (Vec<Node>, Vec<Node>) = after.iter().partition(|a| early.is_some() && a.kernel);
        let after: Vec<CUgraphNode> = after.iter().map(|a| a.node).collect();
        let (from, count) = (after.as_ptr(), after.len());
        let mut push = |add: &mut dyn FnMut(&mut CUgraphNode) -> u32| {
            let mut node = ptr::null_mut();
            let code = add(&mut node);
            env.check(code, command)?;
            nodes.push(Node { node, kernel: matches!(command.work, Work::Kernel { .. }) });
            if let (Some(add_edges), false) = (early, released.is_empty()) {
                let from: Vec<CUgraphNode> = released.iter().map(|r| r.node).collect();
                let (to, kinds) = (vec![node; from.len()], vec![FROM_RELEASE; from.len()]);
                // SAFETY: the nodes belong to this graph; all three lists are as long as told.
                let code = unsafe { add_edges(self.graph, from.as_ptr(), to.as_ptr(), kinds.as_ptr(), from.len()) };
                self.context.check(code, "cuGraphAddDependencies")?;
            }
            Ok(())
        };
        match (&command.work, batch.bindings(command)) {
            (Work::Kernel { grid, threads, shared_bytes, .. }, _) => {
                if grid.contains(&0) {
                    return Ok(());
                }
                let pipeline = pipeline.ok_or_else(|| unknown_pipeline(command))?;
                env.with_parameters(batch, command, pipeline, |parameters| {
                    let node = KernelNode {
                        func: pipeline.function,
                        gridDimX: grid[0],
                        gridDimY: grid[1],
                        gridDimZ: grid[2],
                        blockDimX: *threads,
                        blockDimY: 1,
                        blockDimZ: 1,
                        sharedMemBytes: *shared_bytes,
                        kernelParams: parameters,
                        extra: ptr::null_mut(),
                        kern: ptr::null_mut(),
                        ctx: ptr::null_mut(),
                    };
                    // SAFETY: parameters are as many as the kernel reads and are copied by this call; the nodes belong
                    // to this graph.
                    push(&mut |out| unsafe { (f.graph_kernel)(out, self.graph, from, count, &node) })
                })?
            }
            (Work::Copy, [source, target, ..]) => pieces([source, target], self.context.max_pitch)
                .flat_map(|p: CopyPiece| p.runs(MAX_RUN))
                .try_for_each(|p| {
                    // SAFETY: both sides lie inside allocations that the captured batch keeps alive.
                    push(&mut |out| unsafe {
                        (f.graph_copy)(out, self.graph, from, count, &p.node(), self.context.raw)
                    })
                }),
            (Work::Fill(byte), [target, ..]) => {
                pieces([target], self.context.max_pitch).try_for_each(|p: FillPiece| {
                    let node = FillNode {
                        dst: p.places[0].device,
                        pitch: size(p.pitches[0]),
                        value: u32::from(*byte),
                        elementSize: 1,
                        width: size(p.width),
                        height: size(p.rows),
                    };
                    // SAFETY: as above.
                    push(&mut |out| unsafe { (f.graph_fill)(out, self.graph, from, count, &node, self.context.raw) })
                })
            }
            (Work::Copy | Work::Fill(_), _) => unreachable!("INVARIANT: the core binds every operand"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::levels;

    #[test]
    fn barriers_cut_a_batch_into_levels() {
        let ends = |barriers: &[u8]| levels(barriers.iter().map(|b| *b == 1)).iter().map(|l| l.end).collect::<Vec<_>>();
        assert!(ends(&[]).is_empty());
        assert_eq!(ends(&[0]), [1]);
        assert_eq!(ends(&[1, 0, 0]), [3], "nothing comes before the first command");
        assert_eq!(ends(&[0, 1, 1, 0, 1]), [1, 2, 4, 5]);
        assert!(levels([false, true, false].into_iter()).is_sorted_by(|a, b| a.end == b.start));
    }
}
