//! Compute encoders and argument tables.

use crate::compile::{Pipeline, PipelineBody, TENSOR_KERNELS};
use crate::foundation::{Bag, class, imp, properties};
use crate::memory::BufferBody;
use crate::observe;
use crate::record::{Access, BLIT, Command, CommandBufferBody, DISPATCH, Item, What};
use crate::report::count;
use crate::runtime::{Class, Header, Methods, Sel, body, make};
use crate::sim::{Sabotage, Sim, State};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tessl::stream::Rect;

pub static ENCODER: Class = Class::inner(c"MTL4ComputeCommandEncoder");
pub static TABLE: Class = Class::inner(c"MTL4ArgumentTable");
class!(TABLE_DESCRIPTOR, "_OBJC_CLASS_MTL4ArgumentTableDescriptor", c"MTL4ArgumentTableDescriptor", || make(
    &TABLE_DESCRIPTOR,
    Bag::default()
));

/// Acceleration structures: the third stage of a compute encoder, not used here.
const ACCELERATION: u64 = 1 << 29;
/// `MTL4VisibilityOptionDevice`.
const VISIBLE: usize = 1;
/// Blits on macOS want offsets and sizes in multiples of this.
const BLIT_ALIGN: usize = 4;

pub struct TableBody {
    sim: Arc<Sim>,
    pub slots: Mutex<Vec<u64>>,
    set: AtomicUsize,
}

impl TableBody {
    pub fn new(sim: Arc<Sim>, slots: usize) -> Self {
        TableBody { sim, slots: Mutex::new(vec![0; slots]), set: AtomicUsize::new(0) }
    }
}

pub struct EncoderBody {
    pub sim: Arc<Sim>,
    buffer: *mut Header,
    open: AtomicBool,
    pub pipeline: Mutex<Option<Arc<Pipeline>>>,
    table: Mutex<*mut Header>,
}

impl EncoderBody {
    pub fn new(sim: Arc<Sim>, buffer: *mut Header) -> Self {
        let (open, pipeline, table) = (AtomicBool::new(true), Mutex::default(), Mutex::new(ptr::null_mut()));
        EncoderBody { sim, buffer, open, pipeline, table }
    }

    /// What the argument table holds; `None` without one.
    pub fn bound(&self) -> Option<Vec<u64>> {
        let table = *self.table.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the table is alive while an encoder uses it.
        let slots = |table| unsafe { body::<TableBody>(table) }.slots.lock().unwrap_or_else(PoisonError::into_inner);
        (!table.is_null()).then(|| slots(table).clone())
    }

    pub fn push(&self, item: Item) {
        if !self.sim.records() {
            return;
        }
        if !self.open.load(Ordering::Relaxed) {
            self.sim.report.add("a command on an encoder that has ended".to_owned());
            return;
        }
        // SAFETY: a command buffer outlives its open encoder, which is checked when it ends.
        unsafe { body::<CommandBufferBody>(self.buffer) }.state().items.push(item);
    }

    fn barrier(&self, mut after: u64, mut before: u64, mut visible: usize, inside: bool) {
        let sim = &self.sim;
        if sim.is(if inside { Sabotage::NoEncoderBarrier } else { Sabotage::NoQueueBarrier }) {
            return;
        }
        if sim.is(Sabotage::BarrierOfWrongStages) {
            (after, before) = (DISPATCH, DISPATCH);
        }
        if sim.is(Sabotage::BarrierWithoutVisibility) {
            visible = 0;
        }
        let allowed = DISPATCH | BLIT | ACCELERATION;
        if inside && (after | before) & !allowed != 0 {
            self.sim.report.add(format!("an encoder barrier with stages {after:#x} and {before:#x}"));
        }
        if visible & VISIBLE == 0 {
            self.sim.report.add("a barrier that makes nothing visible".to_owned());
        }
        count(if inside { &self.sim.counters.encoder_barriers } else { &self.sim.counters.queue_barriers });
        self.push(if inside { Item::Inside { after, before } } else { Item::Queue { after, before } });
    }

    /// The GPU address of a range, after checking that it is inside its buffer.
    fn range(&self, buffer: *mut Header, offset: usize, bytes: usize, what: &str) -> u64 {
        // SAFETY: the argument is a buffer.
        let buffer = unsafe { body::<BufferBody>(buffer) };
        let end = offset.checked_add(bytes);
        let BufferBody { allocation, .. } = buffer;
        if end.is_none_or(|end| end > allocation.bytes) || bytes == 0 {
            self.sim.report.add(format!("{what} of {bytes} bytes at {offset} in a buffer of {}", allocation.bytes));
        }
        if !offset.is_multiple_of(BLIT_ALIGN) || !bytes.is_multiple_of(BLIT_ALIGN) {
            self.sim.report.add(format!("{what} of {bytes} bytes at {offset}: not multiples of {BLIT_ALIGN}"));
        }
        allocation.start + offset as u64
    }
}

pub fn encoder<'a>(this: *mut Header) -> &'a EncoderBody {
    // SAFETY: the receiver is an encoder.
    unsafe { body::<EncoderBody>(this) }
}

pub fn linear(start: u64, bytes: usize, write: bool) -> Access {
    Access { rect: Rect::linear(start, bytes as u64), write }
}

/// What a dispatch binds, from the argument table.
fn dispatch(encoder: &EncoderBody, grid: [usize; 3], threads: usize) {
    let sim = &encoder.sim;
    count(&sim.counters.dispatches);
    if !sim.records() {
        return;
    }
    let pipeline = encoder.pipeline.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (Some(pipeline), Some(slots)) = (pipeline, encoder.bound()) else {
        sim.report.add("a dispatch without pipeline or argument table".to_owned());
        return;
    };
    if let Some(command) = command(sim, pipeline, slots, grid, threads) {
        encoder.push(Item::Command(Arc::new(command)));
    }
}

/// A dispatch with what it binds, if nothing is wrong with it.
pub fn command(
    sim: &Sim,
    pipeline: Arc<Pipeline>,
    slots: Vec<u64>,
    grid: [usize; 3],
    threads: usize,
) -> Option<Command> {
    if threads > pipeline.max_threads || threads == 0 || grid.contains(&0) {
        let text =
            format!("`{}`: {grid:?} groups of {threads} threads, {} allowed", pipeline.name, pipeline.max_threads);
        sim.report.add(text);
        return None;
    }
    let cooperative = pipeline.name.starts_with(TENSOR_KERNELS);
    if pipeline.required != cooperative.then_some(threads) {
        let text = format!("`{}`: {threads} threads, required {:?}", pipeline.name, pipeline.required);
        sim.report.add(text);
    }
    let slots: Vec<u64> = slots.into_iter().take(pipeline.nargs).collect();
    let state = sim.state();
    let mut memory = Vec::new();
    for (index, address) in slots.iter().enumerate() {
        match state.find(*address).filter(|start| state.memory[start].alive) {
            Some(start) => memory.push(start),
            None => sim.report.add(format!("slot {index} of `{}`: {address:#x} is in no live buffer", pipeline.name)),
        }
    }
    if memory.len() < slots.len() {
        return None;
    }
    memory.sort_unstable();
    memory.dedup();
    let known = observe::claim(&pipeline.name, &slots, |address, bytes| read(&state, address, bytes));
    let (label, accesses, args) = match known {
        Some(Ok(claim)) => (claim.label, claim.accesses, claim.args),
        Some(Err(text)) => {
            sim.report.add(text);
            return None;
        }
        None => {
            // Nothing is known about ranges: the whole of each buffer, by what the kernel declares.
            let whole = |(i, address): (usize, &u64)| {
                let start = state.find(*address)?;
                Some(linear(start, state.memory[&start].bytes, pipeline.writes >> i & 1 == 1))
            };
            (pipeline.name.clone(), slots.iter().enumerate().filter_map(whole).collect(), None)
        }
    };
    drop(state);
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (grid, threads) = (grid.map(narrow), narrow(threads));
    let what = What::Dispatch { pipeline, slots, grid, threads, args };
    Some(Command { label, what, stage: DISPATCH, accesses, memory })
}

/// Bytes of device memory.
fn read(state: &State, address: u64, bytes: usize) -> Option<Vec<u8>> {
    let start = state.find(address)?;
    let memory = &state.memory[&start];
    let offset = usize::try_from(address - start).ok()?;
    (offset + bytes <= memory.bytes).then(|| {
        // SAFETY: inside the buffer; the host code wrote it before this call.
        unsafe { std::slice::from_raw_parts(memory.host.add(offset), bytes) }.to_vec()
    })
}

#[repr(C)]
pub struct Size {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
pub struct Range {
    pub location: usize,
    pub length: usize,
}

pub fn register(m: &mut Methods) {
    m.add(
        &ENCODER,
        c"endEncoding",
        imp!(|this: *mut Header, _s: Sel| -> () {
            let encoder = encoder(this);
            if encoder.sim.is(Sabotage::NoEndEncoding) {
                return;
            }
            if !encoder.open.swap(false, Ordering::Relaxed) {
                encoder.sim.report.add("endEncoding twice".to_owned());
            }
            // SAFETY: a command buffer outlives its open encoder.
            unsafe { body::<CommandBufferBody>(encoder.buffer) }.state().encoding = false;
        }),
    );
    m.add(
        &ENCODER,
        c"setArgumentTable:",
        imp!(|this: *mut Header, _s: Sel, table: *mut Header| -> () {
            let encoder = encoder(this);
            if !(table.is_null() && encoder.sim.is(Sabotage::TableLeftBound)) {
                *encoder.table.lock().unwrap_or_else(PoisonError::into_inner) = table;
            }
        }),
    );
    m.add(
        &ENCODER,
        c"setComputePipelineState:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header| -> () {
            // SAFETY: the argument is a pipeline.
            let pipeline = unsafe { body::<PipelineBody>(object) }.pipeline.clone();
            let encoder = encoder(this);
            let mut current = encoder.pipeline.lock().unwrap_or_else(PoisonError::into_inner);
            if current.is_none() || !encoder.sim.is(Sabotage::StalePipeline) {
                *current = Some(pipeline);
            }
        }),
    );
    m.add(
        &ENCODER,
        c"setThreadgroupMemoryLength:atIndex:",
        imp!(|this: *mut Header, _s: Sel, bytes: usize, _index: usize| -> () {
            if !bytes.is_multiple_of(16) || bytes > 32 << 10 {
                encoder(this).sim.report.add(format!("threadgroup memory of {bytes} bytes"));
            }
        }),
    );
    m.add(
        &ENCODER,
        c"dispatchThreadgroups:threadsPerThreadgroup:",
        imp!(|this: *mut Header, _s: Sel, grid: Size, group: Size| -> () {
            let threads = group.width * group.height * group.depth;
            let encoder = encoder(this);
            let fewer = usize::from(encoder.sim.is(Sabotage::SmallerGrid) && grid.width > 1);
            dispatch(encoder, [grid.width - fewer, grid.height, grid.depth], threads);
        }),
    );
    m.add(
        &ENCODER,
        c"barrierAfterEncoderStages:beforeEncoderStages:visibilityOptions:",
        imp!(|this: *mut Header, _s: Sel, after: u64, before: u64, visible: usize| -> () {
            encoder(this).barrier(after, before, visible, true);
        }),
    );
    m.add(
        &ENCODER,
        c"barrierAfterQueueStages:beforeStages:visibilityOptions:",
        imp!(|this: *mut Header, _s: Sel, after: u64, before: u64, visible: usize| -> () {
            encoder(this).barrier(after, before, visible, false);
        }),
    );
    m.add(
        &ENCODER,
        c"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
        imp!(|this: *mut Header,
              _s: Sel,
              source: *mut Header,
              at: usize,
              target: *mut Header,
              to: usize,
              bytes: usize|
         -> () {
            let encoder = encoder(this);
            count(&encoder.sim.counters.blits);
            let at = at + if encoder.sim.is(Sabotage::ShiftedCopy) { 4 } else { 0 };
            let bytes = bytes + if encoder.sim.is(Sabotage::LongerCopy) { 4 } else { 0 };
            let (from, to) = (encoder.range(source, at, bytes, "a copy"), encoder.range(target, to, bytes, "a copy"));
            if !observe::covered(&[from, to], bytes as u64) {
                encoder.sim.report.add(format!("a copy of {bytes} bytes that no command of its batch asks for"));
            }
            // SAFETY: the arguments are buffers.
            let memory = unsafe {
                vec![body::<BufferBody>(source).allocation.start, body::<BufferBody>(target).allocation.start]
            };
            let accesses = vec![linear(from, bytes, false), linear(to, bytes, true)];
            let what = What::Copy { from, to, bytes };
            encoder.push(Item::Command(Arc::new(Command {
                label: "copy".to_owned(),
                what,
                stage: BLIT,
                accesses,
                memory,
            })));
        }),
    );
    m.add(
        &ENCODER,
        c"fillBuffer:range:value:",
        imp!(|this: *mut Header, _s: Sel, target: *mut Header, range: Range, value: u8| -> () {
            let encoder = encoder(this);
            count(&encoder.sim.counters.blits);
            let to = encoder.range(target, range.location, range.length, "a fill");
            if !observe::covered(&[to], range.length as u64) {
                encoder
                    .sim
                    .report
                    .add(format!("a fill of {} bytes that no command of its batch asks for", range.length));
            }
            // SAFETY: the argument is a buffer.
            let memory = unsafe { vec![body::<BufferBody>(target).allocation.start] };
            let value = value ^ u8::from(encoder.sim.is(Sabotage::WrongFill));
            let what = What::Fill { to, bytes: range.length, value };
            let accesses = vec![linear(to, range.length, true)];
            encoder.push(Item::Command(Arc::new(Command {
                label: "fill".to_owned(),
                what,
                stage: BLIT,
                accesses,
                memory,
            })));
        }),
    );

    m.add(
        &TABLE,
        c"setAddress:atIndex:",
        imp!(|this: *mut Header, _s: Sel, address: u64, index: usize| -> () {
            // SAFETY: the receiver is an argument table.
            let table = unsafe { body::<TableBody>(this) };
            let sim = &table.sim;
            let (mut address, mut index) = (address, index);
            if sim.is(Sabotage::WrongSlot) {
                index += 1;
            }
            if sim.is(Sabotage::WrongAddress) {
                address += 256;
            }
            if sim.is(Sabotage::StaleSlot) && table.set.fetch_add(1, Ordering::Relaxed) % 5 == 4 {
                return;
            }
            let mut slots = table.slots.lock().unwrap_or_else(PoisonError::into_inner);
            match slots.get_mut(index) {
                Some(slot) => *slot = address,
                None => table.sim.report.add(format!("slot {index} of an argument table with {}", slots.len())),
            }
        }),
    );
    properties(m, &TABLE_DESCRIPTOR, &[c"setLabel:"], &[c"setMaxBufferBindCount:", c"setInitializeBindings:"]);
}
