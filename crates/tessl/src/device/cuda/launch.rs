//! Commands as driver calls, for streams; graphs share the parameter list.

use super::context::Context;
use super::driver::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUstream, Code, SUCCESS,
};
use super::pieces::{CopyPiece, FillPiece, pieces, size};
use super::registry::Pipeline;
use crate::error::{Error, Result, Scope};
use crate::stream::{Batch, Command, Work};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::ptr;

/// What a command's launch needs besides its batch.
pub(super) struct Env<'a> {
    pub(super) context: &'a Context,
    pub(super) pipelines: &'a [Pipeline],
    /// Address of the status block; 0 when no kernel of the batch reports.
    pub(super) status: u64,
}

impl Env<'_> {
    pub(super) fn pipeline(&self, work: &Work) -> Option<&Pipeline> {
        match work {
            Work::Kernel { pipeline, .. } => self.pipelines.get(pipeline.0 as usize),
            _ => None,
        }
    }

    /// Calls `use_them` with the kernel's parameters: one pointer per buffer address, then the argument block, then
    /// tensor maps for kernels that take them, made here from both (0.1 us each), then for kernels that report faults the status block and the command's number. Up to 16 buffers nothing is allocated.
    /// Pointers beyond the kernel's own count are not read by the driver; too few would be, and are an error.
    pub(super) fn with_parameters<T>(
        &self,
        batch: &Batch,
        command: &Command,
        pipeline: &Pipeline,
        use_them: impl FnOnce(*mut *mut c_void) -> T,
    ) -> Result<T> {
        let addresses: SmallVec<[u64; 16]> = batch.bindings(command).iter().map(|b| b.device_address()).collect();
        let args = batch.args(command);
        let sequence: [u8; 8] = command.seq.to_le_bytes(); // the kernel reads the low half
        let mut parameters: SmallVec<[*mut c_void; 20]> =
            addresses.iter().map(|a| ptr::from_ref(a).cast_mut().cast()).collect();
        if !args.is_empty() {
            parameters.push(args.as_ptr().cast_mut().cast());
        }
        let maps = match pipeline.maps {
            Some(maps) => {
                let made = maps.encode(self.context.driver, args, &addresses);
                Some(made.map_err(|(code, operand)| {
                    let detail = format!("tensor map of {operand}");
                    self.context.driver.error(code, command.label, Scope::Stream, &detail)
                })?)
            }
            None => None,
        };
        parameters.extend(maps.iter().flatten().map(|m| ptr::from_ref(m).cast_mut().cast()));
        if pipeline.status {
            parameters.push(ptr::from_ref(&self.status).cast_mut().cast());
            parameters.push(sequence.as_ptr().cast_mut().cast());
        }
        if let Some(wanted) = pipeline.parameters.filter(|wanted| *wanted > parameters.len()) {
            let given = parameters.len();
            let message = format!("the kernel has {wanted} parameters but the command binds {given}");
            return Err(Error::device(command.label, 1, message, Scope::Stream));
        }
        Ok(use_them(parameters.as_mut_ptr()))
    }

    /// Enqueues one command. Barriers need nothing: a stream executes in order.
    pub(super) fn enqueue(&self, batch: &Batch, command: &Command, stream: CUstream) -> Result<()> {
        let f = &self.context.driver.f;
        match (&command.work, batch.bindings(command)) {
            (Work::Kernel { grid, threads, shared_bytes, .. }, _) => {
                if grid.contains(&0) {
                    return Ok(());
                }
                let pipeline = self.pipeline(&command.work).ok_or_else(|| unknown_pipeline(command))?;
                let mut attributes = [before_predecessors_end()];
                let config = CUlaunchConfig {
                    gridDimX: grid[0],
                    gridDimY: grid[1],
                    gridDimZ: grid[2],
                    blockDimX: *threads,
                    blockDimY: 1,
                    blockDimZ: 1,
                    sharedMemBytes: *shared_bytes,
                    hStream: stream,
                    attrs: attributes.as_mut_ptr(),
                    numAttrs: u32::from(pipeline.dependent),
                };
                let code = self.with_parameters(batch, command, pipeline, |parameters| {
                    // SAFETY: the parameters are as many as the kernel reads; the batch's bindings outlive the launch
                    // (reason 1 of the contract).
                    unsafe { (f.launch)(&config, pipeline.function, parameters, ptr::null_mut()) }
                })?;
                self.check(code, command)
            }
            (Work::Copy, [from, to, ..]) => pieces([from, to], self.context.max_pitch).try_for_each(|p: CopyPiece| {
                // SAFETY: both sides lie inside allocations that outlive the batch (reason 1).
                let code = unsafe {
                    match p.rows {
                        1 => (f.copy)(p.places[1].device, p.places[0].device, size(p.width), stream),
                        _ => (f.copy_2d)(&p.pitched(), stream),
                    }
                };
                self.check(code, command)
            }),
            (Work::Fill(byte), [to, ..]) => pieces([to], self.context.max_pitch).try_for_each(|p: FillPiece| {
                let (address, width) = (p.places[0].device, size(p.width));
                // SAFETY: as above.
                let code = unsafe {
                    match p.rows {
                        1 => (f.fill)(address, *byte, width, stream),
                        rows => (f.fill_2d)(address, size(p.pitches[0]), *byte, width, size(rows), stream),
                    }
                };
                self.check(code, command)
            }),
            (Work::Copy | Work::Fill(_), _) => unreachable!("INVARIANT: the core binds every operand"),
        }
    }

    /// The error of a command, with what it was.
    pub(super) fn check(&self, code: Code, command: &Command) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let detail = match &command.work {
            Work::Kernel { grid: [x, y, z], threads, shared_bytes, .. } => {
                format!("kernel, grid {x}x{y}x{z}, {threads} threads, {shared_bytes} bytes of shared memory")
            }
            Work::Copy => "copy".to_owned(),
            Work::Fill(_) => "fill".to_owned(),
        };
        Err(self.context.driver.error(code, command.label, Scope::Stream, &detail))
    }
}

/// Lets a kernel start when all blocks of the kernel before it in the stream have released it or ended.
fn before_predecessors_end() -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    }
}

pub(super) fn unknown_pipeline(command: &Command) -> Error {
    Error::device(command.label, 0, "the pipeline belongs to another device", Scope::Stream)
}
