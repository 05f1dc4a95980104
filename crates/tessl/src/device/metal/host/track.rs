//! How far a queue has come, by what Metal reports of each commit.
//!
//! A commit has ended when its feedback has come, in commit order. The shared event is signalled too, perhaps before
//! the feedback and perhaps not at all after an error, so it only wakes waiters and holds back other queues.

use super::backend::Gpu;
use super::commit::Slot;
use super::objects::{Obj, Own};
use super::residency::made;
use crate::device::labels::Labels;
use crate::device::{FaultRecord, STATUS_WORDS};
use crate::error::{DeviceError, Error, Result, Scope};
use objc2_metal::{MTLDevice, MTLSharedEvent};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Waits are cut into pieces of this length, between which errors are looked for.
const SLICE: Duration = Duration::from_millis(50);

/// Commits of other queues that one waits for.
pub(super) type Needs = SmallVec<[(Arc<Track>, u64); 2]>;

/// One commit on its way.
pub(super) struct Pending {
    /// Number of the commit in its queue, and the value of its event.
    pub(super) ticket: u64,
    /// The core's signal that ends with it; `None` for the earlier parts of a long batch.
    pub(super) signal: Option<u64>,
    pub(super) labels: Labels,
    pub(super) slot: Own<Slot>,
    /// Its status block, where a kernel may report into one.
    pub(super) report: Option<*const u8>,
    pub(super) needs: Needs,
    pub(super) heard: Option<Result<Duration, DeviceError>>,
}

// SAFETY: the status block belongs to the chunks of the slot and is read after the device has finished.
unsafe impl Send for Pending {}

#[derive(Default)]
struct State {
    pending: VecDeque<Pending>,
    /// When the first of them became the first.
    since: Option<Instant>,
    /// When its event was first seen without its feedback.
    silent: Option<Instant>,
    last_ticket: u64,
    idle: Vec<Own<Slot>>,
    fault: Option<FaultRecord>,
    failure: Option<(u64, DeviceError)>,
    /// Commits whose results are not valid: from the one that failed to the last before the core heard of it.
    broken: SmallVec<[(u64, u64); 2]>,
    /// The error that ended the queue, and the last signal that was good.
    lost: Option<(DeviceError, u64)>,
    busy: Duration,
}

/// The progress of one queue.
pub(super) struct Track {
    gpu: Arc<Gpu>,
    pub(super) event: Obj<dyn MTLSharedEvent>,
    state: Mutex<State>,
    changed: Condvar,
    /// The last commit that has ended, with all before it.
    settled: AtomicU64,
    completed: AtomicU64,
}

impl Track {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Arc<Self>> {
        let event = made("newSharedEvent", gpu.device.newSharedEvent())?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let track = Track { gpu: gpu.clone(), event, state, changed, settled: 0.into(), completed: 0.into() };
        let track = Arc::new(track);
        gpu.tracks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&track));
        Ok(track)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for the next commit.
    pub(super) fn slot(&self) -> Result<Own<Slot>> {
        let idle = self.state().idle.pop();
        idle.map_or_else(|| Slot::new(&self.gpu).map(Own), Ok)
    }

    /// Takes back a slot that was not committed, or whose commit has ended.
    pub(super) fn put_back(&self, mut slot: Own<Slot>) {
        slot.0.reset(&self.gpu);
        self.state().idle.push(slot);
    }

    /// Whether earlier commits may still run.
    pub(super) fn is_busy(&self) -> bool {
        !self.state().pending.is_empty()
    }

    /// Registers a commit that is about to be made; tells its ticket.
    pub(super) fn begin(&self, pending: impl FnOnce(u64) -> Pending) -> u64 {
        let mut state = self.state();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        if state.pending.is_empty() {
            state.since = Some(Instant::now());
        }
        state.pending.push_back(pending(ticket));
        ticket
    }

    /// `signal` ends with what has been committed so far.
    pub(super) fn pass(&self, signal: u64) {
        let mut state = self.state();
        match state.pending.back_mut() {
            Some(last) => last.signal = Some(signal),
            None => {
                self.completed.fetch_max(signal, Ordering::AcqRel);
                self.changed.notify_all();
            }
        }
    }

    /// Feedback of a commit; called by Metal on a thread of its own.
    pub(super) fn hear(&self, ticket: u64, outcome: Result<Duration, DeviceError>) {
        let mut state = self.state();
        if let Some(pending) = state.pending.iter_mut().find(|p| p.ticket == ticket) {
            pending.heard = Some(outcome);
        }
        self.changed.notify_all();
    }

    /// The commit with which `signal` ends, if it has not ended yet.
    pub(super) fn ticket_of(&self, signal: u64) -> Option<u64> {
        self.state().pending.iter().find(|p| p.signal.is_some_and(|s| s >= signal)).map(|p| p.ticket)
    }

    fn has_settled(&self, ticket: u64) -> bool {
        self.settled.load(Ordering::Acquire) >= ticket
    }

    fn is_broken(&self, ticket: u64) -> bool {
        self.state().broken.iter().any(|&(from, to)| (from..=to).contains(&ticket))
    }

    /// Ends the commits whose feedback has come, and gives up what takes too long.
    pub(super) fn poll(&self) {
        loop {
            let (ticket, needs) = match self.state().pending.front() {
                Some(front) => (front.ticket, front.needs.clone()),
                None => return,
            };
            // Without a lock held: these look at other queues in turn, always at earlier commits.
            for (track, ticket) in &needs {
                if !track.has_settled(*ticket) {
                    track.poll();
                }
            }
            if needs.iter().any(|(track, ticket)| !track.has_settled(*ticket)) {
                return;
            }
            let spoilt = needs.iter().any(|(track, ticket)| track.is_broken(*ticket));
            if !self.end(ticket, spoilt) {
                return;
            }
        }
    }

    /// Ends the first commit if its feedback has come; whether to go on.
    fn end(&self, ticket: u64, spoilt: bool) -> bool {
        let signalled = self.event.signaledValue() >= ticket;
        let mut state = self.state();
        let Some(front) = state.pending.front_mut().filter(|p| p.ticket == ticket) else { return true };
        if front.heard.is_none() {
            let labels = front.labels;
            let now = Instant::now();
            let options = &self.gpu.options;
            if signalled && now - *state.silent.get_or_insert(now) >= options.feedback {
                let error = fault_of(&labels, "Metal reported no end of it", Scope::Stream);
                if let Some(front) = state.pending.front_mut() {
                    front.heard = Some(Err(error));
                }
            } else if !signalled && state.since.is_some_and(|since| now - since >= options.stall) {
                let error = fault_of(&labels, "given up, it did not finish", Scope::Runtime);
                self.lose(state, error);
                return false;
            } else {
                return false;
            }
        }
        let Some(done) = state.pending.pop_front() else { return false };
        (state.since, state.silent) = (Some(Instant::now()), None);
        let outcome = done.heard.unwrap_or(Ok(Duration::ZERO));
        let record = done.report.and_then(|block| {
            // SAFETY: the block is inside the chunks of the slot, aligned to 64; the device has finished writing it.
            FaultRecord::decode(unsafe { block.cast::<[u32; STATUS_WORDS]>().read_volatile() })
        });
        if state.fault.is_none() && outcome.is_ok() {
            state.fault = record;
        }
        let error = match outcome {
            Ok(_) if spoilt => Some(fault_of(&done.labels, "a command of another stream failed before", Scope::Stream)),
            Ok(busy) => {
                state.busy += busy;
                tracing::trace!(target: "tessl::metal", gpu_us = busy.as_micros(), "{}", done.labels.text());
                None
            }
            Err(error) => Some(DeviceError {
                op: done.labels.last,
                message: format!("{} ({})", error.message, done.labels.text()),
                ..error
            }),
        };
        let failed = error.is_some();
        if let Some(error) = error {
            if error.scope == Scope::Runtime {
                state.pending.push_front(Pending { heard: None, ..done });
                self.lose(state, error);
                return false;
            }
            if state.broken.last().is_none_or(|last| last.1 != u64::MAX) {
                state.broken.push((ticket, u64::MAX));
            }
            let signal = done.signal.or_else(|| state.pending.iter().find_map(|p| p.signal)).unwrap_or(u64::MAX);
            state.failure.get_or_insert((signal, error));
        }
        self.settled.fetch_max(ticket, Ordering::AcqRel);
        if let Some(signal) = done.signal {
            self.completed.fetch_max(signal, Ordering::AcqRel);
        }
        self.changed.notify_all();
        drop(state);
        if failed && self.event.signaledValue() < ticket {
            // Metal does not promise it after an error, and other queues may be waiting for it.
            self.event.setSignaledValue(ticket);
        }
        self.put_back(done.slot);
        true
    }

    /// Nothing runs any more: every signal ends, every later call gets the error, and what the device may still touch
    /// is never freed.
    fn lose(&self, mut state: MutexGuard<'_, State>, error: DeviceError) {
        self.gpu.lost.store(true, Ordering::Release);
        let first = state.pending.front().map_or(state.last_ticket, |p| p.ticket);
        state.broken.push((first, u64::MAX));
        let good = self.completed();
        state.lost.get_or_insert((DeviceError { scope: Scope::Runtime, ..error }, good));
        let signals = state.pending.iter().filter_map(|p| p.signal);
        if let Some(last) = signals.max() {
            self.completed.fetch_max(last, Ordering::AcqRel);
        }
        let last = state.last_ticket;
        self.settled.fetch_max(last, Ordering::AcqRel);
        std::mem::take(&mut state.pending).into_iter().for_each(std::mem::forget);
        self.changed.notify_all();
        drop(state);
        if self.event.signaledValue() < last {
            self.event.setSignaledValue(last);
        }
    }

    /// The error that ended the queue.
    pub(super) fn lost(&self) -> Option<Error> {
        self.state().lost.as_ref().map(|(e, _)| Error::Device(Box::new(e.clone())))
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    pub(super) fn take_fault(&self) -> Option<FaultRecord> {
        self.state().fault.take()
    }

    pub(super) fn take_failure(&self) -> Option<(u64, Error)> {
        let mut state = self.state();
        let (signal, error) = state.failure.take()?;
        // The core stops submitting now; what it has submitted so far is not to be relied on.
        let last = state.last_ticket;
        if let Some(range) = state.broken.last_mut() {
            range.1 = last;
        }
        Some((signal, Error::Device(Box::new(error))))
    }

    /// Time the GPU has spent on what has ended.
    pub(super) fn busy(&self) -> Duration {
        self.state().busy
    }

    /// Waits for `signal`: true when it has ended, false when the deadline passed first.
    pub(super) fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        loop {
            self.poll();
            {
                let state = self.state();
                if let Some((error, good)) = &state.lost
                    && signal > *good
                {
                    return Err(Error::Device(Box::new(error.clone())));
                }
                if self.completed() >= signal {
                    return match &state.failure {
                        Some((failed, error)) if *failed <= signal => Err(Error::Device(Box::new(error.clone()))),
                        _ => Ok(true),
                    };
                }
            }
            let left = deadline.map_or(SLICE, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            self.doze(self.ticket_of(signal), left.min(SLICE));
        }
    }

    /// Waits for the first commit to come nearer to its end, for `patience` at most.
    pub(super) fn nudge(&self, patience: Duration) {
        let first = self.state().pending.front().map(|p| p.ticket);
        if first.is_some() {
            self.doze(first, patience);
            self.poll();
        }
    }

    /// Waits for everything committed; whether it has ended.
    pub(super) fn drain(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_busy() && Instant::now() < deadline {
            self.nudge(SLICE);
        }
        !self.is_busy()
    }

    fn doze(&self, ticket: Option<u64>, patience: Duration) {
        if let Some(ticket) = ticket.filter(|t| self.event.signaledValue() < *t) {
            let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1);
            self.event.waitUntilSignaledValue_timeoutMS(ticket, millis);
            return;
        }
        let state = self.state();
        let silent = |p: &Pending| p.heard.is_none();
        if state.pending.front().is_none_or(silent) {
            // The feedback is on its way, or the signal has not been submitted yet.
            let patience = patience.min(Duration::from_millis(1));
            drop(self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner));
        } else {
            // Another queue's feedback is missing; it does not wake waiters of this one.
            drop(state);
            std::thread::sleep(patience.min(Duration::from_micros(50)));
        }
    }
}

fn fault_of(labels: &Labels, what: &str, scope: Scope) -> DeviceError {
    DeviceError { op: labels.last, code: 0, message: format!("{what} ({})", labels.text()), scope }
}
