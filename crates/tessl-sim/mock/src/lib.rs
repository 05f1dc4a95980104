//! A Metal 4 driver for tests: the unmodified Metal device of tessl runs on it, on Linux.
//!
//! objc2 is built in its gnustep mode, whose runtime functions this crate defines ([`runtime`]); objects are Rust values.
//! Commands run through `tessl-sim`, in any order that barriers and events allow, and not before the host waits. What
//! Metal would leave undefined is reported: a missing barrier, memory outside the residency set, a buffer released
//! while commands use it, an allocator reset too early, calls in a wrong order. A message that the driver does not know
//! ends the process.
//!
//! What it knows of Metal is what its authors have read about it. It finds our mistakes against that, not mistakes in it.

#![allow(missing_docs, reason = "only Mock and what it returns is for others")]

mod archive;
mod compile;
mod encoder;
mod engine;
mod foundation;
mod indirect;
mod memory;
mod observe;
mod queue;
mod record;
mod report;
mod runtime;
mod sim;

pub use foundation::set_macos;
pub use report::{Counts, loose};
pub use sim::{CommitFault, Config, Faults, Sabotage, Support};

use memory::{DEVICE, DeviceBody};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;
use observe::{Observed, Totals};
use sim::Sim;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tessl::device::Backend;
use tessl::device::metal::{Options, with_device};
use tessl::{GpuRuntime, RuntimeOptions};

/// A simulated Apple GPU.
pub struct Mock {
    sim: Arc<Sim>,
}

/// A runtime on a [`Mock`], and what the core asked of it.
pub struct Run {
    pub rt: GpuRuntime,
    totals: Arc<Totals>,
}

impl Run {
    /// Barriers that the hazards of everything submitted need, and graphs replayed.
    pub fn needed(&self) -> (u64, u64) {
        (self.totals.needed.load(Ordering::Relaxed), self.totals.replays.load(Ordering::Relaxed))
    }
}

impl Mock {
    /// A device.
    pub fn new(config: Config) -> Self {
        Mock { sim: Sim::new(config) }
    }

    /// The device as an Objective-C object.
    pub fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>> {
        let object = runtime::make(&DEVICE, DeviceBody(self.sim.clone()));
        // SAFETY: a new object with one reference, which answers the messages of an MTLDevice.
        unsafe { Retained::from_raw(object.cast()) }.expect("an object")
    }

    /// tessl's Metal device on it.
    ///
    /// # Errors
    /// As [`with_device`].
    pub fn backend(&self, options: Options) -> tessl::Result<Arc<dyn Backend>> {
        with_device(self.device(), options)
    }

    /// A runtime on it; every batch is compared with what arrives at the driver.
    ///
    /// # Errors
    /// As [`with_device`].
    pub fn open(&self, options: &RuntimeOptions) -> tessl::Result<Run> {
        self.open_with(options, Options::default())
    }

    /// The same with options for the Metal device.
    ///
    /// # Errors
    /// As [`with_device`].
    pub fn open_with(&self, options: &RuntimeOptions, metal: Options) -> tessl::Result<Run> {
        let observed = Observed::new(self.backend(metal)?);
        let totals = observed.totals.clone();
        Ok(Run { rt: GpuRuntime::with_backend(Arc::new(observed), options)?, totals })
    }

    /// Misuse found since the last call.
    pub fn findings(&self) -> Vec<String> {
        self.sim.report.take()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.sim.counters.read()
    }

    /// Makes things go wrong.
    pub fn inject(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.sim.state().faults);
    }

    /// Puts the planted mistake in from now on, or not.
    pub fn arm(&self, on: bool) {
        self.sim.armed.store(on, Ordering::Relaxed);
    }

    /// Commands are checked and run from now on, or only counted. Nothing may be in flight.
    pub fn record(&self, on: bool) {
        self.sim.recording.store(on, Ordering::Relaxed);
    }

    /// Makes this the device that `metal:0` names.
    pub fn make_default(&self) {
        *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.sim.clone());
    }
}

static DEFAULT: Mutex<Option<Arc<Sim>>> = Mutex::new(None);

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> *mut runtime::Header {
    let sim = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    sim.map_or(std::ptr::null_mut(), |sim| runtime::make(&DEVICE, DeviceBody(sim)))
}

fn register(methods: &mut runtime::Methods) {
    foundation::register(methods);
    memory::register(methods);
    compile::register(methods);
    archive::register(methods);
    record::register(methods);
    encoder::register(methods);
    indirect::register(methods);
    queue::register(methods);
}

fn class_methods() -> Vec<(&'static runtime::Class, &'static CStr, runtime::Imp)> {
    foundation::class_methods()
}
