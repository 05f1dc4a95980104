//! Commands into a compute encoder: argument table, barriers, dispatches, blits.

use super::arena::{Arena, Chunks, Place};
use super::backend::buffer_of;
use super::indirect::Indirect;
use super::objects::Obj;
use super::registry::{Pipeline, Registry};
use super::residency::made;
use crate::args::TransferArgs;
use crate::device::metal::transfer::{self, Way, flat, way};
use crate::device::{PipelineId, STATUS_WORDS};
use crate::error::{DeviceError, Error, Result, Scope};
use crate::stream::{Batch, Binding, Command, Rect, Work};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTL4ArgumentTable, MTL4ArgumentTableDescriptor, MTL4CommandEncoder, MTL4ComputeCommandEncoder,
    MTL4VisibilityOptions, MTLBuffer, MTLDevice, MTLSize, MTLStages,
};
use std::ops::Range;

/// Buffers of an argument table.
const TABLE: usize = 31;

/// The argument table of a queue and what it holds. It is read when a dispatch is encoded, so one is enough.
pub(super) struct Table {
    table: Obj<dyn MTL4ArgumentTable>,
    bound: [u64; TABLE],
}

impl Table {
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>) -> Result<Self> {
        let descriptor = MTL4ArgumentTableDescriptor::new();
        descriptor.setMaxBufferBindCount(TABLE);
        descriptor.setInitializeBindings(true);
        let table = device.newArgumentTableWithDescriptor_error(&descriptor);
        let table = table
            .map_err(|e| Error::Device(Box::new(super::objects::error("newArgumentTable", &e, "", Scope::Call))))?;
        Ok(Table { table, bound: [0; TABLE] })
    }

    fn bind(&mut self, index: usize, address: u64) {
        if self.bound[index] != address {
            // SAFETY: the index is inside the table; the address is that of memory which the batch keeps alive.
            unsafe { self.table.setAddress_atIndex(address, index) };
            self.bound[index] = address;
        }
    }
}

/// The size of a dispatch.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

impl Geometry {
    /// That of a transfer kernel.
    pub(super) fn transfer(groups: u32) -> Self {
        Geometry { grid: [groups, 1, 1], threads: transfer::THREADS, shared_bytes: 0 }
    }

    /// Threadgroups, and threads of one.
    pub(super) fn sizes(&self) -> [MTLSize; 2] {
        let [width, height, depth] = self.grid.map(|n| n as usize);
        [MTLSize { width, height, depth }, MTLSize { width: self.threads as usize, height: 1, depth: 1 }]
    }

    /// Dynamic threadgroup memory as Metal wants it; `None` where there is none.
    pub(super) fn shared(&self) -> Option<usize> {
        (self.shared_bytes > 0).then(|| (self.shared_bytes as usize).next_multiple_of(16))
    }
}

/// Why a command was not encoded.
pub(super) enum Stop {
    /// The arena has no chunk left; nothing of the command was encoded.
    Full,
    Failed(Error),
}

/// An open compute encoder.
pub(super) struct Encoder<'a> {
    pub(super) registry: &'a Registry,
    pub(super) arena: &'a Arena,
    pub(super) table: &'a mut Table,
    pub(super) chunks: &'a mut Chunks,
    pub(super) encoder: Obj<dyn MTL4ComputeCommandEncoder>,
    /// Arguments of a captured batch, which are in memory already.
    pub(super) base: Option<u64>,
    /// The batch's status block: its address, and where the host reads it.
    pub(super) report: Option<(u64, *const u8)>,
    /// Earlier commits may still run, and nothing orders this encoder after them yet.
    pub(super) behind: bool,
    /// This encoder has commands after its last barrier.
    pub(super) dirty: bool,
    pub(super) current: Option<PipelineId>,
}

impl<'a> Encoder<'a> {
    pub(super) fn open(
        encoder: Option<Obj<dyn MTL4ComputeCommandEncoder>>,
        registry: &'a Registry,
        arena: &'a Arena,
        table: &'a mut Table,
        chunks: &'a mut Chunks,
    ) -> Result<Self> {
        let encoder = made("computeCommandEncoder", encoder)?;
        encoder.setArgumentTable(Some(&table.table));
        let (base, report, current) = (None, None, None);
        Ok(Encoder { registry, arena, table, chunks, encoder, base, report, behind: false, dirty: false, current })
    }

    /// Everything encoded and committed so far finishes before what follows starts.
    pub(super) fn barrier(&mut self) {
        let stages = MTLStages::Dispatch | MTLStages::Blit;
        let visible = MTL4VisibilityOptions::Device;
        if std::mem::take(&mut self.dirty) {
            self.encoder.barrierAfterEncoderStages_beforeEncoderStages_visibilityOptions(stages, stages, visible);
        }
        if std::mem::take(&mut self.behind) {
            self.encoder.barrierAfterQueueStages_beforeStages_visibilityOptions(stages, stages, visible);
        }
    }

    pub(super) fn command(&mut self, batch: &Batch, command: &Command) -> Result<(), Stop> {
        let bindings = batch.bindings(command);
        match &command.work {
            &Work::Kernel { pipeline, grid, threads, shared_bytes } => {
                self.kernel(pipeline, batch, command, Geometry { grid, threads, shared_bytes })
            }
            Work::Copy => {
                let sides = [&bindings[0], &bindings[1]];
                self.rows(command, sides, 0, |encoder, [from, to]| encoder.copy(sides, from, to))
            }
            Work::Fill(byte) => {
                let side = [&bindings[0]];
                self.rows(command, side, *byte, |encoder, [rect]| encoder.fill(side[0], rect, *byte))
            }
        }
    }

    fn kernel(&mut self, id: PipelineId, batch: &Batch, command: &Command, geometry: Geometry) -> Result<(), Stop> {
        let registry = self.registry;
        let pipelines = registry.pipelines();
        let pipeline = admit(&pipelines, id, batch, command, geometry).map_err(Stop::Failed)?;
        let bindings = batch.bindings(command);
        let args = batch.args(command);
        let args = match self.base {
            _ if args.is_empty() => None,
            Some(base) => Some(base + u64::from(command.args_start)),
            None => Some(self.arena.push(self.chunks, args).ok_or(Stop::Full)?),
        };
        let status = if pipeline.reports { Some(self.status(command)?) } else { None };
        if command.barrier {
            self.barrier();
        }
        let addresses = bindings.iter().map(Binding::device_address).chain(args).chain(status.into_iter().flatten());
        for (index, address) in addresses.enumerate() {
            self.table.bind(index, address);
        }
        self.dispatch(id, pipeline, geometry);
        Ok(())
    }

    /// Addresses of the status block and of the command's number.
    fn status(&mut self, command: &Command) -> Result<[u64; 2], Stop> {
        let block = match self.report {
            Some((address, _)) => address,
            None => {
                let place = self.arena.reserve(self.chunks, STATUS_WORDS * 4).ok_or(Stop::Full)?;
                // SAFETY: the place is that many bytes of this batch's chunks, which the device does not yet use.
                unsafe { place.host.write_bytes(0, STATUS_WORDS * 4) };
                self.report = Some((place.device, place.host));
                place.device
            }
        };
        #[allow(clippy::cast_possible_truncation, reason = "kernels get the low half of the number")]
        let sequence = command.seq as u32;
        let place = self.arena.push(self.chunks, &sequence.to_ne_bytes()).ok_or(Stop::Full)?;
        Ok([block, place])
    }

    fn dispatch(&mut self, id: PipelineId, pipeline: &Pipeline, geometry: Geometry) {
        if geometry.grid.contains(&0) {
            return;
        }
        if self.current.replace(id) != Some(id) {
            self.encoder.setComputePipelineState(&pipeline.state);
        }
        if let Some(bytes) = geometry.shared() {
            // SAFETY: the plan keeps within the device's threadgroup memory; index 0 is the one that kernels declare.
            unsafe { self.encoder.setThreadgroupMemoryLength_atIndex(bytes, 0) };
        }
        let [groups, group] = geometry.sizes();
        self.encoder.dispatchThreadgroups_threadsPerThreadgroup(groups, group);
        self.dirty = true;
    }

    /// A copy or a fill, row by row through `blit` or by a kernel.
    fn rows<const SIDES: usize>(
        &mut self,
        command: &Command,
        sides: [&Binding; SIDES],
        value: u8,
        blit: impl Fn(&Self, [Rect; SIDES]),
    ) -> Result<(), Stop> {
        let rects = flat(sides.map(|s| s.rect));
        let Rect { width, rows, .. } = rects[0];
        let addresses = sides.map(Binding::device_address);
        let moved = if width == 0 || rows == 0 { None } else { Some(way(&rects, addresses, value)) };
        match moved {
            Some(Way::Kernel { kernel, args, groups }) => self.move_rows(command, kernel, &args, groups, &addresses),
            moved => {
                if command.barrier {
                    self.barrier();
                }
                if moved.is_some() {
                    for row in 0..rows {
                        let at = |r: Rect| Rect::linear(r.offset + row * r.pitch, width);
                        blit(self, rects.map(at));
                    }
                    self.dirty = true;
                }
                Ok(())
            }
        }
    }

    fn move_rows(
        &mut self,
        command: &Command,
        kernel: usize,
        args: &TransferArgs,
        groups: u32,
        addresses: &[u64],
    ) -> Result<(), Stop> {
        let registry = self.registry;
        let id = registry.transfer(kernel).map_err(Stop::Failed)?;
        let args = self.arena.push(self.chunks, bytemuck::bytes_of(args)).ok_or(Stop::Full)?;
        if command.barrier {
            self.barrier();
        }
        for (index, address) in addresses.iter().copied().chain([args]).enumerate() {
            self.table.bind(index, address);
        }
        let pipelines = registry.pipelines();
        self.dispatch(id, &pipelines[id.0 as usize], Geometry::transfer(groups));
        Ok(())
    }

    /// Runs commands of an indirect command buffer.
    pub(super) fn execute(&mut self, indirect: &Indirect, slots: Range<usize>) {
        let registry = self.registry;
        let first = &indirect.slots[slots.start];
        if indirect.frozen {
            // A bound table and frozen bindings do not go together.
            self.encoder.setArgumentTable(None);
        } else {
            first.addresses.iter().enumerate().for_each(|(index, address)| self.table.bind(index, *address));
        }
        // Metal wants one on the encoder, though the commands bring their own.
        self.encoder.setComputePipelineState(&registry.pipelines()[first.pipeline.0 as usize].state);
        let range = NSRange::new(slots.start, slots.len());
        // SAFETY: the slots are recorded, and the graph that the caller keeps alive keeps the buffer.
        unsafe { self.encoder.executeCommandsInBuffer_withRange(indirect.buffer(), range) };
        if indirect.frozen {
            self.encoder.setArgumentTable(Some(&self.table.table));
        }
        // What the encoder's pipeline is afterwards is not promised.
        self.current = None;
        self.dirty = true;
    }

    /// Lets Metal rewrite the commands of an indirect command buffer, once, before they run.
    pub(super) fn optimize(&mut self, indirect: &Indirect) {
        let range = NSRange::new(0, indirect.slots.len());
        // SAFETY: as in `execute`; nothing has run from the buffer yet.
        unsafe { self.encoder.optimizeIndirectCommandBuffer_withRange(indirect.buffer(), range) };
        self.dirty = true;
    }

    /// Zeroes the status block of a graph, which starts here.
    pub(super) fn clear(&mut self, graph: &ProtocolObject<dyn MTLBuffer>, at: usize) {
        let range = NSRange::new(at, STATUS_WORDS * 4);
        // SAFETY: the block is inside the graph's buffer.
        unsafe { self.encoder.fillBuffer_range_value(graph, range, 0) };
        self.dirty = true;
    }

    /// Copies the status block of a graph to where the host reads it.
    pub(super) fn fetch(&mut self, graph: &ProtocolObject<dyn MTLBuffer>, at: usize, place: Place) {
        let (to, offset) = (self.arena.buffer(), self.arena.offset(place));
        // SAFETY: the block is inside the graph's buffer, the place inside a chunk of this batch.
        unsafe {
            self.encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                graph,
                at,
                to,
                offset,
                STATUS_WORDS * 4,
            );
        }
        self.dirty = true;
    }

    fn copy(&self, [from, to]: [&Binding; 2], source: Rect, target: Rect) {
        let (source, target) = (offset(from, source), offset(to, target));
        // SAFETY: both sides lie inside their allocations, which the batch keeps alive.
        unsafe {
            self.encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                buffer_of(from.memory.raw()),
                source.0,
                buffer_of(to.memory.raw()),
                target.0,
                source.1,
            );
        }
    }

    fn fill(&self, to: &Binding, rect: Rect, byte: u8) {
        let (start, bytes) = offset(to, rect);
        // SAFETY: the range lies inside its allocation, which the batch keeps alive.
        unsafe { self.encoder.fillBuffer_range_value(buffer_of(to.memory.raw()), NSRange::new(start, bytes), byte) };
    }

    pub(super) fn end(self) {
        self.encoder.endEncoding();
    }
}

/// The pipeline of a command, if it can be dispatched like this.
pub(super) fn admit<'a>(
    pipelines: &'a [Pipeline],
    id: PipelineId,
    batch: &Batch,
    command: &Command,
    geometry: Geometry,
) -> Result<&'a Pipeline> {
    let pipeline = pipelines.get(id.0 as usize).ok_or_else(|| refuse(command, "an unknown pipeline".into()))?;
    let args = usize::from(!batch.args(command).is_empty());
    let count = batch.bindings(command).len() + args + if pipeline.reports { 2 } else { 0 };
    if count > TABLE {
        return Err(refuse(command, format!("{count} buffers, an argument table has {TABLE}")));
    }
    if geometry.threads > pipeline.max_threads {
        let what = format!("{} threads, the pipeline allows {}", geometry.threads, pipeline.max_threads);
        return Err(refuse(command, what));
    }
    Ok(pipeline)
}

/// Where a linear range starts in its buffer, and its bytes. Imported memory need not start where its buffer does.
pub(super) fn offset(binding: &Binding, rect: Rect) -> (usize, usize) {
    let raw = binding.memory.raw();
    // SAFETY: the binding keeps the allocation alive.
    let skipped = raw.device - unsafe { buffer_of(raw) }.gpuAddress();
    let size = |n: u64| usize::try_from(n).expect("INVARIANT: Apple systems are 64-bit");
    (size(skipped + rect.offset), size(rect.width))
}

fn refuse(command: &Command, message: String) -> Error {
    Error::Device(Box::new(DeviceError { op: command.label, code: 0, message, scope: Scope::Stream }))
}
