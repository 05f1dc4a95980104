//! Captured commands and their replay.

use super::command::{Batch, Binding, Work};
use super::core::Tape;
use super::event::Ticket;
use super::{Stream, StreamCore};
use crate::device::{Fence, Queue};
use crate::error::{Error, Result};
use crate::memory::Allocation;
use crate::runtime::GpuRuntime;
use std::any::Any;
use std::sync::Arc;

/// A recorded sequence of commands, made by [`Stream::capture`]. Replaying encodes nothing again.
///
/// A graph keeps every buffer and its own scratch alive. It never runs twice at once: a second replay is ordered
/// after the first through the buffers that both write.
pub struct Graph {
    inner: Arc<GraphInner>,
    rt: GpuRuntime,
}

pub(crate) struct GraphInner {
    batch: Batch,
    uses: Vec<Binding>,
    baked: Option<Arc<dyn Any + Send + Sync>>,
    kernels: u64,
    _scratch: Option<Arc<Allocation>>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("commands", &self.len()).finish_non_exhaustive()
    }
}

impl GraphInner {
    pub(crate) fn uses(&self) -> &[Binding] {
        &self.uses
    }

    pub(crate) fn kernels(&self) -> u64 {
        self.kernels
    }

    /// # Safety
    /// As [`Queue::submit`] for the graph's batch.
    pub(crate) unsafe fn submit(&self, queue: &dyn Queue, fences: &[Fence], signal: u64) -> Result<()> {
        match &self.baked {
            // SAFETY: the caller's promise; `baked` was made from this batch by the backend of this runtime.
            Some(baked) => unsafe { queue.replay(&**baked, &self.batch, fences, signal) },
            // SAFETY: the caller's promise.
            None => unsafe { queue.submit(&self.batch, fences, signal) },
        }
    }
}

impl Graph {
    pub(crate) fn new(tape: Option<Tape>, rt: &GpuRuntime, core: &Arc<StreamCore>) -> Result<Self> {
        let Some(tape) = tape else {
            return Err(Error::Capture { op: "Stream::capture", reason: "the capture was ended from inside" });
        };
        debug_assert!(Arc::ptr_eq(core.memory(), rt.memory()));
        let uses = tape.uses();
        let baked = rt.memory().backend().bake(&tape.batch)?;
        let kernels = tape.batch.commands().iter().filter(|c| matches!(c.work, Work::Kernel { .. })).count() as u64;
        let inner = GraphInner { uses, baked, kernels, _scratch: tape.scratch, batch: tape.batch };
        Ok(Graph { inner: Arc::new(inner), rt: rt.clone() })
    }

    /// Submits the recorded commands to `stream`, after everything encoded there.
    ///
    /// # Errors
    /// `WrongRuntime`, `Capture` inside a capture, `Poisoned` after a failure.
    pub fn replay(&self, stream: &mut Stream) -> Result<Ticket> {
        if !self.rt.is_same(stream.runtime()) {
            return Err(Error::WrongRuntime { op: "Graph::replay", operand: "stream" });
        }
        let seq = stream.core().encode_graph(&self.inner)?;
        Ok(Ticket::new(stream.core().clone(), seq))
    }

    /// Number of recorded commands.
    pub fn len(&self) -> usize {
        self.inner.batch.commands().len()
    }

    /// Number of recorded commands that the device keeps in a form of its own; a replay encodes the others again.
    pub fn prebuilt(&self) -> usize {
        let count = |baked: &Arc<dyn Any + Send + Sync>| self.rt.memory().backend().prebuilt(&**baked);
        self.inner.baked.as_ref().map_or(0, count)
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.inner.batch.is_empty()
    }

    /// Number of recorded commands that must wait for all before them.
    pub fn barriers(&self) -> usize {
        self.inner.batch.commands().iter().filter(|c| c.barrier).count()
    }
}

/// Two graphs over double-buffered inputs, replayed in turn: while one runs, the host fills the other's inputs.
#[derive(Debug)]
pub struct PingPong {
    graphs: [Graph; 2],
    next: usize,
}

impl PingPong {
    /// `first` is replayed first.
    pub fn new(first: Graph, second: Graph) -> Self {
        PingPong { graphs: [first, second], next: 0 }
    }

    /// Which graph (0 or 1) the next replay runs: its inputs are the ones to fill now.
    pub fn next_index(&self) -> usize {
        self.next
    }

    /// Replays one graph and moves on to the other.
    ///
    /// # Errors
    /// As [`Graph::replay`]; a refused replay does not move on.
    pub fn replay(&mut self, stream: &mut Stream) -> Result<Ticket> {
        let ticket = self.graphs[self.next].replay(stream)?;
        self.next ^= 1;
        Ok(ticket)
    }
}
