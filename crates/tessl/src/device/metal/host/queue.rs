//! An in-order queue: one Metal 4 command queue, one command buffer a batch.

use super::backend::Gpu;
use super::commit::commit;
use super::encode::{Encoder, Stop, Table};
use super::graph::Baked;
use super::objects::{Obj, Own};
use super::registry::Registry;
use super::residency::made;
use super::track::{Needs, Pending, Track};
use crate::device::labels::Labels;
use crate::device::{FaultRecord, Fence, Queue};
use crate::error::{Error, Result};
use crate::stream::Batch;
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTL4CommandBuffer, MTL4CommandQueue, MTLDevice};
use std::any::Any;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a dropped queue waits for the device before it leaves its objects behind.
const DRAIN: Duration = Duration::from_secs(10);
/// How long to wait for room in the arena before looking again.
const NAP: Duration = Duration::from_millis(1);

/// A command queue of one device.
pub(super) struct MetalQueue {
    gpu: Arc<Gpu>,
    registry: Arc<Registry>,
    queue: Obj<dyn MTL4CommandQueue>,
    table: Mutex<Own<Table>>,
    track: Arc<Track>,
}

/// What a submission runs.
struct Job<'a> {
    batch: &'a Batch,
    /// What was made of it when it was captured.
    baked: Option<&'a Baked>,
}

impl Job<'_> {
    /// Commands, or steps of a graph.
    fn len(&self) -> usize {
        self.baked.map_or(self.batch.commands().len(), |b| b.steps.len())
    }

    fn labels(&self, steps: Range<usize>) -> Labels {
        let commands = match self.baked {
            Some(_) if steps.is_empty() => 0..0,
            Some(b) => b.steps[steps.start].commands().start..b.steps[steps.end - 1].commands().end,
            None => steps,
        };
        Labels::of(&self.batch.commands()[commands])
    }

    /// Encodes from `start` on, as many as the arena has room for; tells how many.
    fn encode(&self, encoder: &mut Encoder<'_>, start: usize) -> (usize, Result<()>) {
        let place = match self.baked.map_or(Ok(None), |b| b.open(encoder, start)) {
            Ok(place) => place,
            Err(Stop::Full) => return (0, Ok(())),
            Err(Stop::Failed(error)) => return (0, Err(error)),
        };
        let mut count = 0;
        for step in start..self.len() {
            let outcome = match self.baked {
                Some(baked) => baked.encode(encoder, self.batch, step),
                None => encoder.command(self.batch, &self.batch.commands()[step]),
            };
            match outcome {
                Ok(()) => count += 1,
                Err(Stop::Full) => break,
                Err(Stop::Failed(error)) => return (count, Err(error)),
            }
        }
        if let Some(baked) = self.baked {
            baked.close(encoder, place, start + count == self.len());
        }
        (count, Ok(()))
    }
}

impl MetalQueue {
    pub(super) fn new(gpu: &Arc<Gpu>, registry: &Arc<Registry>) -> Result<Self> {
        let queue = made("newMTL4CommandQueue", gpu.device.newMTL4CommandQueue())?;
        let table = Mutex::new(Own(Table::new(&gpu.device)?));
        let track = Track::new(gpu)?;
        gpu.residency.attach(&queue);
        Ok(MetalQueue { gpu: gpu.clone(), registry: registry.clone(), queue, table, track })
    }

    fn run(&self, job: &Job<'_>, fences: &[Fence], signal: u64) -> Result<()> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.track.poll();
        if let Some(error) = self.track.lost() {
            self.track.pass(signal);
            return Err(error);
        }
        let mut done = 0;
        let outcome = self.hold_back(fences).and_then(|mut needs| {
            while done < job.len() {
                let part = self.part(job, done, &mut table.0, std::mem::take(&mut needs), signal)?;
                if part == 0 {
                    self.make_room()?;
                }
                done += part;
            }
            Ok(())
        });
        if outcome.is_err() || job.len() == 0 {
            self.track.pass(signal);
        }
        outcome
    }

    /// Encodes and commits from `start` on, as much as the arena has room for; tells how many commands or steps.
    fn part(&self, job: &Job<'_>, start: usize, table: &mut Table, needs: Needs, signal: u64) -> Result<usize> {
        let busy = self.track.is_busy();
        let mut slot = self.track.slot()?;
        slot.0.begin();
        let open = slot.0.buffer.computeCommandEncoder();
        let opened = Encoder::open(open, &self.registry, &self.gpu.arena, table, &mut slot.0.chunks);
        let (count, outcome, report) = match opened {
            Ok(mut encoder) => {
                encoder.behind = busy;
                let (count, outcome) = job.encode(&mut encoder, start);
                let report = encoder.report.map(|(_, host)| host);
                encoder.end();
                (count, outcome, report)
            }
            Err(error) => (0, Err(error), None),
        };
        slot.0.buffer.endCommandBuffer();
        if outcome.is_err() || count == 0 {
            self.track.put_back(slot);
            return outcome.map(|()| 0);
        }
        self.gpu.residency.settle();
        for (track, ticket) in &needs {
            self.queue.waitForEvent_value(ProtocolObject::from_ref(&*track.event), *ticket);
        }
        let signal = (start + count == job.len()).then_some(signal);
        let (buffer, labels) = (slot.0.buffer.clone(), job.labels(start..start + count));
        let ticket = self.track.begin(|ticket| Pending { ticket, signal, labels, slot, report, needs, heard: None });
        commit(&self.queue, &buffer, &self.track, ticket);
        if let Some(baked) = job.baked {
            baked.committed();
        }
        Ok(count)
    }

    /// What this submission has to wait for: commits of other queues of this device. Other fences are waited for here.
    fn hold_back(&self, fences: &[Fence]) -> Result<Needs> {
        let mut needs = Needs::new();
        for fence in fences {
            match fence.queue.as_any().downcast_ref::<MetalQueue>() {
                Some(queue) if Arc::ptr_eq(&queue.gpu, &self.gpu) => {
                    let ticket = queue.track.ticket_of(fence.value);
                    needs.extend(ticket.filter(|_| !ptr::eq(queue, self)).map(|t| (queue.track.clone(), t)));
                }
                _ => {
                    fence.queue.wait(fence.value, None)?;
                }
            }
        }
        Ok(needs)
    }

    /// Waits until some batch of the device has given back its arguments.
    fn make_room(&self) -> Result<()> {
        while !self.gpu.arena.wait(Duration::ZERO) {
            for track in self.gpu.tracks() {
                track.nudge(NAP);
            }
            if let Some(error) = self.track.lost() {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Queue for MetalQueue {
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()> {
        autoreleasepool(|_| self.run(&Job { batch, baked: None }, fences, signal))
    }

    unsafe fn replay(
        &self,
        baked: &(dyn Any + Send + Sync),
        batch: &Batch,
        fences: &[Fence],
        signal: u64,
    ) -> Result<()> {
        let Some(baked) = baked.downcast_ref::<Baked>().filter(|b| b.belongs_to(&self.gpu)) else {
            // SAFETY: the caller's promises are those of `submit`.
            return unsafe { self.submit(batch, fences, signal) };
        };
        autoreleasepool(|_| self.run(&Job { batch, baked: Some(baked) }, fences, signal))
    }

    fn completed(&self) -> u64 {
        autoreleasepool(|_| self.track.poll());
        self.track.completed()
    }

    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        autoreleasepool(|_| self.track.wait(signal, deadline))
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        self.track.take_fault()
    }

    fn take_failure(&self) -> Option<(u64, Error)> {
        self.track.take_failure()
    }

    fn device_time(&self) -> Option<Duration> {
        Some(self.track.busy())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for MetalQueue {
    fn drop(&mut self) {
        autoreleasepool(|_| {
            if self.track.drain(DRAIN) {
                self.gpu.residency.detach(&self.queue);
            } else {
                tracing::warn!(
                    target: "tessl::metal",
                    "a queue was dropped while the device had not finished within {DRAIN:?}; its objects are left behind"
                );
                std::mem::forget((self.queue.clone(), self.track.clone()));
            }
        });
    }
}
