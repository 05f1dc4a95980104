//! Indirect command buffers: dispatches that are recorded once and run by ranges.
//!
//! How their bindings behave under Metal 4 is thinly documented, so they are used only where a small chain of them has
//! been seen to work on this system ([`try_out`]).

use super::backend::Gpu;
use super::encode::Geometry;
use super::graph::{self, Baked};
use super::objects::{Obj, Own};
use super::queue::MetalQueue;
use super::registry::Registry;
use super::residency::made;
use crate::args::TransferArgs;
use crate::device::metal::steps::Reach;
use crate::device::metal::transfer;
use crate::device::{PipelineId, Queue};
use crate::error::Result;
use crate::stream::Batch;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBuffer, MTLDevice, MTLIndirectCommandBuffer, MTLIndirectCommandBufferDescriptor, MTLIndirectCommandType,
    MTLIndirectComputeCommand, MTLResource, MTLResourceOptions,
};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A buffer, and where in it a kernel's pointer starts.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) buffer: &'a ProtocolObject<dyn MTLBuffer>,
    pub(super) offset: usize,
}

/// A dispatch with all that it needs.
pub(super) struct Launch<'a> {
    pub(super) pipeline: PipelineId,
    pub(super) geometry: Geometry,
    /// All earlier commands must have finished.
    pub(super) barrier: bool,
    pub(super) operands: SmallVec<[Operand<'a>; 8]>,
}

/// What replays need to know of a recorded command.
pub(super) struct Slot {
    pub(super) pipeline: PipelineId,
    /// What the encoder has to bind; empty where bindings are frozen.
    pub(super) addresses: SmallVec<[u64; 8]>,
}

/// Recorded commands.
pub(super) struct Indirect {
    gpu: Arc<Gpu>,
    buffer: Option<Own<Obj<dyn MTLIndirectCommandBuffer>>>,
    pub(super) slots: Vec<Slot>,
    /// Commands have their bindings in them.
    pub(super) frozen: bool,
    /// Metal has been told to optimize it.
    pub(super) optimized: AtomicBool,
}

impl Indirect {
    /// Records dispatches, which must be fit for it.
    pub(super) fn new(gpu: &Arc<Gpu>, registry: &Registry, launches: &[Launch<'_>], reach: Reach) -> Result<Self> {
        let frozen = reach != Reach::One;
        let most = launches.iter().map(|l| l.operands.len()).max().unwrap_or(0);
        let descriptor = MTLIndirectCommandBufferDescriptor::new();
        descriptor.setCommandTypes(MTLIndirectCommandType::ConcurrentDispatch);
        descriptor.setInheritPipelineState(false);
        descriptor.setInheritBuffers(!frozen);
        descriptor.setMaxKernelBufferBindCount(if frozen { most } else { 0 });
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        // SAFETY: no count is beyond what the descriptor says.
        let buffer = unsafe {
            let device = &gpu.device;
            device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options(&descriptor, launches.len(), options)
        };
        let buffer = made("newIndirectCommandBuffer", buffer)?;
        let pipelines = registry.pipelines();
        for (index, launch) in launches.iter().enumerate() {
            let pipeline = &pipelines[launch.pipeline.0 as usize];
            pipeline.make_resident(gpu);
            // SAFETY: the index is below the number of commands.
            let command = unsafe { buffer.indirectComputeCommandAtIndex(index) };
            command.setComputePipelineState(&pipeline.state);
            for (slot, operand) in launch.operands.iter().enumerate().filter(|_| frozen) {
                // SAFETY: the slot is below the count of the descriptor; the graph keeps the buffer alive.
                unsafe { command.setKernelBuffer_offset_atIndex(operand.buffer, operand.offset, slot) };
            }
            if let Some(bytes) = launch.geometry.shared() {
                // SAFETY: as in `Encoder::dispatch`.
                unsafe { command.setThreadgroupMemoryLength_atIndex(bytes, 0) };
            }
            if launch.barrier && reach == Reach::All {
                command.setBarrier();
            }
            let [groups, group] = launch.geometry.sizes();
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup(groups, group);
        }
        gpu.residency.add(ProtocolObject::from_ref(&*buffer));
        let slots = launches.iter().map(|launch| {
            let address = |o: &Operand<'_>| o.buffer.gpuAddress() + o.offset as u64;
            let addresses = launch.operands.iter().filter(|_| !frozen).map(address).collect();
            Slot { pipeline: launch.pipeline, addresses }
        });
        let (slots, optimized) = (slots.collect(), AtomicBool::new(false));
        Ok(Indirect { gpu: gpu.clone(), buffer: Some(Own(buffer)), slots, frozen, optimized })
    }

    pub(super) fn buffer(&self) -> &ProtocolObject<dyn MTLIndirectCommandBuffer> {
        &self.buffer.as_ref().expect("INVARIANT: taken by drop only").0
    }
}

impl Drop for Indirect {
    fn drop(&mut self) {
        let Some(Own(buffer)) = self.buffer.take() else { return };
        if self.gpu.lost.load(Ordering::Acquire) {
            std::mem::forget(buffer);
        } else {
            let bytes = buffer.allocatedSize();
            self.gpu.residency.remove(ProtocolObject::from_retained(buffer), bytes);
        }
    }
}

/// Words that each step of the trial moves.
const WORDS: usize = 1024;
/// What it fills them with.
const WORD: u32 = 0x5a5a_5a5a;
/// How long the trial may take, its first start of the device included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a fill and two copies that depend on each other, as graphs will run, and looks at the result; where it is not
/// right, graphs do without.
pub(super) fn try_out(gpu: &Arc<Gpu>, registry: &Arc<Registry>) {
    let problem = match trial(gpu, registry) {
        Ok(None) => return gpu.indirect.store(true, Ordering::Release),
        Ok(Some(problem)) => problem.to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        target: "tessl::metal",
        "indirect command buffers do not work on this system ({problem}): graphs are encoded at each replay"
    );
}

/// What is wrong, if something is.
fn trial(gpu: &Arc<Gpu>, registry: &Arc<Registry>) -> Result<Option<&'static str>> {
    const AREA: usize = WORDS * 4;
    let words = WORDS as u64;
    let block = TransferArgs { from_pitch: words, to_pitch: words, width: words, total: words, groups: 4, value: WORD };
    // Three areas, then the argument block.
    let mut bytes = vec![0; 3 * AREA];
    bytes.extend(bytemuck::bytes_of(&block));
    let buffer = graph::buffer(gpu, &bytes)?;
    let launch = |kernel: &str, offsets: &[usize]| -> Result<Launch<'_>> {
        let number = transfer::KERNELS.iter().position(|k| k.0 == kernel).expect("INVARIANT: a name of the table");
        let pipeline = registry.transfer(number)?;
        let operands = offsets.iter().map(|&offset| Operand { buffer: &buffer, offset }).collect();
        Ok(Launch { pipeline, geometry: Geometry::transfer(4), barrier: offsets.len() == 3, operands })
    };
    let launches = [
        launch("fill_rows_4", &[0, 3 * AREA])?,
        launch("copy_rows_4", &[0, AREA, 3 * AREA])?,
        launch("copy_rows_4", &[AREA, 2 * AREA, 3 * AREA])?,
    ];
    if launches.iter().any(|l| !registry.pipelines()[l.pipeline.0 as usize].indirect) {
        return Ok(Some("it refuses even the simplest kernel"));
    }
    let reach = Reach::of(&gpu.options.graphs);
    let indirect = Indirect::new(gpu, registry, &launches, reach)?;
    let baked = Baked::chain(gpu, buffer.clone(), indirect, launches.iter().map(|l| l.barrier), reach);
    let (queue, nothing) = (MetalQueue::new(gpu, registry)?, Batch::default());
    // SAFETY: nothing else runs on the queue; the graph has all that it touches.
    unsafe { queue.replay(&baked, &nothing, &[], 1)? };
    if !queue.wait(1, Some(Instant::now() + PATIENCE))? {
        return Ok(Some("a trial did not finish"));
    }
    // SAFETY: the device has finished; the third area is inside the buffer, aligned, and host memory.
    let end = unsafe { std::slice::from_raw_parts(buffer.contents().as_ptr().cast::<u32>().add(2 * WORDS), WORDS) };
    Ok(end.iter().any(|word| *word != WORD).then_some("a trial gave wrong results"))
}
