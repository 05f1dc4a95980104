//! Command allocators and command buffers: what is encoded, and whether it may be.

use crate::compile::Pipeline;
use crate::encoder::{self, ENCODER};
use crate::foundation::imp;
use crate::runtime::{Class, Header, Methods, Sel, autorelease, body, make};
use crate::sim::{Sabotage, Sim};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessl::stream::Rect;

pub static ALLOCATOR: Class = Class::inner(c"MTL4CommandAllocator");
pub static BUFFER: Class = Class::inner(c"MTL4CommandBuffer");

/// `MTLStageDispatch` and `MTLStageBlit`; a compute encoder has one more, which is not used here.
pub const DISPATCH: u64 = 1 << 27;
pub const BLIT: u64 = 1 << 28;

/// Bytes that a command touches; `rect.offset` is a GPU address.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub rect: Rect,
    pub write: bool,
}

/// A command as encoded.
pub struct Command {
    pub label: String,
    pub what: What,
    pub stage: u64,
    pub accesses: Vec<Access>,
    /// The buffers it refers to, by start.
    pub memory: Vec<u64>,
}

pub enum What {
    /// An indirect command buffer is rewritten in place.
    Optimize,
    Dispatch {
        pipeline: Arc<Pipeline>,
        slots: Vec<u64>,
        grid: [u32; 3],
        threads: u32,
        /// The slot of the argument block and its bytes, where they are known.
        args: Option<(usize, Vec<u8>)>,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        bytes: usize,
        value: u8,
    },
}

impl Item {
    /// The commands in it.
    pub fn commands(&self) -> impl Iterator<Item = &Arc<Command>> {
        let (one, many) = match self {
            Item::Command(command) => (Some(command), None),
            Item::Execution(commands) => (None, Some(commands)),
            _ => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(command, _)| command))
    }
}

impl Command {
    /// Where both touch the same bytes and one of them writes.
    pub fn meets(&self, other: &Command) -> Option<String> {
        self.accesses.iter().find_map(|a| {
            let meets = |b: &&Access| (a.write || b.write) && a.rect.overlaps(&b.rect);
            other.accesses.iter().find(meets).map(|b| format!("{} bytes at {:#x}", b.rect.width, b.rect.offset))
        })
    }
}

/// A command buffer's contents.
pub enum Item {
    Encoder,
    Command(Arc<Command>),
    /// Commands of one execution of an indirect command buffer, each with whether it waits for those before it.
    Execution(Vec<(Arc<Command>, bool)>),
    Inside {
        after: u64,
        before: u64,
    },
    Queue {
        after: u64,
        before: u64,
    },
}

pub struct AllocatorBody {
    sim: Arc<Sim>,
    open: AtomicBool,
    encoded: AtomicUsize,
}

impl AllocatorBody {
    pub fn new(sim: Arc<Sim>) -> Self {
        AllocatorBody { sim, open: AtomicBool::new(false), encoded: AtomicUsize::new(0) }
    }
}

pub struct CommandBufferBody {
    pub sim: Arc<Sim>,
    pub state: Mutex<Recording>,
}

#[derive(Default)]
pub struct Recording {
    pub items: Vec<Item>,
    open: bool,
    pub ended: bool,
    pub encoding: bool,
    pub allocator: usize,
}

impl CommandBufferBody {
    pub fn new(sim: Arc<Sim>) -> Self {
        CommandBufferBody { sim, state: Mutex::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, Recording> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes an allocator's memory back.
pub fn reset(this: *mut Header) {
    // SAFETY: the receiver is an allocator.
    let allocator = unsafe { body::<AllocatorBody>(this) };
    if allocator.open.load(Ordering::Relaxed) {
        allocator.sim.report.add("an allocator was reset while a command buffer records into it".to_owned());
    }
    if allocator.sim.state().engine.uses_allocator(this as usize) {
        allocator.sim.report.add("an allocator was reset before its commands had finished".to_owned());
    }
    allocator.encoded.store(0, Ordering::Relaxed);
}

pub fn register(m: &mut Methods) {
    m.add(
        &ALLOCATOR,
        c"reset",
        imp!(|this: *mut Header, _s: Sel| -> () {
            reset(this);
        }),
    );
    m.add(
        &ALLOCATOR,
        c"allocatedSize",
        imp!(|this: *mut Header, _s: Sel| -> u64 {
            // SAFETY: the receiver is an allocator.
            unsafe { body::<AllocatorBody>(this) }.encoded.load(Ordering::Relaxed) as u64 * 256
        }),
    );

    m.add(
        &BUFFER,
        c"beginCommandBufferWithAllocator:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header| -> () {
            // SAFETY: the receiver is a command buffer, the argument an allocator.
            let (buffer, allocator) = unsafe { (body::<CommandBufferBody>(this), body::<AllocatorBody>(object)) };
            let mut state = buffer.state();
            if state.open {
                buffer.sim.report.add("a command buffer was begun twice".to_owned());
            }
            if allocator.open.swap(true, Ordering::Relaxed) {
                buffer.sim.report.add("two command buffers record into one allocator".to_owned());
            }
            *state = Recording { open: true, allocator: object as usize, ..Recording::default() };
        }),
    );
    m.add(
        &BUFFER,
        c"endCommandBuffer",
        imp!(|this: *mut Header, _s: Sel| -> () {
            // SAFETY: the receiver is a command buffer.
            let buffer = unsafe { body::<CommandBufferBody>(this) };
            if buffer.sim.is(Sabotage::NoEndCommandBuffer) {
                return;
            }
            let mut state = buffer.state();
            if !state.open {
                buffer.sim.report.add("a command buffer was ended without having begun".to_owned());
                return;
            }
            if state.encoding {
                buffer.sim.report.add("a command buffer was ended with an open encoder".to_owned());
            }
            (state.open, state.ended) = (false, true);
            // SAFETY: the allocator is alive while a command buffer records into it.
            let allocator = unsafe { body::<AllocatorBody>(state.allocator as *mut Header) };
            allocator.open.store(false, Ordering::Relaxed);
            allocator.encoded.fetch_add(state.items.len(), Ordering::Relaxed);
        }),
    );
    m.add(
        &BUFFER,
        c"computeCommandEncoder",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            // SAFETY: the receiver is a command buffer.
            let buffer = unsafe { body::<CommandBufferBody>(this) };
            let mut state = buffer.state();
            if !state.open || state.encoding {
                buffer.sim.report.add("an encoder on a command buffer that is closed or has one".to_owned());
            }
            state.encoding = true;
            state.items.push(Item::Encoder);
            autorelease(make(&ENCODER, encoder::EncoderBody::new(buffer.sim.clone(), this)))
        }),
    );
}
