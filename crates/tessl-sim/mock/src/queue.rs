//! Command queues, commits, feedback and shared events.

use crate::engine;
use crate::foundation::{class, imp};
use crate::memory::ResidencyBody;
use crate::record::{CommandBufferBody, Item, What};
use crate::report::count;
use crate::runtime::{Block, Class, Header, Held, Methods, Sel, body, make, release, retain};
use crate::sim::{Answer, Feedback, Sabotage, Sim, State};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

static QUEUE: Class = Class::inner(c"MTL4CommandQueue");
static EVENT: Class = Class::inner(c"MTLSharedEvent");
static FEEDBACK: Class = Class::inner(c"MTL4CommitFeedback");
class!(COMMIT_OPTIONS, "_OBJC_CLASS_MTL4CommitOptions", c"MTL4CommitOptions", || make(
    &COMMIT_OPTIONS,
    OptionsBody::default()
));

/// After this many questions without an answer the device does something by itself, so that polling gets on.
const PATIENCE: u64 = 32;
/// How long a waiter sleeps when nothing can happen.
const NAP: Duration = Duration::from_micros(100);

#[derive(Default)]
struct OptionsBody(Mutex<Vec<Held>>);

struct QueueBody {
    sim: Arc<Sim>,
    sets: Mutex<Vec<usize>>,
    /// For measuring: commands are not run, commits end at once.
    commits: AtomicU64,
}

struct EventBody {
    sim: Arc<Sim>,
    id: usize,
    questions: AtomicU64,
}

impl Drop for QueueBody {
    fn drop(&mut self) {
        let sets = self.sets.get_mut().unwrap_or_else(PoisonError::into_inner);
        sets.drain(..).for_each(|set| release(set as *mut Header));
    }
}

pub fn queue(sim: &Arc<Sim>) -> *mut Header {
    make(&QUEUE, QueueBody { sim: sim.clone(), sets: Mutex::default(), commits: AtomicU64::new(0) })
}

pub fn event(sim: &Arc<Sim>) -> *mut Header {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
    make(&EVENT, EventBody { sim: sim.clone(), id, questions: AtomicU64::new(0) })
}

pub fn feedback_object(feedback: Feedback) -> *mut Header {
    make(&FEEDBACK, feedback)
}

/// Whether a residency set that the queue retains has this buffer, as of its last commit.
fn has(set: *mut Header, start: u64) -> bool {
    // SAFETY: the queue retains its residency sets.
    let set = unsafe { body::<ResidencyBody>(set) };
    set.sets.lock().unwrap_or_else(PoisonError::into_inner).1.contains(&start)
}

/// Checks and enqueues one command buffer.
fn commit(queue: &QueueBody, this: usize, buffer: *mut Header, handlers: Vec<Held>) {
    let sim = &queue.sim;
    count(&sim.counters.commits);
    // SAFETY: the argument is a command buffer.
    let buffer = unsafe { body::<CommandBufferBody>(buffer) };
    let mut recording = buffer.state();
    if !std::mem::take(&mut recording.ended) {
        sim.report.add("a command buffer was committed that has not ended, or twice".to_owned());
    }
    let items = std::mem::take(&mut recording.items);
    let allocator = recording.allocator;
    drop(recording);
    if !sim.records() {
        let commit = queue.commits.fetch_add(1, Ordering::Relaxed);
        let feedback = Feedback { error: ptr::null_mut(), start: 0.0, end: 0.0 };
        sim.answer(Answer { sim: sim.clone(), commit, handlers, feedback });
        return;
    }
    let sets = queue.sets.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let resident = |start: u64| sets.iter().any(|set| has(*set as *mut Header, start));
    let mut state = sim.state();
    for command in items.iter().flat_map(Item::commands) {
        for start in &command.memory {
            if !resident(*start) {
                sim.report
                    .add(format!("`{}` uses memory that is in no committed residency set of its queue", command.label));
            }
            match state.memory.get_mut(start).filter(|m| m.alive) {
                Some(memory) => memory.uses += 1,
                None => sim.report.add(format!("a buffer of `{}` was released before its commit", command.label)),
            }
        }
    }
    let fault = match &mut state.faults.commit {
        Some(fault) if fault.after > 0 => {
            fault.after -= 1;
            None
        }
        fault => fault.take(),
    };
    let (_, findings) = state.engine.commit(this, &items, handlers, allocator, fault);
    if sim.is(Sabotage::ArgumentsOverwritten) {
        spoil_arguments(&state, &items);
    }
    drop(state);
    if sim.is(Sabotage::EarlyReset) {
        crate::record::reset(allocator as *mut Header);
    }
    findings.into_iter().for_each(|text| sim.report.add(text));
}

/// Flips a byte of each argument block that is known.
fn spoil_arguments(state: &State, items: &[Item]) {
    for command in items.iter().flat_map(Item::commands) {
        let What::Dispatch { slots, args: Some((slot, _)), .. } = &command.what else { continue };
        if let Some(start) = state.find(slots[*slot]) {
            let offset = usize::try_from(slots[*slot] - start).unwrap_or(0);
            // SAFETY: inside a live buffer.
            unsafe { *state.memory[&start].host.add(offset) ^= 1 };
        }
    }
}

/// The event's value; the host knows from now on what it means.
fn value(event: &EventBody, state: &mut State) -> u64 {
    let value = state.engine.events.get(&event.id).copied().unwrap_or(0);
    engine::event_seen(state, event.id, value);
    value
}

pub fn register(m: &mut Methods) {
    m.add(
        &QUEUE,
        c"addResidencySet:",
        imp!(|this: *mut Header, _s: Sel, set: *mut Header| -> () {
            // SAFETY: the receiver is a queue.
            let queue = unsafe { body::<QueueBody>(this) };
            let mut sets = queue.sets.lock().unwrap_or_else(PoisonError::into_inner);
            sets.push(retain(set) as usize);
            if sets.len() > 32 {
                queue.sim.report.add("more than 32 residency sets on a queue".to_owned());
            }
        }),
    );
    m.add(
        &QUEUE,
        c"removeResidencySet:",
        imp!(|this: *mut Header, _s: Sel, set: *mut Header| -> () {
            // SAFETY: the receiver is a queue.
            let queue = unsafe { body::<QueueBody>(this) };
            let mut sets = queue.sets.lock().unwrap_or_else(PoisonError::into_inner);
            match sets.iter().position(|s| *s == set as usize) {
                Some(at) => release(sets.swap_remove(at) as *mut Header),
                None => queue.sim.report.add("removeResidencySet of a set that the queue does not have".to_owned()),
            }
        }),
    );
    m.add(
        &QUEUE,
        c"commit:count:options:",
        imp!(|this: *mut Header, _s: Sel, buffers: *const *mut Header, number: usize, options: *mut Header| -> () {
            // SAFETY: the receiver is a queue, the arguments `number` command buffers and commit options.
            let (queue, buffers, options) = unsafe {
                (body::<QueueBody>(this), std::slice::from_raw_parts(buffers, number), body::<OptionsBody>(options))
            };
            let mut handlers = std::mem::take(&mut *options.0.lock().unwrap_or_else(PoisonError::into_inner));
            for (index, buffer) in buffers.iter().enumerate() {
                let last = index + 1 == number;
                commit(queue, this as usize, *buffer, if last { std::mem::take(&mut handlers) } else { Vec::new() });
                if queue.sim.is(Sabotage::SecondCommit) {
                    commit(queue, this as usize, *buffer, Vec::new());
                }
            }
        }),
    );
    m.add(
        &QUEUE,
        c"signalEvent:value:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header, to: u64| -> () {
            // SAFETY: the receiver is a queue, the argument an event.
            let (queue, event) = unsafe { (body::<QueueBody>(this), body::<EventBody>(object)) };
            let mut state = queue.sim.state();
            if queue.sim.records() {
                let findings = state.engine.signal_event(this as usize, event.id, to);
                drop(state);
                findings.into_iter().for_each(|text| queue.sim.report.add(text));
            } else {
                state.engine.events.insert(event.id, to);
            }
        }),
    );
    m.add(
        &QUEUE,
        c"waitForEvent:value:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header, to: u64| -> () {
            // SAFETY: the receiver is a queue, the argument an event.
            let (queue, event) = unsafe { (body::<QueueBody>(this), body::<EventBody>(object)) };
            if !queue.sim.is(Sabotage::NoEventWait) {
                queue.sim.state().engine.wait_event(this as usize, event.id, to);
            }
        }),
    );

    m.add(
        &EVENT,
        c"signaledValue",
        imp!(|this: *mut Header, _s: Sel| -> u64 {
            // SAFETY: the receiver is an event.
            let event = unsafe { body::<EventBody>(this) };
            let mut state = event.sim.state();
            if event.questions.fetch_add(1, Ordering::Relaxed) % PATIENCE == PATIENCE - 1 {
                engine::step(&event.sim, &mut state);
            }
            value(event, &mut state)
        }),
    );
    m.add(
        &EVENT,
        c"setSignaledValue:",
        imp!(|this: *mut Header, _s: Sel, to: u64| -> () {
            // SAFETY: the receiver is an event.
            let event = unsafe { body::<EventBody>(this) };
            let mut state = event.sim.state();
            let now = state.engine.events.entry(event.id).or_insert(0);
            if to < *now {
                event.sim.report.add(format!("an event was set back from {now} to {to}"));
            }
            *now = to;
        }),
    );
    m.add(
        &EVENT,
        c"waitUntilSignaledValue:timeoutMS:",
        imp!(|this: *mut Header, _s: Sel, to: u64, millis: u64| -> bool {
            // SAFETY: the receiver is an event.
            let event = unsafe { body::<EventBody>(this) };
            let deadline = Instant::now() + Duration::from_millis(millis);
            loop {
                let moved = {
                    let mut state = event.sim.state();
                    if value(event, &mut state) >= to {
                        return true;
                    }
                    engine::step(&event.sim, &mut state)
                };
                if Instant::now() >= deadline {
                    return false;
                }
                if !moved {
                    std::thread::sleep(NAP);
                }
            }
        }),
    );

    m.add(
        &COMMIT_OPTIONS,
        c"addFeedbackHandler:",
        imp!(|this: *mut Header, _s: Sel, block: *mut Block| -> () {
            // SAFETY: the receiver is a set of options, the argument a commit handler.
            let (options, block) = unsafe { (body::<OptionsBody>(this), Held::copy(block)) };
            options.0.lock().unwrap_or_else(PoisonError::into_inner).push(block);
        }),
    );
    m.add(
        &FEEDBACK,
        c"error",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            // SAFETY: the receiver is a feedback object.
            unsafe { body::<Feedback>(this) }.error
        }),
    );
    m.add(
        &FEEDBACK,
        c"GPUStartTime",
        imp!(|this: *mut Header, _s: Sel| -> f64 {
            // SAFETY: the receiver is a feedback object.
            unsafe { body::<Feedback>(this) }.start
        }),
    );
    m.add(
        &FEEDBACK,
        c"GPUEndTime",
        imp!(|this: *mut Header, _s: Sel| -> f64 {
            // SAFETY: the receiver is a feedback object.
            unsafe { body::<Feedback>(this) }.end
        }),
    );
}
