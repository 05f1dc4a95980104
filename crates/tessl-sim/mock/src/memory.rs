//! The device object, buffers and residency sets.

use crate::compile::{PIPELINE, PipelineBody};
use crate::encoder::{TABLE, TableBody};
use crate::foundation::{Bag, class, imp, properties, string};
use crate::indirect::{INDIRECT, IndirectBody};
use crate::record::{ALLOCATOR, AllocatorBody, BUFFER as COMMAND_BUFFER, CommandBufferBody};
use crate::report::count;
use crate::runtime::{Class, Header, Methods, Sel, autorelease, body, class_of, make};
use crate::sim::{Memory, Sabotage, Sim, State};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeSet;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub static DEVICE: Class = Class::inner(c"MTLDevice");
pub static MEMORY: Class = Class::inner(c"MTLBuffer");
pub static RESIDENCY: Class = Class::inner(c"MTLResidencySet");
class!(RESIDENCY_DESCRIPTOR, "_OBJC_CLASS_MTLResidencySetDescriptor", c"MTLResidencySetDescriptor", || make(
    &RESIDENCY_DESCRIPTOR,
    Bag::default()
));

/// Buffers start at multiples of this on both sides.
const ALIGN: usize = 16 << 10;
/// New memory is filled with this.
const POISON: u8 = 0xA5;
/// And released memory with this.
const DEAD: u8 = 0xDD;

pub struct DeviceBody(pub Arc<Sim>);

/// What residency sets hold: something in device memory. The memory itself is in the device's state.
pub struct Allocation {
    sim: Arc<Sim>,
    pub start: u64,
    pub bytes: usize,
    what: &'static str,
}

pub struct BufferBody {
    pub allocation: Allocation,
    private: bool,
}

impl Allocation {
    /// Memory of the driver's own for an object of this kind.
    pub fn inner(sim: &Arc<Sim>, what: &'static str, bytes: usize) -> Self {
        Self::new(sim, &mut sim.state(), what, ptr::null_mut(), bytes).expect("room")
    }

    /// New pages, or the caller's.
    fn new(sim: &Arc<Sim>, state: &mut State, what: &'static str, borrowed: *mut u8, bytes: usize) -> Option<Self> {
        let mut host = borrowed;
        if host.is_null() {
            // SAFETY: the layout has a size of at least one byte.
            host = unsafe { alloc(layout(bytes)) };
            if host.is_null() {
                return None;
            }
            // SAFETY: freshly allocated with this size.
            unsafe { host.write_bytes(POISON, bytes) };
        }
        let start = NEXT.fetch_add((bytes + ALIGN).next_multiple_of(ALIGN) as u64, Ordering::Relaxed);
        state.memory.insert(start, Memory { host, bytes, borrowed: !borrowed.is_null(), alive: true, uses: 0 });
        Some(Allocation { sim: sim.clone(), start, bytes, what })
    }

    /// The allocation of a buffer, an indirect command buffer or a pipeline.
    ///
    /// # Safety
    /// `object` is one of these.
    unsafe fn of<'a>(object: *mut Header) -> &'a Self {
        // SAFETY: each class has one type of body.
        unsafe {
            match class_of(object) {
                class if ptr::eq(class, &MEMORY) => &body::<BufferBody>(object).allocation,
                class if ptr::eq(class, &INDIRECT) => &body::<IndirectBody>(object).allocation,
                class if ptr::eq(class, &PIPELINE) => &body::<PipelineBody>(object).allocation,
                class => panic!("a residency set with a {:?}", class.name),
            }
        }
    }

    /// Whether a planted mistake keeps it out of residency sets.
    fn left_out(&self) -> bool {
        let sim = &self.sim;
        match self.what {
            "a buffer" => sim.is(Sabotage::NotResident) && self.start >> 14 & 3 == 3,
            "a pipeline" => sim.is(Sabotage::PipelineNotResident),
            _ => sim.is(Sabotage::IndirectNotResident),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut state = self.sim.state();
        let Some(memory) = state.memory.get_mut(&self.start) else { return };
        memory.alive = false;
        if memory.uses > 0 {
            let (what, bytes, uses) = (self.what, self.bytes, memory.uses);
            let text = format!("{what} of {bytes} bytes was released while {uses} commands use it");
            self.sim.report.add(text);
        } else {
            forget(&mut state, self.start);
        }
    }
}

fn forget(state: &mut State, start: u64) {
    let Some(memory) = state.memory.remove(&start) else { return };
    if !memory.borrowed {
        // SAFETY: allocated by `buffer` with this layout; nothing refers to it any more.
        unsafe {
            memory.host.write_bytes(DEAD, memory.bytes);
            dealloc(memory.host, layout(memory.bytes));
        }
    }
}

/// Commands that used these buffers have been seen to end.
pub fn end_use(state: &mut State, buffers: &[u64]) {
    for start in buffers {
        let Some(memory) = state.memory.get_mut(start) else { continue };
        memory.uses = memory.uses.saturating_sub(1);
        if memory.uses == 0 && !memory.alive {
            forget(state, *start);
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), ALIGN).expect("a size below isize::MAX")
}

static NEXT: AtomicU64 = AtomicU64::new(crate::sim::GPU_BASE);

/// Makes a buffer of new or borrowed pages; nil where a fault was injected.
fn buffer(sim: &Arc<Sim>, borrowed: Option<*mut u8>, bytes: usize, options: usize) -> *mut Header {
    const PRIVATE: usize = 2 << 4;
    const UNTRACKED: usize = 1 << 8;
    if options & UNTRACKED == 0 {
        sim.report.add("a buffer with hazard tracking, which Metal 4 ignores".to_owned());
    }
    let mut state = sim.state();
    if let Some(left) = &mut state.faults.buffers_left {
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => return ptr::null_mut(),
        }
    }
    let pages = borrowed.unwrap_or(ptr::null_mut());
    let Some(allocation) = Allocation::new(sim, &mut state, "a buffer", pages, bytes) else { return ptr::null_mut() };
    make(&MEMORY, BufferBody { allocation, private: options & 0xf0 == PRIVATE })
}

/// A residency set: what was added, and what counts.
pub struct ResidencyBody {
    sim: Arc<Sim>,
    pub sets: Mutex<(BTreeSet<u64>, BTreeSet<u64>)>,
}

impl ResidencyBody {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<u64>)) {
        change(&mut self.sets.lock().unwrap_or_else(PoisonError::into_inner).0);
    }
}

fn device<'a>(this: *mut Header) -> &'a Arc<Sim> {
    // SAFETY: the receiver is a device.
    &unsafe { body::<DeviceBody>(this) }.0
}

/// Whether the next object cannot be made.
fn refused(sim: &Sim) -> bool {
    std::mem::take(&mut sim.state().faults.no_objects)
}

#[repr(C)]
struct Size {
    width: usize,
    height: usize,
    depth: usize,
}

pub fn register(m: &mut Methods) {
    m.add(
        &DEVICE,
        c"supportsFamily:",
        imp!(|this: *mut Header, _s: Sel, family: isize| -> bool {
            const METAL4: isize = 5002;
            const APPLE10: isize = 1010;
            let config = &device(this).config;
            match family {
                METAL4 => config.metal4,
                APPLE10 => config.apple10,
                _ => true,
            }
        }),
    );
    m.add(
        &DEVICE,
        c"name",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            autorelease(string(&format!("simulated Apple GPU ({:?})", device(this).config.schedule)))
        }),
    );
    m.add(&DEVICE, c"hasUnifiedMemory", imp!(|this: *mut Header, _s: Sel| -> bool { device(this).config.unified }));
    m.add(
        &DEVICE,
        c"recommendedMaxWorkingSetSize",
        imp!(|this: *mut Header, _s: Sel| -> u64 { device(this).config.memory }),
    );
    m.add(&DEVICE, c"maxBufferLength", imp!(|_this: *mut Header, _s: Sel| -> usize { 1 << 36 }));
    m.add(&DEVICE, c"maxThreadgroupMemoryLength", imp!(|_this: *mut Header, _s: Sel| -> usize { 32 << 10 }));
    m.add(
        &DEVICE,
        c"maxThreadsPerThreadgroup",
        imp!(|_this: *mut Header, _s: Sel| -> Size { Size { width: 1024, height: 1024, depth: 1024 } }),
    );
    m.add(
        &DEVICE,
        c"newBufferWithLength:options:",
        imp!(|this: *mut Header, _s: Sel, bytes: usize, options: usize| -> *mut Header {
            buffer(device(this), None, bytes, options)
        }),
    );
    m.add(
        &DEVICE,
        c"newBufferWithBytesNoCopy:length:options:deallocator:",
        imp!(|this: *mut Header,
              _s: Sel,
              pages: *mut u8,
              bytes: usize,
              options: usize,
              _d: *mut Header|
         -> *mut Header {
            if !(pages as usize).is_multiple_of(ALIGN) || !bytes.is_multiple_of(ALIGN) {
                device(this)
                    .report
                    .add(format!("newBufferWithBytesNoCopy of {bytes} bytes at {pages:p}: not whole pages"));
            }
            buffer(device(this), Some(pages), bytes, options)
        }),
    );
    m.add(
        &DEVICE,
        c"newResidencySetWithDescriptor:error:",
        imp!(|this: *mut Header, _s: Sel, _d: *mut Header, _e: *mut *mut Header| -> *mut Header {
            make(&RESIDENCY, ResidencyBody { sim: device(this).clone(), sets: Mutex::default() })
        }),
    );
    m.add(
        &DEVICE,
        c"newCommandAllocator",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            let sim = device(this);
            count(&sim.counters.allocators);
            if refused(sim) { ptr::null_mut() } else { make(&ALLOCATOR, AllocatorBody::new(sim.clone())) }
        }),
    );
    m.add(
        &DEVICE,
        c"newCommandBuffer",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            let sim = device(this);
            if refused(sim) { ptr::null_mut() } else { make(&COMMAND_BUFFER, CommandBufferBody::new(sim.clone())) }
        }),
    );
    m.add(
        &DEVICE,
        c"newArgumentTableWithDescriptor:error:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header, _e: *mut *mut Header| -> *mut Header {
            // SAFETY: the argument is a descriptor.
            let slots = unsafe { body::<Bag>(d) }.get(c"setMaxBufferBindCount:").unwrap_or(0);
            if slots > 31 {
                device(this).report.add(format!("an argument table of {slots} buffers; 31 is the limit"));
            }
            make(&TABLE, TableBody::new(device(this).clone(), slots))
        }),
    );
    m.add(
        &DEVICE,
        c"newSharedEvent",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            if refused(device(this)) { ptr::null_mut() } else { crate::queue::event(device(this)) }
        }),
    );
    m.add(
        &DEVICE,
        c"newMTL4CommandQueue",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            if refused(device(this)) { ptr::null_mut() } else { crate::queue::queue(device(this)) }
        }),
    );
    crate::compile::device_methods(m);

    m.add(
        &MEMORY,
        c"gpuAddress",
        imp!(|this: *mut Header, _s: Sel| -> u64 {
            // SAFETY: the receiver is a buffer.
            unsafe { body::<BufferBody>(this) }.allocation.start
        }),
    );
    m.add(
        &MEMORY,
        c"length",
        imp!(|this: *mut Header, _s: Sel| -> usize {
            // SAFETY: the receiver is a buffer.
            unsafe { body::<BufferBody>(this) }.allocation.bytes
        }),
    );
    m.add(
        &MEMORY,
        c"contents",
        imp!(|this: *mut Header, _s: Sel| -> *mut u8 {
            // SAFETY: the receiver is a buffer.
            let BufferBody { allocation, private } = unsafe { body::<BufferBody>(this) };
            if *private {
                allocation.sim.report.add("contents of a buffer in private storage".to_owned());
            }
            allocation.sim.state().memory[&allocation.start].host
        }),
    );

    m.add(
        &RESIDENCY,
        c"addAllocation:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header| -> () {
            // SAFETY: the receiver is a residency set, the argument an allocation.
            let (set, allocation) = unsafe { (body::<ResidencyBody>(this), Allocation::of(object)) };
            if !allocation.left_out() {
                set.change(|s| {
                    s.insert(allocation.start);
                });
            }
        }),
    );
    m.add(
        &RESIDENCY,
        c"removeAllocation:",
        imp!(|this: *mut Header, _s: Sel, object: *mut Header| -> () {
            // SAFETY: the receiver is a residency set, the argument an allocation.
            let (set, allocation) = unsafe { (body::<ResidencyBody>(this), Allocation::of(object)) };
            set.change(|s| {
                if !s.remove(&allocation.start) && !allocation.left_out() {
                    set.sim.report.add("removeAllocation of something that is not in the set".to_owned());
                }
            });
        }),
    );
    m.add(
        &RESIDENCY,
        c"commit",
        imp!(|this: *mut Header, _s: Sel| -> () {
            // SAFETY: the receiver is a residency set.
            let set = unsafe { body::<ResidencyBody>(this) };
            count(&set.sim.counters.residency_commits);
            if set.sim.is(Sabotage::ResidencyNotCommitted) {
                return;
            }
            let mut sets = set.sets.lock().unwrap_or_else(PoisonError::into_inner);
            sets.1 = sets.0.clone();
        }),
    );
    m.add(&RESIDENCY, c"requestResidency", imp!(|_this: *mut Header, _s: Sel| -> () {}));
    properties(m, &RESIDENCY_DESCRIPTOR, &[c"setLabel:"], &[c"setInitialCapacity:"]);
}
