//! An in-order queue: one stream, and an event after each batch.

use super::context::Context;
use super::driver::{CUevent, CUstream, NOT_READY, SUCCESS, number};
use super::graph::Baked;
use super::launch::Env;
use super::registry::Registry;
use super::status::{HostSlot, StatusBlock};
use crate::device::labels::Labels;
use crate::device::{FaultRecord, Fence, Queue};
use crate::error::{DeviceError, Error, Result, Scope};
use crate::stream::Batch;
use std::any::Any;
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a dropped queue waits for the device before it leaves its objects behind.
const DRAIN: Duration = Duration::from_secs(10);
/// A timed wait asks without pause for this long, then sleeps between questions.
const SPIN: Duration = Duration::from_micros(100);
const NAP: Duration = Duration::from_micros(50);

/// An event, recorded again and again. Shared while someone waits for it, and reused only when nobody does.
struct Marker {
    event: CUevent,
    slot: OnceLock<HostSlot>,
}

// SAFETY: an event may be queried and waited for from any thread; the slot is read only after the event.
unsafe impl Send for Marker {}
// SAFETY: as for Send.
unsafe impl Sync for Marker {}

struct Pending {
    signal: u64,
    marker: Arc<Marker>,
    /// The batch's kernels may have reported a fault into the marker's slot.
    reports: bool,
    labels: Labels,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Pending>,
    idle: Vec<Arc<Marker>>,
    fault: Option<FaultRecord>,
    /// The error that ended the context, and the last signal that was good.
    failed: Option<(DeviceError, u64)>,
}

/// A stream of one device.
pub(super) struct CudaQueue {
    context: Arc<Context>,
    registry: Arc<Registry>,
    stream: CUstream,
    status: OnceLock<StatusBlock>,
    completed: AtomicU64,
    state: Mutex<State>,
}

// SAFETY: streams may be used from any thread; `submit` is not called concurrently (reason 3 of the contract), and what
// other threads touch is behind the mutex.
unsafe impl Send for CudaQueue {}
// SAFETY: as for Send.
unsafe impl Sync for CudaQueue {}

impl CudaQueue {
    pub(super) fn new(context: &Arc<Context>, registry: &Arc<Registry>) -> Result<Self> {
        context.enter()?;
        let mut stream = ptr::null_mut();
        // Non-blocking: the legacy stream of other libraries in the process neither waits for it nor is waited for.
        // SAFETY: the context is current; the pointer is valid for one handle.
        let code = unsafe { (context.driver.f.stream_create)(&mut stream, number::STREAM_NON_BLOCKING) };
        context.check(code, "cuStreamCreate")?;
        Ok(CudaQueue {
            context: context.clone(),
            registry: registry.clone(),
            stream,
            status: OnceLock::new(),
            completed: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue's status block, made at first use.
    fn status(&self) -> Result<&StatusBlock> {
        if let Some(block) = self.status.get() {
            return Ok(block);
        }
        let block = StatusBlock::new(&self.context)?;
        Ok(self.status.get_or_init(|| block))
    }

    /// A marker that nobody waits for.
    fn marker(&self, reports: bool) -> Result<Arc<Marker>> {
        let idle = {
            let mut state = self.state();
            let free = state.idle.iter().position(|m| Arc::strong_count(m) == 1);
            free.map(|i| state.idle.swap_remove(i))
        };
        let marker = match idle {
            Some(marker) => marker,
            None => {
                let mut event = ptr::null_mut();
                // SAFETY: the caller made the context current; the pointer is valid for one handle.
                let code = unsafe { (self.context.driver.f.event_create)(&mut event, number::EVENT_DISABLE_TIMING) };
                self.context.check(code, "cuEventCreate")?;
                Arc::new(Marker { event, slot: OnceLock::new() })
            }
        };
        if reports && marker.slot.get().is_none() {
            let slot = HostSlot::new(&self.context)?;
            marker.slot.get_or_init(|| slot);
        }
        Ok(marker)
    }

    /// Makes `stream` wait until this queue has completed `value`.
    fn hold_back(&self, stream: CUstream, value: u64) -> Result<()> {
        let state = self.state();
        let Some(pending) = state.pending.iter().find(|p| p.signal >= value) else {
            return Ok(()); // completed already
        };
        // The lock is held so that the event is not recorded for another batch before the stream has taken it.
        // SAFETY: stream and event are alive; both belong to this device's context.
        let code = unsafe { (self.context.driver.f.stream_wait_event)(stream, pending.marker.event, 0) };
        self.context.check(code, "cuStreamWaitEvent")
    }

    fn wait_for(&self, fences: &[Fence]) -> Result<()> {
        for fence in fences {
            match fence.queue.as_any().downcast_ref::<CudaQueue>() {
                Some(queue) if Arc::ptr_eq(&queue.context, &self.context) => {
                    if !ptr::eq(queue, self) {
                        queue.hold_back(self.stream, fence.value)?;
                    }
                }
                _ => {
                    fence.queue.wait(fence.value, None)?;
                }
            }
        }
        Ok(())
    }

    /// Enqueues one batch by `encode` and the event after it. Whatever fails, the signal completes: after the work that
    /// was enqueued if the event can be recorded, else at once, because then the context is lost.
    fn run(
        &self,
        fences: &[Fence],
        signal: u64,
        labels: Labels,
        block: Option<&StatusBlock>,
        encode: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if let Some((error, _)) = &self.state().failed {
            self.completed.fetch_max(signal, Ordering::AcqRel);
            return Err(Error::Device(Box::new(error.clone())));
        }
        let marker = match self.context.enter().and_then(|()| self.marker(block.is_some())) {
            Ok(marker) => marker,
            Err(error) => {
                // Nothing of this batch was enqueued; it completes with what came before it.
                let mut state = self.state();
                match state.pending.back_mut() {
                    Some(last) => last.signal = signal,
                    None => {
                        self.completed.fetch_max(signal, Ordering::AcqRel);
                    }
                }
                return Err(self.note(state, error, signal));
            }
        };
        let encoded = self.wait_for(fences).and_then(|()| {
            let Some((block, slot)) = block.zip(marker.slot.get()) else { return encode() };
            block.clear(self.stream)?;
            encode()?;
            block.fetch(slot, self.stream)
        });
        // SAFETY: the event is idle and the stream is alive.
        let code = unsafe { (self.context.driver.f.event_record)(marker.event, self.stream) };
        let recorded = self.context.driver.check(code, "cuEventRecord", || labels.text());
        let mut state = self.state();
        let reports = block.is_some() && encoded.is_ok();
        state.pending.push_back(Pending { signal, marker, reports, labels });
        let lost = recorded.is_err();
        match encoded.and(recorded) {
            Ok(()) => Ok(()),
            Err(error) if lost => Err(self.fail(&mut state, error)),
            Err(error) => Err(self.note(state, error, signal)),
        }
    }

    /// Passes on an error, and ends the queue if it is the context that was lost.
    fn note(&self, mut state: MutexGuard<'_, State>, error: Error, signal: u64) -> Error {
        if error.scope() < Scope::Runtime {
            return error;
        }
        let error = self.fail(&mut state, error);
        self.completed.fetch_max(signal, Ordering::AcqRel);
        error
    }

    /// The context is lost: nothing runs any more, so every signal completes and every later call gets the error.
    fn fail(&self, state: &mut State, error: Error) -> Error {
        let Error::Device(device) = error else { return error };
        let good = self.completed.load(Ordering::Acquire);
        if let Some(last) = state.pending.back() {
            self.completed.fetch_max(last.signal, Ordering::AcqRel);
        }
        state.pending.clear();
        let lost = DeviceError { scope: Scope::Runtime, ..*device };
        state.failed.get_or_insert_with(|| (lost.clone(), good));
        Error::Device(Box::new(lost))
    }

    /// Retires the batches whose events have passed.
    fn poll(&self, state: &mut State) {
        while let Some(front) = state.pending.front() {
            // SAFETY: the event was recorded when the batch was enqueued.
            let code = unsafe { (self.context.driver.f.event_query)(front.marker.event) };
            if code == NOT_READY {
                break;
            }
            if code != SUCCESS {
                let detail = format!("found after the fact, {}", front.labels.text());
                let error = self.context.driver.error(code, front.labels.last, Scope::Runtime, &detail);
                self.fail(state, error);
                break;
            }
            let Some(done) = state.pending.pop_front() else { break };
            if done.reports && state.fault.is_none() {
                state.fault = done.marker.slot.get().and_then(HostSlot::read);
            }
            self.completed.fetch_max(done.signal, Ordering::AcqRel);
            state.idle.push(done.marker);
        }
    }
}

impl Queue for CudaQueue {
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()> {
        let pipelines = self.registry.pipelines();
        let mut env = Env { context: &self.context, pipelines: &pipelines, status: 0 };
        let reports = batch.commands().iter().any(|c| env.pipeline(&c.work).is_some_and(|p| p.status));
        // Without a block the batch cannot run; `run` still completes its signal.
        let block = if reports { self.status().map(Some) } else { Ok(None) };
        let (block, no_block) = match block {
            Ok(block) => (block, None),
            Err(error) => (None, Some(error)),
        };
        env.status = block.map_or(0, |b| b.address);
        self.run(fences, signal, Labels::of(batch.commands()), block, || match no_block {
            Some(error) => Err(error),
            None => batch.commands().iter().try_for_each(|c| env.enqueue(batch, c, self.stream)),
        })
    }

    unsafe fn replay(
        &self,
        baked: &(dyn Any + Send + Sync),
        batch: &Batch,
        fences: &[Fence],
        signal: u64,
    ) -> Result<()> {
        let Some(baked) = baked.downcast_ref::<Baked>().filter(|b| Arc::ptr_eq(&b.context, &self.context)) else {
            // SAFETY: the caller's promises are those of `submit`.
            return unsafe { self.submit(batch, fences, signal) };
        };
        self.run(fences, signal, baked.labels, baked.status.as_ref(), || {
            // SAFETY: the graph is alive, and does not run elsewhere (a graph never runs twice at once).
            let code = unsafe { (self.context.driver.f.graph_launch)(baked.exec, self.stream) };
            let driver = self.context.driver;
            if code == SUCCESS {
                Ok(())
            } else {
                Err(driver.error(code, "cuGraphLaunch", Scope::Stream, &baked.labels.text()))
            }
        })
    }

    fn completed(&self) -> u64 {
        let mut state = self.state();
        if !state.pending.is_empty() && self.context.enter_quietly() {
            self.poll(&mut state);
        }
        self.completed.load(Ordering::Acquire)
    }

    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        let started = Instant::now();
        self.context.enter()?;
        loop {
            let marker = {
                let mut state = self.state();
                self.poll(&mut state);
                if let Some((error, good)) = &state.failed
                    && signal > *good
                {
                    return Err(Error::Device(Box::new(error.clone())));
                }
                if self.completed.load(Ordering::Acquire) >= signal {
                    return Ok(true);
                }
                state.pending.iter().find(|p| p.signal >= signal).map(|p| p.marker.clone())
            };
            match (marker, deadline) {
                (_, Some(deadline)) if Instant::now() >= deadline => return Ok(false),
                (Some(marker), None) => {
                    // SAFETY: the marker is held, so its event is neither destroyed nor recorded again. An error is
                    // found again by the next poll, which knows the batch.
                    unsafe { (self.context.driver.f.event_wait)(marker.event) };
                }
                _ if started.elapsed() < SPIN => std::hint::spin_loop(),
                _ => std::thread::sleep(NAP),
            }
        }
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        self.state().fault.take()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        if !self.context.enter_quietly() {
            return;
        }
        let deadline = Instant::now() + DRAIN;
        let last = self.state().pending.back().map(|p| p.signal);
        let drained = last.is_none_or(|last| self.wait(last, Some(deadline)).unwrap_or(true));
        let f = &self.context.driver.f;
        if !drained {
            tracing::warn!(
                target: "tessl::cuda",
                "a queue was dropped while the device had not finished within {DRAIN:?}; its stream is left behind"
            );
            if let Some(block) = self.status.take() {
                std::mem::forget(block);
            }
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream has drained (or its context is lost, and the calls fail harmlessly); each object is
        // destroyed once. A marker that some thread still holds is left behind.
        unsafe {
            for marker in state.idle.drain(..).filter_map(Arc::into_inner) {
                (f.event_destroy)(marker.event);
                if let Some(slot) = marker.slot.into_inner() {
                    slot.free(&self.context);
                }
            }
            (f.stream_destroy)(self.stream);
        }
    }
}
