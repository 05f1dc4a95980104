//! The simulated GPU: memory, events, queues, and everything that was committed and has not been seen to end.

use crate::engine::Engine;
use crate::report::{Counters, Report};
use crate::runtime::{Header, Held};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessl_sim::Schedule;

/// GPU addresses are host addresses plus this, so that neither passes for the other.
pub const GPU_BASE: u64 = 1 << 60;

/// How the device is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The order of commands that nothing orders, and of the threads of a kernel.
    pub schedule: Schedule,
    /// Host and GPU share memory.
    pub unified: bool,
    /// `MTLGPUFamilyMetal4`.
    pub metal4: bool,
    /// `MTLGPUFamilyApple10`, the one with matrix units.
    pub apple10: bool,
    /// `recommendedMaxWorkingSetSize`, in bytes.
    pub memory: u64,
    /// A mistake put in between.
    pub sabotage: Option<Sabotage>,
    /// What indirect command buffers do.
    pub indirect: Support,
    /// What kernels with cooperative tensors do.
    pub tensor_ops: Support,
    /// How long a pipeline takes to compile.
    pub compile_time: Duration,
    /// Commands are checked and run. Without this the driver takes them and counts, for measuring the host code alone.
    pub records: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            schedule: Schedule::Forward,
            unified: true,
            metal4: true,
            apple10: false,
            memory: 1 << 33,
            sabotage: None,
            indirect: Support::Works,
            tensor_ops: Support::Works,
            compile_time: Duration::ZERO,
            records: true,
        }
    }
}

/// What a device makes of something that not all have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    Works,
    /// It cannot be made.
    Refused,
    /// It does nothing.
    Ignored,
}

/// How a commit fails.
#[derive(Clone, Copy, Debug)]
pub struct CommitFault {
    /// Commits that still go well before.
    pub after: u64,
    /// The code of its error (1 timeout, 4 device removed, ..); 0 for none.
    pub code: isize,
    /// The event that follows it is signalled.
    pub signals: bool,
    /// Its feedback arrives.
    pub answers: bool,
    /// Its commands run.
    pub runs: bool,
}

/// Mistakes that the host code does not make, put in between it and the driver: the driver takes the message as if the
/// host had forgotten or changed it. Each must come to light.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    NoEncoderBarrier,
    NoQueueBarrier,
    /// Barriers order dispatches only.
    BarrierOfWrongStages,
    /// Barriers without visibility.
    BarrierWithoutVisibility,
    /// One buffer in four is not added to the residency set.
    NotResident,
    ResidencyNotCommitted,
    /// Addresses are bound one slot too high.
    WrongSlot,
    /// Addresses are bound 256 bytes too high.
    WrongAddress,
    /// Every fifth address is not bound: the slot keeps what it had.
    StaleSlot,
    /// The pipeline of the first dispatch stays.
    StalePipeline,
    /// One threadgroup too few.
    SmallerGrid,
    NoEndEncoding,
    NoEndCommandBuffer,
    /// Allocators are reset right after the commit.
    EarlyReset,
    /// Other queues are not waited for.
    NoEventWait,
    /// Argument blocks are overwritten after the commit.
    ArgumentsOverwritten,
    /// The math mode is not set.
    FastMath,
    /// Copies are four bytes too long.
    LongerCopy,
    /// Copies start four bytes late.
    ShiftedCopy,
    /// Fills use another byte.
    WrongFill,
    /// A command buffer is committed twice.
    SecondCommit,
    /// Function constants are not set.
    NoConstants,
    /// Indirect commands do not wait.
    NoIndirectBarrier,
    /// One frozen binding in five is not set.
    FrozenSlotMissing,
    /// Frozen bindings start 256 bytes late.
    FrozenOffset,
    /// Executions are one command too short.
    ShortExecution,
    /// Indirect command buffers are not resident.
    IndirectNotResident,
    /// Pipelines of indirect commands are not resident.
    PipelineNotResident,
    /// Pipelines are not made for indirect command buffers.
    NoIndirectSupport,
    /// The argument table stays bound.
    TableLeftBound,
    /// One threadgroup too few in indirect commands.
    IndirectGrid,
    /// Pipelines do not say how many threads they need.
    NoRequiredThreads,
}

impl Sabotage {
    pub const ALL: [Sabotage; 22] = [
        Sabotage::NoEncoderBarrier,
        Sabotage::NoQueueBarrier,
        Sabotage::BarrierOfWrongStages,
        Sabotage::BarrierWithoutVisibility,
        Sabotage::NotResident,
        Sabotage::ResidencyNotCommitted,
        Sabotage::WrongSlot,
        Sabotage::WrongAddress,
        Sabotage::StaleSlot,
        Sabotage::StalePipeline,
        Sabotage::SmallerGrid,
        Sabotage::NoEndEncoding,
        Sabotage::NoEndCommandBuffer,
        Sabotage::EarlyReset,
        Sabotage::NoEventWait,
        Sabotage::ArgumentsOverwritten,
        Sabotage::FastMath,
        Sabotage::LongerCopy,
        Sabotage::ShiftedCopy,
        Sabotage::WrongFill,
        Sabotage::SecondCommit,
        Sabotage::NoConstants,
    ];

    /// Those that only a chip with matrix units notices.
    pub const TENSOR_OPS: [Sabotage; 1] = [Sabotage::NoRequiredThreads];

    /// Those that only graphs in indirect command buffers notice.
    pub const INDIRECT: [Sabotage; 9] = [
        Sabotage::NoIndirectBarrier,
        Sabotage::FrozenSlotMissing,
        Sabotage::FrozenOffset,
        Sabotage::ShortExecution,
        Sabotage::IndirectNotResident,
        Sabotage::PipelineNotResident,
        Sabotage::NoIndirectSupport,
        Sabotage::TableLeftBound,
        Sabotage::IndirectGrid,
    ];
}

/// What goes wrong next.
#[derive(Default)]
pub struct Faults {
    /// How many buffers can still be made; `None` for any number.
    pub buffers_left: Option<u64>,
    /// Makes the next command queue, event, allocator or command buffer fail.
    pub no_objects: bool,
    /// What the compiler says of the next library.
    pub compile: Option<String>,
    /// What it says of the next pipeline.
    pub pipeline: Option<String>,
    /// Kernels whose names start like this cannot be in indirect command buffers.
    pub no_indirect: Option<String>,
    /// What it says when the next archive is to be written.
    pub archive: Option<String>,
    /// Archives are refused as those of another device.
    pub foreign_archives: bool,
    pub commit: Option<CommitFault>,
}

/// A buffer, as long as anything may refer to it.
pub struct Memory {
    pub host: *mut u8,
    pub bytes: usize,
    /// The pages are the caller's.
    pub borrowed: bool,
    /// The buffer object is alive.
    pub alive: bool,
    /// Commands that refer to it and have not been seen to end.
    pub uses: u64,
}

/// Everything behind one lock.
pub struct State {
    /// By GPU address.
    pub memory: BTreeMap<u64, Memory>,
    pub engine: Engine,
    pub faults: Faults,
}

// SAFETY: memory is reached under the lock, or by host code that has waited for the device.
unsafe impl Send for State {}

/// One device.
pub struct Sim {
    pub config: Config,
    /// The planted mistake is made.
    pub armed: AtomicBool,
    pub recording: AtomicBool,
    pub report: Report,
    pub counters: Counters,
    state: Mutex<State>,
    answers: Mutex<Sender<Answer>>,
}

/// Feedback to deliver.
pub struct Answer {
    pub sim: Arc<Sim>,
    pub commit: u64,
    pub handlers: Vec<Held>,
    pub feedback: Feedback,
}

/// What `MTL4CommitFeedback` tells.
pub struct Feedback {
    /// An error object, or nil.
    pub error: *mut Header,
    pub start: f64,
    pub end: f64,
}

// SAFETY: the error object is handed on as a whole.
unsafe impl Send for Feedback {}

impl Drop for Feedback {
    fn drop(&mut self) {
        crate::runtime::release(self.error);
    }
}

impl Sim {
    pub fn new(config: Config) -> Arc<Self> {
        let (sender, receiver) = channel();
        std::thread::spawn(move || deliver(&receiver));
        Arc::new(Sim {
            config,
            armed: AtomicBool::new(true),
            recording: AtomicBool::new(config.records),
            report: Report::default(),
            counters: Counters::default(),
            state: Mutex::new(State {
                memory: BTreeMap::new(),
                engine: Engine::new(config.schedule),
                faults: Faults::default(),
            }),
            answers: Mutex::new(sender),
        })
    }

    /// Whether this mistake is put in.
    pub fn is(&self, sabotage: Sabotage) -> bool {
        self.config.sabotage == Some(sabotage) && self.armed.load(Ordering::Relaxed)
    }

    /// Whether commands are checked and run.
    pub fn records(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn answer(&self, answer: Answer) {
        // The thread ends with the last sender, which this is.
        let _ = self.answers.lock().unwrap_or_else(PoisonError::into_inner).send(answer);
    }
}

/// Metal's feedback queue: serial, on a thread of its own.
fn deliver(answers: &Receiver<Answer>) {
    for Answer { sim, commit, handlers, feedback } in answers {
        // Once the host has heard of the end, it may count on it.
        crate::engine::seen(&mut sim.state(), commit);
        let object = crate::queue::feedback_object(feedback);
        for handler in &handlers {
            // SAFETY: commit handlers take one feedback object.
            unsafe { handler.call(object) };
        }
        crate::runtime::release(object);
        drop(handlers);
    }
}

impl State {
    /// The buffer that holds this GPU address: its start.
    pub fn find(&self, address: u64) -> Option<u64> {
        let (&start, memory) = self.memory.range(..=address).next_back()?;
        (address - start < memory.bytes.max(1) as u64).then_some(start)
    }
}
