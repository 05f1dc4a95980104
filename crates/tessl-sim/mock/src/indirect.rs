//! Indirect command buffers: what is recorded in them, and its execution.

use crate::compile::{Pipeline, PipelineBody};
use crate::encoder::{self, Range, Size, encoder, linear};
use crate::foundation::{Bag, class, imp, properties};
use crate::memory::{Allocation, BufferBody, DEVICE, DeviceBody};
use crate::record::{BLIT, Command, Item, What};
use crate::report::count;
use crate::runtime::{Class, Header, Methods, Sel, autorelease, body, make, release, retain};
use crate::sim::{Sabotage, Sim, Support};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub static INDIRECT: Class = Class::inner(c"MTLIndirectCommandBuffer");
static COMMAND: Class = Class::inner(c"MTLIndirectComputeCommand");
class!(DESCRIPTOR, "_OBJC_CLASS_MTLIndirectCommandBufferDescriptor", c"MTLIndirectCommandBufferDescriptor", || make(
    &DESCRIPTOR,
    Bag::default()
));

/// Commands of one execution, at most.
const RANGE: usize = 16_384;
/// Bytes of one command.
const BYTES: usize = 256;
/// `MTLIndirectCommandTypeConcurrentDispatch`.
const DISPATCHES: usize = 1 << 5;

#[derive(Clone, Default)]
struct Recorded {
    /// With where it is in memory.
    pipeline: Option<(Arc<Pipeline>, u64)>,
    slots: Vec<Option<u64>>,
    barrier: bool,
    size: Option<([usize; 3], usize)>,
}

pub struct IndirectBody {
    sim: Arc<Sim>,
    pub allocation: Allocation,
    commands: Mutex<Vec<Recorded>>,
    /// Buffers and pipeline come from the encoder.
    inherits: [bool; 2],
    /// Buffers of a command.
    bindings: usize,
    set: AtomicU64,
}

impl IndirectBody {
    fn commands(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command of an indirect command buffer, which it keeps alive.
struct CommandBody {
    buffer: *mut Header,
    index: usize,
}

impl Drop for CommandBody {
    fn drop(&mut self) {
        release(self.buffer);
    }
}

/// Changes a command; nothing may run it meanwhile.
fn change(this: *mut Header, change: impl FnOnce(&IndirectBody, &mut Recorded)) {
    // SAFETY: the receiver is a command, which keeps its buffer alive.
    let (index, buffer) = unsafe {
        let command = body::<CommandBody>(this);
        (command.index, body::<IndirectBody>(command.buffer))
    };
    if buffer.sim.state().memory.get(&buffer.allocation.start).is_some_and(|m| m.uses > 0) {
        buffer.sim.report.add("an indirect command was changed while it was in flight".to_owned());
    }
    change(buffer, &mut buffer.commands()[index]);
}

/// A command with what it needs, if nothing is wrong with it.
fn command(buffer: &IndirectBody, recorded: &Recorded, table: Option<&[u64]>) -> Option<Command> {
    let sim = &buffer.sim;
    let (Some((pipeline, place)), Some((grid, threads))) = (&recorded.pipeline, recorded.size) else {
        sim.report.add("an indirect command without pipeline or size".to_owned());
        return None;
    };
    if !pipeline.indirect {
        sim.report.add(format!("`{}` was not made for indirect command buffers", pipeline.name));
    }
    let slots: Vec<u64> = match table {
        Some(bound) => bound.to_vec(),
        None => recorded.slots.iter().map(|slot| slot.unwrap_or(0)).collect(),
    };
    let mut command = encoder::command(sim, pipeline.clone(), slots, grid, threads)?;
    command.memory.extend([*place, buffer.allocation.start]);
    command.accesses.push(linear(buffer.allocation.start, buffer.allocation.bytes, false));
    Some(command)
}

fn execute(this: *mut Header, object: *mut Header, range: &Range) {
    let encoder = encoder(this);
    let sim = &encoder.sim;
    // SAFETY: the argument is an indirect command buffer.
    let buffer = unsafe { body::<IndirectBody>(object) };
    let recorded = buffer.commands();
    let length = range.length - usize::from(sim.is(Sabotage::ShortExecution) && range.length > 1);
    let Some(commands) = recorded.get(range.location..range.location + length).filter(|c| c.len() <= RANGE) else {
        sim.report.add(format!("an execution of {} commands from {} on", range.length, range.location));
        return;
    };
    count(&sim.counters.executions);
    sim.counters.dispatches.fetch_add(commands.len() as u64, Ordering::Relaxed);
    let barriers = commands.iter().filter(|c| c.barrier).count();
    sim.counters.indirect_barriers.fetch_add(barriers as u64, Ordering::Relaxed);
    if !sim.records() {
        return;
    }
    if encoder.pipeline.lock().unwrap_or_else(PoisonError::into_inner).take().is_none() {
        sim.report.add("indirect commands on an encoder without a pipeline".to_owned());
    }
    let bound = encoder.bound();
    if buffer.inherits[0] != bound.is_some() {
        sim.report.add(format!(
            "indirect commands with an argument table: {}; wanted: {}",
            bound.is_some(),
            buffer.inherits[0]
        ));
        return;
    }
    if sim.config.indirect == Support::Ignored {
        return;
    }
    let made = commands.iter().filter_map(|c| Some((Arc::new(command(buffer, c, bound.as_deref())?), c.barrier)));
    encoder.push(Item::Execution(made.collect()));
}

pub fn register(m: &mut Methods) {
    properties(
        m,
        &DESCRIPTOR,
        &[],
        &[c"setCommandTypes:", c"setInheritPipelineState:", c"setInheritBuffers:", c"setMaxKernelBufferBindCount:"],
    );
    m.add(
        &DEVICE,
        c"newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header, number: usize, _options: usize| -> *mut Header {
            // SAFETY: the receiver is a device, the argument a descriptor.
            let (sim, descriptor) = unsafe { (&body::<DeviceBody>(this).0, body::<Bag>(d)) };
            if sim.config.indirect == Support::Refused {
                return ptr::null_mut();
            }
            let word = |setter| descriptor.get(setter).unwrap_or(0);
            let (kinds, bindings) = (word(c"setCommandTypes:"), word(c"setMaxKernelBufferBindCount:"));
            if kinds != DISPATCHES || bindings > 31 || number == 0 {
                let text =
                    format!("an indirect command buffer for {number} commands of kind {kinds} with {bindings} buffers");
                sim.report.add(text);
            }
            // Objective-C's default is that a command inherits nothing but its pipeline.
            let inherits = [c"setInheritBuffers:", c"setInheritPipelineState:"].map(|setter| word(setter) & 0xff != 0);
            let commands = vec![Recorded { slots: vec![None; bindings], ..Recorded::default() }; number];
            make(
                &INDIRECT,
                IndirectBody {
                    sim: sim.clone(),
                    allocation: Allocation::inner(sim, "an indirect command buffer", number * BYTES),
                    commands: Mutex::new(commands),
                    inherits,
                    bindings,
                    set: AtomicU64::new(0),
                },
            )
        }),
    );
    m.add(
        &INDIRECT,
        c"indirectComputeCommandAtIndex:",
        imp!(|this: *mut Header, _s: Sel, index: usize| -> *mut Header {
            // SAFETY: the receiver is an indirect command buffer.
            let buffer = unsafe { body::<IndirectBody>(this) };
            assert!(index < buffer.commands().len(), "an indirect command beyond the last");
            autorelease(make(&COMMAND, CommandBody { buffer: retain(this), index }))
        }),
    );
    m.add(
        &INDIRECT,
        c"allocatedSize",
        imp!(|this: *mut Header, _s: Sel| -> usize {
            // SAFETY: the receiver is an indirect command buffer.
            unsafe { body::<IndirectBody>(this) }.allocation.bytes
        }),
    );
    m.add(
        &COMMAND,
        c"setComputePipelineState:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header| -> () {
            // SAFETY: the argument is a pipeline.
            let PipelineBody { pipeline, allocation } = unsafe { body::<PipelineBody>(object) };
            change(this, |buffer, command| {
                if buffer.inherits[1] {
                    buffer.sim.report.add("a pipeline for indirect commands that inherit theirs".to_owned());
                }
                command.pipeline = Some((pipeline.clone(), allocation.start));
            });
        }),
    );
    m.add(
        &COMMAND,
        c"setKernelBuffer:offset:atIndex:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header, offset: usize, index: usize| -> () {
            // SAFETY: the argument is a buffer.
            let target = &unsafe { body::<BufferBody>(object) }.allocation;
            change(this, |buffer, command| {
                let sim = &buffer.sim;
                if offset >= target.bytes.max(1) || buffer.inherits[0] || index >= buffer.bindings {
                    sim.report.add(format!("an indirect command binds {offset} of {} at {index}", target.bytes));
                    return;
                }
                let number = buffer.set.fetch_add(1, Ordering::Relaxed);
                if sim.is(Sabotage::FrozenSlotMissing) && number % 5 == 4 {
                    return;
                }
                let shift = if sim.is(Sabotage::FrozenOffset) { 256 } else { 0 };
                command.slots[index] = Some(target.start + offset as u64 + shift);
            });
        }),
    );
    m.add(
        &COMMAND,
        c"setThreadgroupMemoryLength:atIndex:",
        imp!(|this: *mut Header, _s: Sel, bytes: usize, _index: usize| -> () {
            change(this, |buffer, _| {
                if !bytes.is_multiple_of(16) || bytes > 32 << 10 {
                    buffer.sim.report.add(format!("threadgroup memory of {bytes} bytes"));
                }
            });
        }),
    );
    m.add(
        &COMMAND,
        c"setBarrier",
        imp!(|this: *mut Header, _s: Sel| -> () {
            change(this, |buffer, command| command.barrier = !buffer.sim.is(Sabotage::NoIndirectBarrier));
        }),
    );
    m.add(
        &COMMAND,
        c"concurrentDispatchThreadgroups:threadsPerThreadgroup:",
        imp!(|this: *mut Header, _s: Sel, grid: Size, group: Size| -> () {
            change(this, |buffer, command| {
                let fewer = usize::from(buffer.sim.is(Sabotage::IndirectGrid) && grid.width > 1);
                let groups = [grid.width - fewer, grid.height, grid.depth];
                command.size = Some((groups, group.width * group.height * group.depth));
            });
        }),
    );
    m.add(
        &encoder::ENCODER,
        c"executeCommandsInBuffer:withRange:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header, range: Range| -> () {
            execute(this, object, &range);
        }),
    );
    m.add(
        &encoder::ENCODER,
        c"optimizeIndirectCommandBuffer:withRange:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header, range: Range| -> () {
            // SAFETY: the argument is an indirect command buffer.
            let buffer = unsafe { body::<IndirectBody>(object) };
            if range.location + range.length > buffer.commands().len() {
                buffer.sim.report.add("indirect commands beyond the last are optimized".to_owned());
            }
            let Allocation { start, bytes, .. } = buffer.allocation;
            encoder(this).push(Item::Command(Arc::new(Command {
                label: "optimize".to_owned(),
                what: What::Optimize,
                stage: BLIT,
                accesses: vec![linear(start, bytes, true)],
                memory: vec![start],
            })));
        }),
    );
}
