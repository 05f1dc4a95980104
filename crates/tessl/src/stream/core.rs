//! The shared part of a stream: pending segments, submission, failure.

use super::command::{Batch, Binding, Encoded, Work};
use super::graph::GraphInner;
use super::hazard::{Conflicts, Progress, Waits, add_wait};
use super::{Access, Rect};
use crate::device::Fence;
use crate::error::{Error, Result, Scope};
use crate::memory::{Allocation, BufferKind, Memory};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Batches handed to a queue and not finished, at most; a further one waits for the oldest.
const MAX_IN_FLIGHT: usize = 64;
/// How long dropping a stream waits for its device before it leaves the memory to it.
const DROP_PATIENCE: Duration = Duration::from_secs(10);
/// Size of a step's first slab.
const BUMP_BYTES: u64 = 16 << 20;
/// Bump tensors start at multiples of this.
const BUMP_ALIGN: u64 = 256;

/// What a stream takes from the runtime's options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// Commands packed before they are submitted by themselves; 1 submits every command.
    pub(crate) flush_every: usize,
}

pub(crate) struct StreamCore {
    progress: Arc<Progress>,
    memory: Arc<Memory>,
    /// The runtime's lock under which commands of all streams are put into one order.
    order: Arc<Mutex<()>>,
    dispatches: Arc<AtomicU64>,
    limits: StreamLimits,
    /// False submits every command by itself.
    packed: AtomicBool,
    pending: Mutex<Pending>,
    submission: Mutex<Submission>,
}

/// Commands that are submitted together; waits come before the first one.
struct Segment {
    batch: Batch,
    graph: Option<Arc<GraphInner>>,
    waits: Waits,
    first: u64,
    last: u64,
}

struct Pending {
    segments: VecDeque<Segment>,
    next_seq: u64,
    /// Everything up to here is ordered before what follows by a barrier or a submission.
    last_barrier: u64,
    /// Waits for the next command.
    waits: Waits,
    /// The next command waits for all before it.
    barrier: bool,
    commands: usize,
    spare: Vec<Batch>,
    tape: Option<Tape>,
    scratch: Option<Arc<Allocation>>,
    bump: Bump,
    failure: Option<Failure>,
}

/// A capture in progress.
pub(crate) struct Tape {
    pub(crate) batch: Batch,
    pub(crate) scratch: Option<Arc<Allocation>>,
    /// Bindings since the last barrier.
    since_barrier: usize,
}

struct Failure {
    /// Handed out once.
    error: Option<Error>,
    label: &'static str,
    scope: Scope,
}

#[derive(Default)]
struct Bump {
    slab: Option<Arc<Allocation>>,
    /// Slabs that this step has filled.
    full: Vec<Arc<Allocation>>,
    used: u64,
    open: bool,
}

#[derive(Default)]
struct Submission {
    in_flight: VecDeque<Segment>,
    fences: Vec<Fence>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl StreamCore {
    pub(crate) fn new(
        memory: Arc<Memory>,
        order: Arc<Mutex<()>>,
        dispatches: Arc<AtomicU64>,
        limits: StreamLimits,
    ) -> Result<Arc<Self>> {
        let queue = memory.backend().queue()?;
        Ok(Arc::new_cyclic(|core| StreamCore {
            progress: Arc::new(Progress {
                queue,
                submitted: AtomicU64::new(0),
                completed: AtomicU64::new(0),
                failed_from: AtomicU64::new(u64::MAX),
                core: core.clone(),
            }),
            memory,
            order,
            dispatches,
            limits,
            packed: AtomicBool::new(true),
            pending: Mutex::new(Pending {
                segments: VecDeque::new(),
                next_seq: 1,
                last_barrier: 0,
                waits: Waits::new(),
                barrier: false,
                commands: 0,
                spare: Vec::new(),
                tape: None,
                scratch: None,
                bump: Bump::default(),
                failure: None,
            }),
            submission: Mutex::default(),
        }))
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn set_packed(&self, packed: bool) {
        self.packed.store(packed, Ordering::Relaxed);
    }

    pub(crate) fn is_capturing(&self) -> bool {
        lock(&self.pending).tape.is_some()
    }

    /// Sequence number of the last command encoded.
    pub(crate) fn last_encoded(&self) -> u64 {
        lock(&self.pending).next_seq - 1
    }

    /// Takes a command: into the tape of an open capture, else into the pending batch.
    pub(crate) fn encode(&self, encoded: Encoded<'_>) -> Result<()> {
        self.encode_all([encoded])
    }

    /// Encodes commands that no command of another thread may come between: they share scratch memory.
    pub(crate) fn encode_all<const N: usize>(&self, commands: [Encoded<'_>; N]) -> Result<()> {
        let mut guard = lock(&self.pending);
        let pending = &mut *guard;
        let mut last = None;
        for encoded in commands {
            pending.check_usable(encoded.label)?;
            let is_kernel = matches!(encoded.work, Work::Kernel { .. });
            if let Some(tape) = &mut pending.tape {
                if encoded.bindings.iter().any(|b| b.memory.kind() == BufferKind::Bump) {
                    return Err(Error::Capture {
                        op: encoded.label,
                        reason: "a graph outlives the step of a Bump tensor; use Hot or Cold memory",
                    });
                }
                // Recorded, not launched: replays count.
                tape.record(encoded, std::mem::take(&mut pending.barrier));
                continue;
            }
            let (seq, barrier) = self.order(pending, &encoded.bindings, encoded.label)?;
            pending.open_segment().batch.push(encoded, seq, barrier);
            if is_kernel {
                self.dispatches.fetch_add(1, Ordering::Relaxed);
            }
            last = Some(pending.next_seq - 1);
        }
        let full = pending.commands >= self.limits.flush_every || !self.packed.load(Ordering::Relaxed);
        drop(guard);
        if let Some(last) = last.filter(|_| full) {
            self.flush_to(last);
        }
        Ok(())
    }

    /// Encodes a replay of `graph`.
    pub(crate) fn encode_graph(&self, graph: &Arc<GraphInner>) -> Result<u64> {
        let mut pending = lock(&self.pending);
        pending.check_usable("Graph::replay")?;
        if pending.tape.is_some() {
            return Err(Error::Capture { op: "Graph::replay", reason: "a graph cannot be replayed inside a capture" });
        }
        pending.close_segment();
        self.order(&mut pending, graph.uses(), "Graph::replay")?;
        pending.open_segment().graph = Some(graph.clone());
        pending.close_segment();
        let last = pending.next_seq - 1;
        drop(pending);
        self.dispatches.fetch_add(graph.kernels(), Ordering::Relaxed);
        self.flush_to(last);
        Ok(last)
    }

    /// Orders a command after what it conflicts with and opens the segment it goes into. The caller puts it there
    /// before it releases `pending`, so whoever waits for the command finds it.
    fn order(&self, pending: &mut Pending, bindings: &[Binding], label: &'static str) -> Result<(u64, bool)> {
        let _order = lock(&self.order);
        let seq = pending.next_seq;
        // Looked for before anything is registered: a refused command leaves no trace.
        if self.memory.has_failed_streams() {
            let needs = |b: &Binding| b.memory.hazards().needs_failed(b.identity_rect());
            if bindings.iter().any(needs) {
                return Err(Error::Poisoned { op: label, failed: "a command whose results this one needs" });
            }
        }
        let mut conflicts = Conflicts { waits: std::mem::take(&mut pending.waits), ..Conflicts::default() };
        // Writes first: a read of this command would take the place of an earlier read of the same bytes, and the write that
        // comes with it, in place, would no longer find what it has to wait for.
        let of = |access| bindings.iter().filter(move |b| b.access == access);
        for binding in of(Access::Write).chain(of(Access::Read)) {
            binding.memory.hazards().register(
                &self.progress,
                seq,
                binding.access,
                binding.identity_rect(),
                pending.last_barrier,
                &mut conflicts,
            );
        }
        if !conflicts.waits.is_empty() || !pending.has_open_segment() {
            pending.close_segment();
            let batch = pending.spare.pop().unwrap_or_default();
            pending.segments.push_back(Segment { batch, graph: None, waits: conflicts.waits, first: seq, last: 0 });
        }
        let barrier = std::mem::take(&mut pending.barrier) || conflicts.barrier;
        if barrier {
            pending.last_barrier = seq - 1;
        }
        pending.next_seq += 1;
        pending.commands += 1;
        Ok((seq, barrier))
    }

    /// Makes the next command wait for a point of another stream.
    pub(crate) fn add_wait(&self, progress: &Arc<Progress>, seq: u64) {
        if !Arc::ptr_eq(progress, &self.progress) && !progress.is_done(seq) {
            add_wait(&mut lock(&self.pending).waits, progress, seq);
        }
    }

    /// Makes the next command wait for everything before it.
    pub(crate) fn barrier(&self) {
        lock(&self.pending).barrier = true;
    }

    /// Hands everything up to `seq` to the queue, after the segments of other streams that it waits for.
    pub(crate) fn flush_to(&self, seq: u64) {
        loop {
            let mut submission = lock(&self.submission);
            let segment = {
                let mut pending = lock(&self.pending);
                pending.close_segment();
                match pending.segments.front() {
                    None => return,
                    Some(front) if front.first > seq => return,
                    Some(front) => match front.waits.iter().find(|w| !w.is_submitted()).cloned() {
                        Some(wait) => Err(wait),
                        None => {
                            let segment = pending.segments.pop_front().expect("INVARIANT: front exists");
                            pending.commands -= segment.batch.commands().len().max(1);
                            Ok(segment)
                        }
                    },
                }
            };
            match segment {
                Ok(segment) => self.submit(&mut submission, segment),
                Err(wait) => {
                    drop(submission);
                    if let Some(core) = wait.progress.core.upgrade() {
                        core.flush_to(wait.seq);
                    }
                }
            }
        }
    }

    fn submit(&self, submission: &mut Submission, segment: Segment) {
        if submission.in_flight.len() >= MAX_IN_FLIGHT {
            let oldest = submission.in_flight[0].last;
            if let Err(error) = self.progress.queue.wait(oldest, None) {
                self.fail(error, segment.first, "submit");
            }
        }
        self.retire(submission);
        let spoilt = segment.waits.iter().any(|w| w.progress.has_failed(w.seq));
        if spoilt {
            let error = Error::Poisoned { op: "submit", failed: "a command of another stream that this one waits for" };
            self.fail(error, segment.first, "submit");
        }
        let fences = &mut submission.fences;
        fences.clear();
        fences.extend(segment.waits.iter().map(|w| Fence { queue: w.progress.queue.clone(), value: w.seq }));
        let empty = Batch::default();
        // After a failure the queue still receives the signal, so that nobody waits for ever; the work is dropped.
        let failed = self.progress.failed_from.load(Ordering::Acquire) != u64::MAX;
        let outcome = match &segment.graph {
            // SAFETY: reasons 1 to 3 of the contract: bindings were bounds-checked when tensors were made and are
            // retained by the segment until it is retired; conflicts were registered by `append`; `submission` is locked.
            Some(graph) if !failed => unsafe { graph.submit(&*self.progress.queue, fences, segment.last) },
            // SAFETY: as above.
            None if !failed => unsafe { self.progress.queue.submit(&segment.batch, fences, segment.last) },
            // SAFETY: an empty batch touches nothing.
            _ => unsafe { self.progress.queue.submit(&empty, fences, segment.last) },
        };
        // Only now may others wait for these commands through the queue: before, it did not know of them.
        self.progress.submitted.store(segment.last, Ordering::Release);
        let first = segment.first;
        submission.in_flight.push_back(segment);
        if let Err(error) = outcome {
            let label = failed_label(&error);
            self.fail(error, first, label);
        }
        self.retire(submission);
    }

    /// Releases what finished batches retained and looks for faults they reported.
    fn retire(&self, submission: &mut Submission) {
        let done = self.progress.queue.completed();
        if let Some(fault) = self.progress.queue.take_fault() {
            let (first, op) = submission.find(fault.seq);
            self.fail(Error::Fault { op, kind: fault.kind, index: fault.index, value: fault.value }, first, op);
        }
        if let Some((signal, error)) = self.progress.queue.take_failure() {
            let batch = submission.in_flight.iter().find(|s| s.last >= signal);
            let label = failed_label(&error);
            self.fail(error, batch.map_or(signal, |s| s.first), label);
        }
        while submission.in_flight.front().is_some_and(|s| s.last <= done) {
            let mut segment = submission.in_flight.pop_front().expect("INVARIANT: front exists");
            segment.batch.clear();
            let mut pending = lock(&self.pending);
            if pending.spare.len() < MAX_IN_FLIGHT && segment.graph.is_none() {
                pending.spare.push(segment.batch);
            }
        }
        self.progress.completed.fetch_max(done, Ordering::AcqRel);
    }

    fn fail(&self, error: Error, first: u64, label: &'static str) {
        let mut pending = lock(&self.pending);
        // A waiter may report a failure before the batch that caused it is known: the earliest one counts.
        self.progress.failed_from.fetch_min(first, Ordering::AcqRel);
        if pending.failure.is_none() {
            tracing::error!(target: "tessl::stream", %error, "a stream failed");
            pending.failure = Some(Failure { scope: error.scope(), error: Some(error), label });
            self.memory.count_failed_stream(true);
        }
    }

    /// Waits for `seq`; false when the deadline passes first.
    pub(crate) fn wait(&self, seq: u64, deadline: Option<Instant>) -> Result<bool> {
        self.flush_to(seq);
        let done = match self.progress.queue.wait(seq, deadline) {
            Ok(done) => done,
            Err(error) => {
                let label = failed_label(&error);
                self.fail(error, seq, label);
                true
            }
        };
        if !done {
            return Ok(false);
        }
        // Not `try_lock`: while another thread submits, what the finished commands reported would stay unseen, and the
        // caller would read results that a fault left unwritten. `flush_to` has waited for the same lock already.
        self.retire(&mut lock(&self.submission));
        let mut pending = lock(&self.pending);
        match &mut pending.failure {
            Some(failure) => Err(failure.error.take().unwrap_or(Error::Poisoned { op: "wait", failed: failure.label })),
            None => Ok(true),
        }
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.wait(self.last_encoded(), None).map(|_| ())
    }

    pub(crate) fn recover(&self) -> Result<()> {
        // Whatever is still pending was encoded before the failure was known: it is dropped with its signals kept.
        let last = self.last_encoded();
        self.flush_to(last);
        let waited = self.progress.queue.wait(last, None);
        let mut submission = lock(&self.submission);
        self.retire(&mut submission);
        let mut pending = lock(&self.pending);
        if let Some(failure) = &mut pending.failure
            && failure.scope == Scope::Runtime
        {
            let label = failure.label;
            return Err(failure.error.take().unwrap_or(Error::Poisoned { op: "Stream::recover", failed: label }));
        }
        waited?;
        if pending.failure.take().is_some() {
            self.progress.failed_from.store(u64::MAX, Ordering::Release);
            self.memory.count_failed_stream(false);
        }
        Ok(())
    }

    pub(crate) fn refuse_in_capture(&self, op: &'static str) -> Result<()> {
        if lock(&self.pending).tape.is_some() {
            return Err(Error::Capture { op, reason: "the stream is capturing and executes nothing" });
        }
        Ok(())
    }

    pub(crate) fn begin_capture(&self) -> Result<()> {
        let mut pending = lock(&self.pending);
        pending.check_usable("Stream::capture")?;
        if pending.tape.is_some() {
            return Err(Error::Capture { op: "Stream::capture", reason: "this stream is capturing already" });
        }
        let scratch = match &pending.scratch {
            Some(scratch) => Some(self.memory.allocate(scratch.bytes(), BufferKind::Hot)?),
            None => None,
        };
        pending.tape = Some(Tape { batch: Batch::default(), scratch, since_barrier: 0 });
        Ok(())
    }

    pub(crate) fn end_capture(&self) -> Option<Tape> {
        lock(&self.pending).tape.take()
    }

    /// Scratch of at least `bytes` for the next command, grown here and never while encoding.
    pub(crate) fn scratch(&self, op: &'static str, bytes: u64) -> Result<Arc<Allocation>> {
        let mut pending = lock(&self.pending);
        if let Some(tape) = &pending.tape {
            return match &tape.scratch {
                Some(scratch) if scratch.bytes() >= bytes => Ok(scratch.clone()),
                _ => Err(Error::Scratch { op, bytes }),
            };
        }
        pending.grow_scratch(&self.memory, bytes)
    }

    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        let mut pending = lock(&self.pending);
        if pending.tape.is_some() {
            return Err(Error::Scratch { op: "Stream::reserve", bytes });
        }
        pending.grow_scratch(&self.memory, bytes).map(|_| ())
    }

    pub(crate) fn begin_step(&self) -> Result<()> {
        let mut pending = lock(&self.pending);
        if pending.bump.open {
            return Err(Error::Capture { op: "Stream::step", reason: "a step of this stream is open already" });
        }
        pending.bump.open = true;
        pending.bump.used = 0;
        Ok(())
    }

    pub(crate) fn end_step(&self) {
        let mut pending = lock(&self.pending);
        let bump = &mut pending.bump;
        bump.open = false;
        bump.full.drain(..).chain(bump.slab.clone()).for_each(|slab| slab.next_generation());
    }

    /// A place in the slab: memory, offset, generation.
    pub(crate) fn bump(&self, memory: &Arc<Memory>, bytes: u64) -> Result<(Arc<Allocation>, u64, u64)> {
        let mut pending = lock(&self.pending);
        let bump = &mut pending.bump;
        if !bump.open {
            return Err(Error::Capture { op: "Stream::bump", reason: "no step is open; call it inside Stream::step" });
        }
        let fits = |slab: &Arc<Allocation>| bump.used.checked_add(bytes).is_some_and(|end| end <= slab.bytes());
        if !bump.slab.as_ref().is_some_and(fits) {
            // Tensors of this step keep the old slab alive; the next step starts in the larger one.
            let old = bump.slab.as_ref().map_or(0, |s| s.bytes());
            let size = old.saturating_mul(2).max(bytes).max(BUMP_BYTES);
            let slab = memory.allocate(size, BufferKind::Bump)?;
            bump.full.extend(bump.slab.replace(slab));
            bump.used = 0;
        }
        let slab = bump.slab.clone().expect("INVARIANT: made above");
        let offset = bump.used;
        bump.used = (offset + bytes).next_multiple_of(BUMP_ALIGN);
        let generation = slab.generation();
        Ok((slab, offset, generation))
    }

    /// The stream's handle is gone: finish within [`DROP_PATIENCE`], else leave the memory to the device.
    pub(crate) fn retire_for_good(&self) {
        let last = self.last_encoded();
        lock(&self.pending).tape = None;
        let finished = self.wait(last, Instant::now().checked_add(DROP_PATIENCE)).unwrap_or(true);
        if !finished {
            let mut submission = lock(&self.submission);
            for segment in submission.in_flight.drain(..) {
                let bytes = segment.batch.all_bindings().iter().map(|b| b.memory.bytes()).sum();
                self.memory.count_leak(bytes);
                std::mem::forget(segment);
            }
        }
    }
}

impl Submission {
    /// First sequence number and label for a fault's 32-bit sequence number.
    fn find(&self, seq: u32) -> (u64, &'static str) {
        for segment in &self.in_flight {
            let hit = segment.batch.commands().iter().find(|c| c.seq & 0xffff_ffff == u64::from(seq));
            if let Some(command) = hit {
                return (segment.first, command.label);
            }
        }
        let first = self.in_flight.front().map_or(1, |s| s.first);
        (first, "Graph::replay")
    }
}

impl Pending {
    fn check_usable(&self, op: &'static str) -> Result<()> {
        match &self.failure {
            Some(failure) => Err(Error::Poisoned { op, failed: failure.label }),
            None => Ok(()),
        }
    }

    fn has_open_segment(&self) -> bool {
        self.segments.back().is_some_and(|s| s.last == 0)
    }

    fn open_segment(&mut self) -> &mut Segment {
        self.segments.back_mut().expect("INVARIANT: `order` has opened a segment")
    }

    /// The open segment takes no more commands.
    fn close_segment(&mut self) {
        if let Some(segment) = self.segments.back_mut()
            && segment.last == 0
        {
            segment.last = self.next_seq - 1;
        }
    }

    fn grow_scratch(&mut self, memory: &Arc<Memory>, bytes: u64) -> Result<Arc<Allocation>> {
        if let Some(scratch) = &self.scratch
            && scratch.bytes() >= bytes
        {
            return Ok(scratch.clone());
        }
        let scratch = memory.allocate(bytes, BufferKind::Hot)?;
        self.scratch = Some(scratch.clone());
        Ok(scratch)
    }
}

impl Tape {
    /// Records a command, with a barrier where it conflicts with one since the last barrier, or where one is asked for.
    fn record(&mut self, encoded: Encoded<'_>, asked_for: bool) {
        let earlier = &self.batch.all_bindings()[self.since_barrier..];
        let conflict = asked_for
            || encoded.bindings.iter().any(|new| {
                earlier.iter().any(|old| {
                    (old.access == Access::Write || new.access == Access::Write)
                        && old.memory.same_identity(&new.memory)
                        && old.identity_rect().overlaps(&new.identity_rect())
                })
            });
        if conflict {
            self.since_barrier = self.batch.all_bindings().len();
        }
        self.batch.push(encoded, 0, conflict);
    }

    /// What a replay touches: one bounding range per allocation and kind of access.
    pub(crate) fn uses(&self) -> Vec<Binding> {
        let mut uses: Vec<Binding> = Vec::new();
        for binding in self.batch.all_bindings() {
            match uses.iter_mut().find(|u| Arc::ptr_eq(&u.memory, &binding.memory) && u.access == binding.access) {
                Some(known) => {
                    let start = known.rect.offset.min(binding.rect.offset);
                    let end = known.rect.end().max(binding.rect.end());
                    known.rect = Rect::linear(start, end - start);
                }
                None => {
                    let rect = Rect::linear(binding.rect.offset, binding.rect.end() - binding.rect.offset);
                    uses.push(Binding { memory: binding.memory.clone(), rect, access: binding.access });
                }
            }
        }
        uses
    }
}

impl Binding {
    /// The rectangle in the coordinates of the hazard identity.
    fn identity_rect(&self) -> Rect {
        Rect { offset: self.rect.offset + self.memory.identity_offset(), ..self.rect }
    }
}

fn failed_label(error: &Error) -> &'static str {
    match error {
        Error::Device(e) => e.op,
        Error::Panicked { op, .. } | Error::Fault { op, .. } => op,
        _ => "submit",
    }
}

/// A copy command between two bindings.
pub(crate) fn copy(label: &'static str, from: Binding, to: Binding) -> Encoded<'static> {
    let mut bindings = SmallVec::new();
    bindings.push(from);
    bindings.push(to);
    Encoded { label, work: Work::Copy, args: &[], bindings }
}
