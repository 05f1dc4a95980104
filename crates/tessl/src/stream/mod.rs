//! Streams: encoding, hazards, submission, waiting, capture.
//!
//! # Locks
//!
//! A stream has a `pending` lock (encoding) and a `submission` lock (handing batches to the queue); the runtime has one
//! `order` lock under which hazards are registered, so that all streams agree on one order of commands. Lock order:
//! `pending`, then `order`, then an allocation's hazards; `submission`, then `pending`. No lock of another stream is
//! taken while one's own is held, and a segment that waits for another stream starts with the command that waits:
//! dependencies between segments therefore point backwards in the one order and cannot form a cycle.

mod capturing;
mod command;
mod core;
mod event;
mod graph;
mod hazard;
mod set;

pub(crate) use self::core::{StreamCore, StreamLimits, copy};
pub(crate) use capturing::refuse_default;
pub(crate) use command::Encoded;
pub use command::{ARGS_ALIGN, Access, Batch, Binding, Command, MAX_ARGS, Rect, Work};
pub use event::{Event, Ticket};
pub use graph::{Graph, PingPong};
pub(crate) use hazard::Hazards;
pub use set::{Buckets, GraphSet, GraphStats};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::BufferKind;
use crate::runtime::GpuRuntime;
use crate::tensor::Tensor;
use bytemuck::NoUninit;
use smallvec::SmallVec;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// An ordered queue of commands. Commands are packed and submitted together; `synchronize`, a read, `commit` or the
/// bound of [`RuntimeOptions::flush_every`](crate::RuntimeOptions::flush_every) submits them.
///
/// A stream may move between threads but is used by one at a time.
///
/// ```
/// use tessl::{Gemm, GpuRuntime, Device};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let (a, b, c) = (rt.alloc_tensor_f32(&[2, 3])?, rt.alloc_tensor_f32(&[3, 4])?, rt.alloc_tensor_f32(&[2, 4])?);
/// let mut stream = rt.stream()?;
/// Gemm::new(&a, &b, &c).run_on(&mut stream)?;
/// stream.synchronize()?;
/// # Ok::<(), tessl::Error>(())
/// ```
pub struct Stream {
    core: Arc<StreamCore>,
    rt: GpuRuntime,
    not_sync: PhantomData<Cell<()>>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream {
    pub(crate) fn new(core: Arc<StreamCore>, rt: GpuRuntime) -> Self {
        Stream { core, rt, not_sync: PhantomData }
    }

    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    /// The runtime this stream belongs to.
    pub fn runtime(&self) -> &GpuRuntime {
        &self.rt
    }

    /// Submits what has been encoded, without waiting.
    ///
    /// # Errors
    /// What submission reports; on a device that executes on the calling thread, what execution reports.
    pub fn commit(&mut self) -> Result<Ticket> {
        self.core.refuse_in_capture("Stream::commit")?;
        let seq = self.core.last_encoded();
        self.core.flush_to(seq);
        Ok(Ticket::new(self.core.clone(), seq))
    }

    /// Waits until everything encoded has finished.
    ///
    /// # Errors
    /// The first failure of this stream since the last recovery, with the label of the command.
    pub fn synchronize(&mut self) -> Result<()> {
        self.core.refuse_in_capture("Stream::synchronize")?;
        self.core.synchronize()
    }

    /// As [`synchronize`](Self::synchronize), for at most `limit`.
    ///
    /// # Errors
    /// `Timeout` when the limit has passed; the stream goes on.
    pub fn synchronize_timeout(&mut self, limit: Duration) -> Result<()> {
        self.commit()?.wait_timeout(limit)
    }

    /// Time the device has spent on what this stream has finished, where the device can tell (Metal).
    pub fn device_time(&self) -> Option<Duration> {
        self.core.progress().queue.device_time()
    }

    /// Marks this point of the stream for others to wait for.
    pub fn record(&mut self) -> Event {
        Event::new(self.core.progress().clone(), self.core.last_encoded())
    }

    /// Makes everything encoded after this wait for `event`. The host does not wait.
    ///
    /// # Errors
    /// `Capture` inside a capture.
    pub fn wait_event(&mut self, event: &Event) -> Result<()> {
        self.core.refuse_in_capture("Stream::wait_event")?;
        self.core.add_wait(event.progress(), event.seq());
        Ok(())
    }

    /// Makes what follows wait for everything encoded before, also where no data asks for it. Inside a capture the
    /// graph gets the same barrier: without one, captured commands that share no data may run side by side.
    pub fn barrier(&mut self) {
        self.core.barrier();
    }

    /// Clears a failure after it has been reported. Outputs of the failed commands hold no valid data.
    ///
    /// # Errors
    /// The failure itself where it cannot be recovered ([`Scope::Runtime`](crate::Scope::Runtime)).
    pub fn recover(&mut self) -> Result<()> {
        self.core.recover()
    }

    /// Grows this stream's scratch memory to `bytes`, so that later calls, and captures above all, need not.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        self.core.reserve(bytes)
    }

    /// Records the commands that `encode` gives to this stream, without executing them.
    ///
    /// The graph keeps every buffer alive and owns its scratch memory. Values that change between replays belong in
    /// device buffers. Use `run_on` inside: whatever goes to the runtime's default stream (`run()`, `write()`, `zeros()`)
    /// would be executed once, now, and not be part of the graph, so it is a typed error there.
    ///
    /// # Errors
    /// What `encode` returns (nothing is kept then), `Capture` when this stream is capturing already.
    pub fn capture(&mut self, encode: impl FnOnce(&mut Stream) -> Result<()>) -> Result<Graph> {
        self.core.begin_capture()?;
        let _marker = capturing::enter(&self.rt);
        let guard = CaptureGuard { core: &self.core.clone() };
        let outcome = encode(self);
        let tape = guard.core.end_capture();
        std::mem::forget(guard);
        outcome?;
        Graph::new(tape, &self.rt, &self.core)
    }

    /// Opens a step: [`Stream::bump`] tensors made inside live until it ends, from a slab that is reused step by step.
    ///
    /// # Errors
    /// What `body` returns.
    pub fn step<T>(&mut self, body: impl FnOnce(&mut Stream) -> Result<T>) -> Result<T> {
        self.core.begin_step()?;
        let guard = StepGuard { core: &self.core.clone() };
        let result = body(self);
        drop(guard);
        result
    }

    /// A temporary of the open step; its contents are unspecified.
    ///
    /// # Errors
    /// `Capture` outside a step, `OutOfMemory`.
    pub fn bump(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let bytes = crate::tensor::bytes_of("Stream::bump", dtype, shape)?;
        let (memory, offset, generation) = self.core.bump(self.rt.memory(), bytes)?;
        Ok(Tensor::new(&self.rt, memory, dtype, shape, offset).expires(generation))
    }

    /// Launches the caller's own kernel.
    ///
    /// # Safety
    /// The kernel touches only the memory it was given through the binder, as declared there, within its bounds, and
    /// (on GPUs) its argument block has the layout its code expects.
    ///
    /// # Errors
    /// `WrongRuntime`, `Expired`, `TooLarge`, and what encoding reports. Nothing is encoded then.
    pub unsafe fn dispatch<'a>(
        &mut self,
        kernel: &crate::runtime::Kernel,
        bind: impl for<'b> FnOnce(&'b mut Binder<'a>) -> &'b mut Binder<'a>,
    ) -> Result<()> {
        let mut binder = Binder::default();
        bind(&mut binder);
        binder.encode(self, kernel)
    }

    pub(crate) fn encode(&self, encoded: Encoded<'_>) -> Result<()> {
        self.core.encode(encoded)
    }

    pub(crate) fn encode_all<const N: usize>(&self, commands: [Encoded<'_>; N]) -> Result<()> {
        self.core.encode_all(commands)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.core.retire_for_good();
    }
}

struct CaptureGuard<'a> {
    core: &'a Arc<StreamCore>,
}

impl Drop for CaptureGuard<'_> {
    /// Reached only when the closure panicked: the stream must not stay in capture.
    fn drop(&mut self) {
        self.core.end_capture();
    }
}

struct StepGuard<'a> {
    core: &'a Arc<StreamCore>,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.core.end_step();
    }
}

/// The operands, arguments and grid of an own kernel. See [`Stream::dispatch`].
#[derive(Default)]
pub struct Binder<'a> {
    tensors: SmallVec<[(&'a Tensor, Access); 8]>,
    args: SmallVec<[u8; 128]>,
    grid: Option<[u32; 3]>,
    threads: Option<u32>,
    shared_bytes: u32,
}

impl<'a> Binder<'a> {
    /// The next buffer argument, read by the kernel.
    pub fn input(&mut self, tensor: &'a Tensor) -> &mut Self {
        self.tensors.push((tensor, Access::Read));
        self
    }

    /// The next buffer argument, written (and perhaps read) by the kernel.
    pub fn output(&mut self, tensor: &'a Tensor) -> &mut Self {
        self.tensors.push((tensor, Access::Write));
        self
    }

    /// The argument block.
    pub fn args<T: NoUninit>(&mut self, args: &T) -> &mut Self {
        self.args = SmallVec::from_slice(bytemuck::bytes_of(args));
        self
    }

    /// Threadgroups along x, y and z (1, 1, 1 by default).
    pub fn grid(&mut self, grid: [u32; 3]) -> &mut Self {
        self.grid = Some(grid);
        self
    }

    /// Threads of a threadgroup (by default 32, or what the device allows: CPU kernels have 1).
    pub fn threads(&mut self, threads: u32) -> &mut Self {
        self.threads = Some(threads);
        self
    }

    /// Dynamic threadgroup memory in bytes (0 by default).
    pub fn shared_bytes(&mut self, bytes: u32) -> &mut Self {
        self.shared_bytes = bytes;
        self
    }

    fn encode(&self, stream: &mut Stream, kernel: &crate::runtime::Kernel) -> Result<()> {
        let op = kernel.label();
        let limit = |what, value: u64, limit: u64| {
            if value > limit { Err(Error::TooLarge { op, what, value, limit }) } else { Ok(()) }
        };
        let grid = self.grid.unwrap_or([1, 1, 1]);
        let profile = stream.rt.profile();
        let threads = self.threads.unwrap_or_else(|| profile.max_threads.min(32));
        limit("the argument block in bytes", self.args.len() as u64, MAX_ARGS as u64)?;
        limit("the number of threads", threads.into(), profile.max_threads.into())?;
        limit("the grid along x", grid[0].into(), profile.max_grid.into())?;
        limit("the grid along y", grid[1].into(), 65_535)?;
        limit("the grid along z", grid[2].into(), 65_535)?;
        limit("threadgroup memory in bytes", self.shared_bytes.into(), profile.shared_bytes.into())?;
        if !stream.rt.is_same(kernel.runtime()) {
            return Err(Error::WrongRuntime { op, operand: "kernel" });
        }
        let mut bindings = SmallVec::new();
        for (tensor, access) in &self.tensors {
            tensor.check_usable(op, "tensor", &stream.rt)?;
            bindings.push(tensor.binding(*access));
        }
        if grid.contains(&0) {
            return Ok(());
        }
        let work = Work::Kernel { pipeline: kernel.pipeline(), grid, threads, shared_bytes: self.shared_bytes };
        stream.encode(Encoded { label: op, work, args: &self.args, bindings })
    }
}

/// Memory of a kind that is not made by the general allocation call.
pub(crate) fn refuse_bump(kind: BufferKind) -> Result<()> {
    match kind {
        BufferKind::Bump => Err(Error::Capture {
            op: "GpuRuntime::tensor",
            reason: "Bump tensors belong to a step; make them with Stream::step and Stream::bump",
        }),
        BufferKind::External => Err(Error::Capture {
            op: "GpuRuntime::tensor",
            reason: "External tensors are imported with GpuRuntime::from_external",
        }),
        BufferKind::Hot | BufferKind::Cold => Ok(()),
    }
}
