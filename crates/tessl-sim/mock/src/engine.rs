//! What was committed and has not been seen to end: the order that barriers and events give it, and its execution in
//! any other order.

use crate::compile::TENSOR_KERNELS;
use crate::record::{Command, Item, What};
use crate::runtime::Held;
use crate::sim::{Answer, CommitFault, Feedback, Sim, State, Support};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use tessl_sim::{Launch, Schedule};

/// Something that happens on the GPU.
struct Node {
    kind: Kind,
    queue: usize,
    commit: u64,
    /// What must have happened before.
    before: Vec<u64>,
    /// How much of it has not.
    left: usize,
    after: Vec<u64>,
    done: bool,
}

enum Kind {
    Command(Arc<Command>),
    /// A barrier: nothing by itself.
    Join,
    Signal {
        event: usize,
        value: u64,
    },
    Wait {
        event: usize,
        value: u64,
        /// The signal has not been submitted yet, so what it will come after is not known.
        open: bool,
    },
    End,
}

/// Commands that touch the same bytes and that only signals still to be submitted can order.
struct Doubt {
    text: String,
    /// The event and the value that one of them waits for, and the other, which has to come before that signal.
    hopes: Vec<(usize, u64, u64, usize)>,
}

/// A commit that has not been seen to end.
struct Commit {
    handlers: Vec<Held>,
    allocator: usize,
    fault: Option<CommitFault>,
    /// Its feedback is on the way.
    ended: bool,
    /// The host knows that its commands have ended.
    seen: bool,
}

#[derive(Default)]
struct Queue {
    /// Everything of this queue that is still in `nodes`, in program order.
    nodes: Vec<u64>,
    /// The last wait; what comes later happens after it.
    gate: Option<u64>,
    commit: u64,
}

/// The work of one device.
pub struct Engine {
    nodes: BTreeMap<u64, Node>,
    ready: Vec<u64>,
    next: u64,
    queues: FxHashMap<usize, Queue>,
    commits: FxHashMap<u64, Commit>,
    doubts: Vec<Doubt>,
    /// Values of shared events by identity.
    pub events: FxHashMap<usize, u64>,
    /// Values that have been signalled, each with the commit before it, until the host has seen them.
    signalled: FxHashMap<usize, Vec<(u64, u64)>>,
    schedule: Schedule,
    random: u64,
    clock: f64,
}

impl Engine {
    pub fn new(schedule: Schedule) -> Self {
        let random = match schedule {
            Schedule::Random(seed) => u64::from(seed) ^ 0x9e37_79b9_7f4a_7c15,
            _ => 1,
        };
        Engine {
            nodes: BTreeMap::new(),
            ready: Vec::new(),
            next: 1,
            queues: FxHashMap::default(),
            commits: FxHashMap::default(),
            doubts: Vec::new(),
            events: FxHashMap::default(),
            signalled: FxHashMap::default(),
            schedule,
            random,
            clock: 1.0,
        }
    }

    fn add(&mut self, queue: usize, kind: Kind, before: Vec<u64>) -> u64 {
        let id = self.next;
        self.next += 1;
        let state = self.queues.entry(queue).or_default();
        let commit = state.commit;
        state.nodes.push(id);
        let mut left = 0;
        for other in &before {
            if let Some(node) = self.nodes.get_mut(other)
                && !node.done
            {
                node.after.push(id);
                left += 1;
            }
        }
        self.nodes.insert(id, Node { kind, queue, commit, before, left, after: Vec::new(), done: false });
        if left == 0 {
            self.ready.push(id);
        }
        id
    }

    pub fn wait_event(&mut self, queue: usize, event: usize, value: u64) {
        let signal = self.nodes.iter().find_map(|(id, node)| match node.kind {
            Kind::Signal { event: e, value: v } if e == event && v >= value => Some(*id),
            _ => None,
        });
        let open = signal.is_none() && self.events.get(&event).is_none_or(|now| *now < value);
        let before = signal.into_iter().chain(self.queues.get(&queue).and_then(|q| q.gate)).collect();
        let id = self.add(queue, Kind::Wait { event, value, open }, before);
        self.queues.entry(queue).or_default().gate = Some(id);
    }

    /// Takes a signal; tells what is now known to be wrong with commands that came before it.
    pub fn signal_event(&mut self, queue: usize, event: usize, value: u64) -> Vec<String> {
        let state = self.queues.entry(queue).or_default();
        if self.commits.get(&state.commit).and_then(|c| c.fault).is_some_and(|f| !f.signals) {
            return Vec::new();
        }
        let before = state.nodes.clone();
        let signal = self.add(queue, Kind::Signal { event, value }, before);
        for node in self.nodes.values_mut() {
            if let Kind::Wait { event: e, value: v, open } = &mut node.kind
                && (*e, *open) == (event, true)
                && *v <= value
            {
                *open = false;
                node.before.push(signal);
            }
        }
        self.settle(queue, event, value, signal)
    }

    /// What the doubts about commands that wait for this signal come to.
    fn settle(&mut self, queue: usize, event: usize, value: u64, signal: u64) -> Vec<String> {
        let mut doubts = std::mem::take(&mut self.doubts);
        let mut wrong = Vec::new();
        if !doubts.is_empty() {
            let ancestors = self.ancestors(&[signal]);
            // What the host has seen to end before it submits the signal is gone.
            let before = |id: &u64| ancestors.contains(id) || !self.nodes.contains_key(id);
            doubts.retain_mut(|doubt| {
                let mut ordered = false;
                doubt.hopes.retain(|&(e, v, earlier, of)| {
                    let answered = e == event && v <= value;
                    ordered |= answered && (of == queue || before(&earlier));
                    !answered
                });
                if !ordered && doubt.hopes.is_empty() {
                    wrong.push(std::mem::take(&mut doubt.text));
                }
                !ordered && !doubt.hopes.is_empty()
            });
        }
        self.doubts = doubts;
        wrong
    }

    /// Takes the commands of one command buffer; tells what is wrong with them.
    pub fn commit(
        &mut self,
        queue: usize,
        items: &[Item],
        handlers: Vec<Held>,
        allocator: usize,
        fault: Option<CommitFault>,
    ) -> (u64, Vec<String>) {
        let commit = self.next;
        self.next += 1;
        let state = self.queues.entry(queue).or_default();
        state.commit = commit;
        let gate = state.gate;
        self.commits.insert(commit, Commit { handlers, allocator, fault, ended: false, seen: false });
        let mut findings = Vec::new();
        let mut all = Vec::new();
        let mut earlier: Vec<u64> = Vec::new();
        let mut encoder: Vec<u64> = Vec::new();
        // Barriers so far: the stages that wait, and the node to wait for.
        let mut inside: Vec<(u64, u64)> = Vec::new();
        for item in items {
            match item {
                Item::Encoder => {
                    earlier = self.queues.get(&queue).map(|q| q.nodes.clone()).unwrap_or_default();
                    encoder.clear();
                    inside.clear();
                }
                Item::Command(_) | Item::Execution(_) => {
                    let mut execution: Vec<u64> = Vec::new();
                    let mut own = None;
                    for command in item.commands() {
                        let waits = matches!(item, Item::Execution(list) if list[execution.len()].1);
                        if waits {
                            own = Some(self.add(queue, Kind::Join, execution.iter().copied().chain(gate).collect()));
                        }
                        let joins = inside.iter().filter(|(s, _)| s & command.stage != 0).map(|(_, join)| *join);
                        let before: Vec<u64> = joins.chain(own).chain(gate).collect();
                        let id = self.add(queue, Kind::Command(command.clone()), before);
                        findings.extend(self.conflicts(command, id));
                        execution.push(id);
                        encoder.push(id);
                        all.push(id);
                    }
                }
                Item::Inside { after, before } => {
                    let join = self.join(queue, &encoder, *after, gate);
                    inside.push((*before, join));
                }
                Item::Queue { after, before } => {
                    let join = self.join(queue, &earlier, *after, gate);
                    inside.push((*before, join));
                }
            }
        }
        all.extend(gate);
        self.add(queue, Kind::End, all);
        (commit, findings)
    }

    fn join(&mut self, queue: usize, nodes: &[u64], stages: u64, gate: Option<u64>) -> u64 {
        let of = |id: &&u64| {
            self.nodes.get(id).is_some_and(|n| matches!(&n.kind, Kind::Command(c) if c.stage & stages != 0))
        };
        let before = nodes.iter().filter(of).copied().chain(gate).collect();
        self.add(queue, Kind::Join, before)
    }

    /// Commands that touch the same bytes, one of them writing, and that nothing orders before this one.
    fn conflicts(&mut self, command: &Command, id: u64) -> Vec<String> {
        let mut ancestors: Option<FxHashSet<u64>> = None;
        let (mut findings, mut doubts) = (Vec::new(), Vec::new());
        for (other_id, node) in self.nodes.range(..id) {
            let Kind::Command(other) = &node.kind else { continue };
            let Some(place) = other.meets(command) else { continue };
            let mine = ancestors.get_or_insert_with(|| self.ancestors(&[id]));
            if mine.contains(other_id) {
                continue;
            }
            let text =
                format!("no barrier between `{}` and `{}`, which both touch {place}", other.label, command.label);
            // A queue may wait for what another has still to submit, even before the other command is submitted.
            let mut hopes = self.hopes(mine, *other_id);
            hopes.extend(self.hopes(&self.ancestors(&[*other_id]), id));
            if hopes.is_empty() {
                findings.push(text);
            } else {
                doubts.push(Doubt { text, hopes });
            }
        }
        self.doubts.extend(doubts);
        findings
    }

    /// The open waits among `ancestors` of one command, any of which may turn out to order `earlier` before it.
    fn hopes(&self, ancestors: &FxHashSet<u64>, earlier: u64) -> Vec<(usize, u64, u64, usize)> {
        let of = self.nodes.get(&earlier).map_or(0, |n| n.queue);
        let open = |id: &u64| match self.nodes.get(id)?.kind {
            Kind::Wait { event, value, open: true } => Some((event, value, earlier, of)),
            _ => None,
        };
        ancestors.iter().filter_map(open).collect()
    }

    fn ancestors(&self, from: &[u64]) -> FxHashSet<u64> {
        let mut seen = FxHashSet::default();
        let mut stack = from.to_vec();
        while let Some(id) = stack.pop() {
            if seen.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                stack.extend(&node.before);
            }
        }
        seen
    }

    /// Commits that use an allocator and have not been seen to end.
    pub fn uses_allocator(&self, allocator: usize) -> bool {
        self.commits.values().any(|c| c.allocator == allocator && !c.seen)
    }

    /// The next thing that can happen.
    fn pick(&mut self) -> Option<u64> {
        let held = |engine: &Self, id: &u64| match engine.nodes.get(id).map(|n| &n.kind) {
            Some(Kind::Wait { event, value, .. }) => engine.events.get(event).copied().unwrap_or(0) < *value,
            Some(_) => false,
            None => true,
        };
        self.ready.retain(|id| self.nodes.contains_key(id));
        let open: Vec<usize> = (0..self.ready.len()).filter(|&i| !held(self, &self.ready[i])).collect();
        let at = match self.schedule {
            Schedule::Forward => open.into_iter().min_by_key(|&i| self.ready[i])?,
            Schedule::Backward => open.into_iter().max_by_key(|&i| self.ready[i])?,
            Schedule::Random(_) => {
                self.random =
                    self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let draw = usize::try_from(self.random >> 33).unwrap_or(0);
                *open.get(draw % open.len().max(1))?
            }
        };
        Some(self.ready.swap_remove(at))
    }

    fn finish(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.done = true;
        let after = std::mem::take(&mut node.after);
        let over = self.commits.get(&node.commit).is_none_or(|c| c.seen);
        for next in after {
            if let Some(node) = self.nodes.get_mut(&next) {
                node.left -= 1;
                if node.left == 0 {
                    self.ready.push(next);
                }
            }
        }
        if over {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) {
        self.nodes.remove(&id);
        for queue in self.queues.values_mut() {
            queue.nodes.retain(|n| *n != id);
            queue.gate = queue.gate.filter(|g| *g != id);
        }
    }
}

/// Lets one thing happen; false when nothing can.
pub fn step(sim: &Arc<Sim>, state: &mut State) -> bool {
    let Some(id) = state.engine.pick() else { return false };
    let engine = &state.engine;
    let Some(node) = engine.nodes.get(&id) else { return true };
    let fault = engine.commits.get(&node.commit).and_then(|c| c.fault);
    match &node.kind {
        Kind::Join | Kind::Wait { .. } => {}
        Kind::Command(command) => {
            let command = command.clone();
            if fault.is_none_or(|f| f.runs) {
                execute(sim, state, &command);
            }
        }
        Kind::Signal { event, value } => {
            let (event, value, commit) = (*event, *value, node.commit);
            state.engine.signalled.entry(event).or_default().push((value, commit));
            let now = state.engine.events.entry(event).or_insert(0);
            *now = (*now).max(value);
        }
        Kind::End => {
            let commit = node.commit;
            if fault.is_some_and(|f| !f.runs && !f.answers) {
                // It hangs: nothing after it happens either.
                return true;
            }
            state.engine.clock += 0.001;
            let clock = state.engine.clock;
            if let Some(c) = state.engine.commits.get_mut(&commit) {
                c.ended = true;
                let handlers = std::mem::take(&mut c.handlers);
                let over = c.seen;
                if over {
                    state.engine.commits.remove(&commit);
                }
                if fault.is_none_or(|f| f.answers) {
                    let error = match fault.map(|f| f.code) {
                        Some(code) if code != 0 => crate::foundation::error(code, "injected by the mock"),
                        _ => std::ptr::null_mut(),
                    };
                    let feedback = Feedback { error, start: clock - 0.001, end: clock };
                    sim.answer(Answer { sim: sim.clone(), commit, handlers, feedback });
                }
            }
        }
    }
    state.engine.finish(id);
    true
}

/// The host knows that a commit has ended: nothing of it conflicts any more, and it may release what it used.
pub fn seen(state: &mut State, commit: u64) {
    match state.engine.commits.get_mut(&commit) {
        None => return,
        Some(c) if c.ended => {
            state.engine.commits.remove(&commit);
        }
        Some(c) => c.seen = true,
    }
    let mine: Vec<u64> =
        state.engine.nodes.iter().filter(|(_, n)| n.commit == commit && n.done).map(|(id, _)| *id).collect();
    for id in mine {
        if let Some(Kind::Command(command)) = state.engine.nodes.get(&id).map(|n| &n.kind) {
            let command = command.clone();
            crate::memory::end_use(state, &command.memory);
        }
        state.engine.remove(id);
    }
}

/// The host has read an event's value: what came before it has ended.
pub fn event_seen(state: &mut State, event: usize, value: u64) {
    let Some(list) = state.engine.signalled.get_mut(&event) else { return };
    let commits: Vec<u64> = list.iter().filter(|(v, _)| *v <= value).map(|(_, commit)| *commit).collect();
    list.retain(|(v, _)| *v > value);
    commits.into_iter().for_each(|commit| seen(state, commit));
}

fn execute(sim: &Sim, state: &State, command: &Command) {
    let host = |address: u64| -> *mut u8 {
        let Some(start) = state.find(address) else { return std::ptr::null_mut() };
        let offset = usize::try_from(address - start).unwrap_or(usize::MAX);
        state.memory[&start].host.wrapping_add(offset)
    };
    match &command.what {
        What::Optimize => {}
        What::Dispatch { pipeline, .. }
            if sim.config.tensor_ops == Support::Ignored && pipeline.name.starts_with(TENSOR_KERNELS) => {}
        What::Dispatch { pipeline, slots, grid, threads, args } => {
            let pointers: Vec<*mut u8> = slots.iter().map(|a| host(*a)).collect();
            if pointers.iter().any(|p| p.is_null()) {
                return; // reported when it was encoded
            }
            if let Some((slot, bytes)) = args {
                // SAFETY: the block was inside a live buffer when it was encoded; released buffers are kept.
                let now = unsafe { std::slice::from_raw_parts(pointers[*slot], bytes.len()) };
                if now != bytes.as_slice() {
                    sim.report.add(format!("the arguments of `{}` changed while it was in flight", command.label));
                }
            }
            let pointers: Vec<*mut c_void> = pointers.into_iter().map(|p| p.cast()).collect();
            let constants: Vec<(&str, f64)> = pipeline.constants.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            let launch = Launch {
                kernel: &pipeline.name,
                constants: &constants,
                grid: *grid,
                threads: *threads,
                args: &pointers,
                schedule: state.engine.schedule,
            };
            // SAFETY: pointers are inside live buffers; the core has checked that kernels stay inside their bindings.
            let outcome = unsafe {
                match &pipeline.module {
                    Some(module) => module.launch(&launch),
                    None => tessl_sim::launch(&launch),
                }
            };
            if let Err(message) = outcome {
                sim.report.add(format!("`{}`: {message}", command.label));
            }
        }
        What::Copy { from, to, bytes } => {
            let (from, to) = (host(*from), host(*to));
            // SAFETY: both ranges were checked when the copy was encoded.
            unsafe { std::ptr::copy(from, to, *bytes) };
        }
        What::Fill { to, bytes, value } => {
            // SAFETY: as above.
            unsafe { host(*to).write_bytes(*value, *bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Access, What};
    use tessl::stream::Rect;

    const EVENT: usize = 7;

    /// Overwrites `bytes` from one address on.
    fn fill(label: &str, bytes: usize) -> Item {
        let access = Access { rect: Rect::linear(4096, bytes as u64), write: true };
        Item::Command(Arc::new(Command {
            label: label.to_owned(),
            what: What::Fill { to: 4096, bytes, value: 0 },
            stage: crate::record::BLIT,
            accesses: vec![access],
            memory: Vec::new(),
        }))
    }

    fn commit(engine: &mut Engine, queue: usize, label: &str) -> Vec<String> {
        engine.commit(queue, &[Item::Encoder, fill(label, 16)], Vec::new(), 0, None).1
    }

    /// The second queue waits before the first has submitted its signal, or even its command.
    #[test]
    fn a_wait_may_be_submitted_before_its_signal() {
        for late in [false, true] {
            let mut engine = Engine::new(Schedule::Forward);
            if !late {
                assert!(commit(&mut engine, 1, "first").is_empty());
            }
            engine.wait_event(2, EVENT, 5);
            assert!(commit(&mut engine, 2, "second").is_empty());
            if late {
                assert!(commit(&mut engine, 1, "first").is_empty());
            }
            assert!(engine.signal_event(1, EVENT, 4).is_empty());
            assert!(engine.signal_event(1, EVENT, 5).is_empty());
            assert!(engine.doubts.is_empty());
        }
    }

    #[test]
    fn a_wait_for_another_signal_orders_nothing() {
        let mut engine = Engine::new(Schedule::Forward);
        assert!(commit(&mut engine, 1, "first").is_empty());
        engine.wait_event(2, EVENT, 5);
        assert!(commit(&mut engine, 2, "second").is_empty());
        let found = engine.signal_event(3, EVENT, 5);
        assert!(found.len() == 1 && found[0].contains("`first` and `second`"), "{found:?}");
        assert!(engine.doubts.is_empty());
        // Without a wait it is known at once.
        assert_eq!(commit(&mut engine, 4, "third").len(), 2);
    }

    #[test]
    fn a_signal_orders_what_its_own_queue_waited_for() {
        let mut engine = Engine::new(Schedule::Forward);
        assert!(commit(&mut engine, 1, "first").is_empty());
        engine.wait_event(3, EVENT, 1);
        assert!(commit(&mut engine, 3, "third").is_empty());
        engine.wait_event(2, EVENT + 1, 1);
        assert!(commit(&mut engine, 2, "second").is_empty());
        assert!(engine.signal_event(1, EVENT, 1).is_empty());
        assert!(engine.signal_event(3, EVENT + 1, 1).is_empty());
        assert!(engine.doubts.is_empty());
    }
}
