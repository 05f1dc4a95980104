//! Captured batches: their arguments are written once, into a buffer of their own. A replay encodes the rest again, or runs
//! it from an indirect command buffer.

use super::arena::Place;
use super::backend::{Gpu, buffer_of};
use super::encode::{Encoder, Geometry, Stop, admit, offset};
use super::indirect::{Indirect, Launch, Operand};
use super::objects::{Obj, Own};
use super::registry::Registry;
use super::residency::made;
use crate::args::TransferArgs;
use crate::device::metal::steps::{Reach, Step, steps};
use crate::device::metal::transfer::{self, flat};
use crate::device::{PipelineId, STATUS_WORDS};
use crate::error::Result;
use crate::stream::{ARGS_ALIGN, Batch, Binding, Command, Work};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a captured batch needs beside itself.
pub(super) struct Baked {
    gpu: Arc<Gpu>,
    data: Option<Own<Obj<dyn MTLBuffer>>>,
    /// Address of the first argument block.
    pub(super) base: u64,
    pub(super) steps: Vec<Step>,
    indirect: Option<Indirect>,
    /// Where in the data indirect commands report faults, where some may.
    status: Option<usize>,
    commands: usize,
}

// SAFETY: the buffers are written once, by `bake`, and released by `drop`; in between only the device reads them, and
// encoders refer to them, which is safe from any thread.
unsafe impl Sync for Baked {}

/// A command as it will be in an indirect command buffer; places are offsets into the graph's data.
struct Draft {
    pipeline: PipelineId,
    geometry: Geometry,
    args: Option<usize>,
    /// Where its number is, which goes with the status block.
    number: Option<usize>,
}

/// The contents of a graph's buffer while it is put together.
struct Data {
    bytes: Vec<u8>,
    status: Option<usize>,
}

impl Data {
    /// Appends a block; tells where it is.
    fn push(&mut self, block: &[u8]) -> usize {
        let at = self.bytes.len().next_multiple_of(ARGS_ALIGN);
        self.bytes.resize(at, 0);
        self.bytes.extend(block);
        at
    }

    /// The place of a command's number, after making sure that there is a status block.
    fn number(&mut self, command: &Command) -> usize {
        if self.status.is_none() {
            self.status = Some(self.push(&[0; STATUS_WORDS * 4]));
        }
        #[allow(clippy::cast_possible_truncation, reason = "kernels get the low half of the number")]
        self.push(&(command.seq as u32).to_ne_bytes())
    }
}

/// What becomes of a command of a graph.
enum Fate {
    /// Nothing is to be done.
    Nothing,
    /// It is encoded at each replay.
    Live,
    Indirect(Draft),
}

fn fate(registry: &Registry, batch: &Batch, command: &Command, data: &mut Data) -> Result<Fate> {
    let bindings = batch.bindings(command);
    match command.work {
        Work::Kernel { grid, .. } if grid.contains(&0) => Ok(Fate::Nothing),
        Work::Kernel { pipeline, grid, threads, shared_bytes } => {
            let geometry = Geometry { grid, threads, shared_bytes };
            let pipelines = registry.pipelines();
            // What cannot be dispatched at all is an error of the replay, as without a graph.
            let Ok(found) = admit(&pipelines, pipeline, batch, command, geometry) else { return Ok(Fate::Live) };
            if !found.indirect {
                return Ok(Fate::Live);
            }
            let args = (!batch.args(command).is_empty()).then_some(command.args_start as usize);
            let number = found.reports.then(|| data.number(command));
            Ok(Fate::Indirect(Draft { pipeline, geometry, args, number }))
        }
        Work::Copy => moved(registry, [&bindings[0], &bindings[1]], 0, data),
        Work::Fill(byte) => moved(registry, [&bindings[0]], byte, data),
    }
}

/// A copy or a fill, by a kernel: an indirect command buffer has no blits.
fn moved<const SIDES: usize>(
    registry: &Registry,
    sides: [&Binding; SIDES],
    value: u8,
    data: &mut Data,
) -> Result<Fate> {
    let rects = flat(sides.map(|s| s.rect));
    if rects[0].width == 0 || rects[0].rows == 0 {
        return Ok(Fate::Nothing);
    }
    let (kernel, args, groups) = transfer::launch(&rects, sides.map(Binding::device_address), value);
    let pipeline = registry.transfer(kernel)?;
    if !registry.pipelines()[pipeline.0 as usize].indirect {
        return Ok(Fate::Live);
    }
    let args = Some(data.push(bytemuck::bytes_of::<TransferArgs>(&args)));
    Ok(Fate::Indirect(Draft { pipeline, geometry: Geometry::transfer(groups), args, number: None }))
}

pub(super) fn bake(gpu: &Arc<Gpu>, registry: &Registry, batch: &Batch) -> Result<Baked> {
    let commands = batch.commands();
    let mut data = Data { bytes: batch.all_args().to_vec(), status: None };
    let reach = gpu.indirect.load(Ordering::Acquire).then(|| Reach::of(&gpu.options.graphs));
    // Commands with something to do, each with whether it waits for all before it.
    let mut drafts: Vec<(usize, bool, Option<Draft>)> = Vec::new();
    let mut barrier = false;
    for (index, command) in commands.iter().enumerate() {
        barrier |= command.barrier;
        let fate = if reach.is_some() { fate(registry, batch, command, &mut data)? } else { Fate::Live };
        let draft = match fate {
            Fate::Nothing => continue,
            Fate::Live => None,
            Fate::Indirect(draft) => Some(draft),
        };
        drafts.push((index, std::mem::take(&mut barrier), draft));
    }
    let buffer = self::buffer(gpu, &data.bytes)?;
    let indirect = reach.and_then(|reach| indirect(gpu, registry, batch, &drafts, (&buffer, data.status), reach));
    let steps = match reach.filter(|_| indirect.is_some()) {
        Some(reach) => steps(drafts.iter().map(|(index, barrier, draft)| (*index, *barrier, draft.is_some())), reach),
        None => drafts.iter().map(|&(command, barrier, _)| Step::Encode { command, barrier }).collect(),
    };
    let status = data.status.filter(|_| indirect.is_some());
    let mut baked = Baked::new(gpu, buffer, steps);
    (baked.indirect, baked.status, baked.commands) = (indirect, status, commands.len());
    if reach.is_some() {
        let (all, prebuilt) = (baked.commands, baked.prebuilt());
        tracing::debug!(target: "tessl::metal", "graph: {prebuilt} of {all} commands are not encoded again");
    }
    Ok(baked)
}

/// The drafts as indirect commands; `data` is the graph's buffer with the place of its status block. `None` where there
/// are no drafts or Metal refuses.
fn indirect(
    gpu: &Arc<Gpu>,
    registry: &Registry,
    batch: &Batch,
    drafts: &[(usize, bool, Option<Draft>)],
    (data, status): (&ProtocolObject<dyn MTLBuffer>, Option<usize>),
    reach: Reach,
) -> Option<Indirect> {
    let kept = |at: usize| Operand { buffer: data, offset: at };
    let launches = drafts.iter().filter_map(|(index, barrier, draft)| {
        let draft = draft.as_ref()?;
        let bindings = batch.bindings(&batch.commands()[*index]).iter().map(|b| {
            // SAFETY: the batch keeps the binding alive.
            Operand { buffer: unsafe { buffer_of(b.memory.raw()) }, offset: offset(b, b.rect).0 }
        });
        let report = draft.number.zip(status).map(|(number, status)| [status, number]);
        let operands = bindings.chain(draft.args.map(kept)).chain(report.into_iter().flatten().map(kept)).collect();
        Some(Launch { pipeline: draft.pipeline, geometry: draft.geometry, barrier: *barrier, operands })
    });
    let launches: Vec<Launch<'_>> = launches.collect();
    if launches.is_empty() {
        return None;
    }
    let made = Indirect::new(gpu, registry, &launches, reach);
    made.inspect_err(|e| tracing::warn!(target: "tessl::metal", "a graph without indirect command buffer: {e}")).ok()
}

/// A buffer of the graph's own with these bytes.
pub(super) fn buffer(gpu: &Gpu, bytes: &[u8]) -> Result<Obj<dyn MTLBuffer>> {
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    let buffer = made("newBuffer", gpu.device.newBufferWithLength_options(bytes.len().max(1), options))?;
    // SAFETY: the buffer is at least as long as the bytes, mapped, and not yet known to the device.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.contents().as_ptr().cast(), bytes.len()) };
    Ok(buffer)
}

impl Baked {
    /// A graph with this data, without indirect commands.
    fn new(gpu: &Arc<Gpu>, data: Obj<dyn MTLBuffer>, steps: Vec<Step>) -> Self {
        gpu.residency.add(ProtocolObject::from_ref(&*data));
        let base = data.gpuAddress();
        Baked { gpu: gpu.clone(), data: Some(Own(data)), base, steps, indirect: None, status: None, commands: 0 }
    }

    /// A graph of indirect commands alone, which stand for none of a batch; `barriers` tells which wait.
    pub(super) fn chain(
        gpu: &Arc<Gpu>,
        data: Obj<dyn MTLBuffer>,
        indirect: Indirect,
        barriers: impl Iterator<Item = bool>,
        reach: Reach,
    ) -> Self {
        let mut steps = steps(barriers.map(|barrier| (0, barrier, true)), reach);
        for step in &mut steps {
            if let Step::Execute { commands, .. } = step {
                *commands = 0..0;
            }
        }
        let mut baked = Baked::new(gpu, data, steps);
        baked.indirect = Some(indirect);
        baked
    }

    /// Whether it was made for this device.
    pub(super) fn belongs_to(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Commands that a replay does not encode.
    pub(super) fn prebuilt(&self) -> usize {
        let live = self.steps.iter().filter(|s| matches!(s, Step::Encode { .. })).count();
        if self.indirect.is_some() { self.commands - live } else { 0 }
    }

    /// What a replay begins with, or its continuation from step `start`: it comes after all that was submitted before,
    /// because the first command has no barrier of its own. Returns where to put the status block at the end.
    pub(super) fn open(&self, encoder: &mut Encoder<'_>, start: usize) -> Result<Option<Place>, Stop> {
        encoder.base = Some(self.base);
        let place = match self.status {
            Some(_) => Some(encoder.arena.reserve(encoder.chunks, STATUS_WORDS * 4).ok_or(Stop::Full)?),
            None => None,
        };
        if start == 0 {
            encoder.barrier();
            if let Some(indirect) = self.indirect.as_ref().filter(|i| !i.optimized.load(Ordering::Acquire)) {
                encoder.optimize(indirect);
            }
            if let (Some(at), Some(Own(data))) = (self.status, &self.data) {
                encoder.clear(data, at);
            }
            encoder.barrier();
        }
        if let (Some(at), Some(place)) = (self.status, place) {
            encoder.report = Some((self.base + at as u64, place.host));
        }
        Ok(place)
    }

    pub(super) fn encode(&self, encoder: &mut Encoder<'_>, batch: &Batch, step: usize) -> Result<(), Stop> {
        match &self.steps[step] {
            &Step::Encode { command, barrier } => {
                if barrier {
                    encoder.barrier();
                }
                encoder.command(batch, &batch.commands()[command])
            }
            Step::Execute { slots, barrier, .. } => {
                if *barrier {
                    encoder.barrier();
                }
                if let Some(indirect) = &self.indirect {
                    encoder.execute(indirect, slots.clone());
                }
                Ok(())
            }
        }
    }

    /// What the last part of a replay ends with; the others tell of no fault.
    pub(super) fn close(&self, encoder: &mut Encoder<'_>, place: Option<Place>, last: bool) {
        if let (Some(at), Some(place), Some(Own(data))) = (self.status, place, &self.data) {
            encoder.report = None;
            if last {
                encoder.barrier();
                encoder.fetch(data, at, place);
                encoder.report = Some((place.device, place.host));
            }
        }
    }

    /// A part of a replay was committed.
    pub(super) fn committed(&self) {
        if let Some(indirect) = &self.indirect {
            indirect.optimized.store(true, Ordering::Release);
        }
    }
}

impl Drop for Baked {
    fn drop(&mut self) {
        let Some(Own(buffer)) = self.data.take() else { return };
        if self.gpu.lost.load(Ordering::Acquire) {
            std::mem::forget(buffer);
        } else {
            let bytes = buffer.length();
            self.gpu.residency.remove(ProtocolObject::from_retained(buffer), bytes);
        }
    }
}
