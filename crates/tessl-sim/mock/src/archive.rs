//! Archives of pipelines on disk: lines of text.

use crate::compile::{Pipeline, finish, pipeline};
use crate::foundation::{Bag, class, fail, imp, properties, text};
use crate::memory::{DEVICE, DeviceBody};
use crate::report::count;
use crate::runtime::{Class, Header, Methods, Sel, body, make};
use crate::sim::Sim;
use std::sync::{Arc, Mutex, PoisonError};

static RECORDER: Class = Class::inner(c"MTL4PipelineDataSetSerializer");
static ARCHIVE: Class = Class::inner(c"MTL4Archive");
class!(COMPILER_DESCRIPTOR, "_OBJC_CLASS_MTL4CompilerDescriptor", c"MTL4CompilerDescriptor", || make(
    &COMPILER_DESCRIPTOR,
    Bag::default()
));
class!(
    RECORDER_DESCRIPTOR,
    "_OBJC_CLASS_MTL4PipelineDataSetSerializerDescriptor",
    c"MTL4PipelineDataSetSerializerDescriptor",
    || make(&RECORDER_DESCRIPTOR, Bag::default())
);

/// The last line of any archive.
const END: &str = "end";

/// The first line of an archive of this device.
fn head(sim: &Sim) -> String {
    format!("archive of {:?}", sim.config.schedule)
}

/// What identifies a pipeline in an archive.
fn line(pipeline: &Pipeline) -> String {
    format!("{} {:?} {}", pipeline.name, pipeline.constants, pipeline.indirect)
}

/// A serializer: what was compiled since it was last written.
pub struct RecorderBody {
    sim: Arc<Sim>,
    lines: Mutex<Vec<String>>,
}

impl RecorderBody {
    pub fn push(&self, pipeline: &Pipeline) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line(pipeline));
    }
}

struct ArchiveBody {
    sim: Arc<Sim>,
    lines: Vec<String>,
}

pub fn register(m: &mut Methods) {
    m.add(
        &DEVICE,
        c"newPipelineDataSetSerializerWithDescriptor:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header| -> *mut Header {
            const BINARIES: usize = 2;
            // SAFETY: the receiver is a device, the argument a descriptor.
            let (sim, descriptor) = unsafe { (&body::<DeviceBody>(this).0, body::<Bag>(d)) };
            if descriptor.get(c"setConfiguration:").unwrap_or(0) & BINARIES == 0 {
                sim.report.add("a serializer that keeps no binaries".to_owned());
            }
            make(&RECORDER, RecorderBody { sim: sim.clone(), lines: Mutex::default() })
        }),
    );
    m.add(
        &RECORDER,
        c"serializeAsArchiveAndFlushToURL:error:",
        imp!(|this: *mut Header, _s: Sel, url: *mut Header, out: *mut *mut Header| -> bool {
            // SAFETY: the receiver is a serializer.
            let recorder = unsafe { body::<RecorderBody>(this) };
            let lines = std::mem::take(&mut *recorder.lines.lock().unwrap_or_else(PoisonError::into_inner));
            if lines.len() != 1 {
                recorder.sim.report.add(format!("an archive of {} pipelines", lines.len()));
            }
            let all = [vec![head(&recorder.sim)], lines, vec![END.to_owned()]].concat();
            let refused = recorder.sim.state().faults.archive.take();
            let written = match refused {
                Some(message) => Err(message),
                None => std::fs::write(text(url), all.join("\n")).map_err(|e| e.to_string()),
            };
            if let Err(message) = &written {
                // SAFETY: the caller's error pointer.
                unsafe { fail(out, 4, message) };
            }
            written.is_ok()
        }),
    );
    m.add(
        &DEVICE,
        c"newArchiveWithURL:error:",
        imp!(|this: *mut Header, _s: Sel, url: *mut Header, out: *mut *mut Header| -> *mut Header {
            // SAFETY: the receiver is a device.
            let sim = &unsafe { body::<DeviceBody>(this) }.0;
            let content = std::fs::read(text(url)).unwrap_or_default();
            let lines: Vec<String> = String::from_utf8_lossy(&content).lines().map(str::to_owned).collect();
            if lines.len() < 2 || lines.last().is_some_and(|l| l != END) {
                sim.report.add("a damaged archive was given to Metal".to_owned());
            }
            if lines.first() != Some(&head(sim)) || sim.state().faults.foreign_archives {
                // SAFETY: the caller's error pointer.
                return unsafe { fail(out, 5, "made for another device") };
            }
            make(&ARCHIVE, ArchiveBody { sim: sim.clone(), lines })
        }),
    );
    m.add(
        &ARCHIVE,
        c"newComputePipelineStateWithDescriptor:error:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header, out: *mut *mut Header| -> *mut Header {
            // SAFETY: the receiver is an archive.
            let archive = unsafe { body::<ArchiveBody>(this) };
            match pipeline(&archive.sim, d) {
                Ok(made) if archive.lines.contains(&line(&made)) => {
                    count(&archive.sim.counters.archived);
                    finish(&archive.sim, made)
                }
                // SAFETY: the caller's error pointer.
                _ => unsafe { fail(out, 6, "not in this archive") },
            }
        }),
    );
    properties(m, &RECORDER_DESCRIPTOR, &[], &[c"setConfiguration:"]);
    properties(m, &COMPILER_DESCRIPTOR, &[c"setPipelineDataSetSerializer:"], &[]);
}
