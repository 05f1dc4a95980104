//! A queue of the CPU device: batches run on the thread that submits them.

use super::backend::{Kernels, unknown_pipeline};
use super::call::{Bound, FaultCell, KernelCall};
use super::pool::Pool;
use crate::device::{FaultRecord, Fence, Queue};
use crate::error::{Error, Result};
use crate::stream::{Batch, Binding, Command, Work};
use smallvec::SmallVec;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

pub(super) struct CpuQueue {
    pool: Arc<Pool>,
    kernels: Arc<Kernels>,
    completed: AtomicU64,
    /// Held while `completed` changes, so that no waiter misses it.
    lock: Mutex<()>,
    changed: Condvar,
    fault: Mutex<Option<FaultRecord>>,
}

impl CpuQueue {
    pub(super) fn new(pool: Arc<Pool>, kernels: Arc<Kernels>) -> Self {
        CpuQueue {
            pool,
            kernels,
            completed: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            fault: Mutex::new(None),
        }
    }

    /// Runs every command; the first error ends the batch.
    unsafe fn execute(&self, batch: &Batch, fences: &[Fence]) -> Result<()> {
        for fence in fences {
            fence.queue.wait(fence.value, None)?;
        }
        // SAFETY: forwarded.
        batch.commands().iter().try_for_each(|command| unsafe { self.command(batch, command) })
    }

    unsafe fn command(&self, batch: &Batch, command: &Command) -> Result<()> {
        let bindings = batch.bindings(command);
        match command.work {
            Work::Kernel { pipeline, .. } => {
                let function =
                    self.kernels.function(pipeline).ok_or_else(|| unknown_pipeline(command.label, pipeline))?;
                let bound: SmallVec<[Bound; 8]> = bindings.iter().map(bind).collect();
                let fault = FaultCell::default();
                let call = KernelCall { args: batch.args(command), bindings: &bound, pool: &self.pool, fault: &fault };
                // SAFETY: the core vouches for the bindings (reasons 1 and 2 of the contract). A panic leaves at worst
                // half-written outputs, and the error says so.
                let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { function(&call) }));
                if let Some((kind, index, value)) = fault.take() {
                    #[allow(clippy::cast_possible_truncation)] // The low half is what the record holds.
                    let record = FaultRecord { seq: command.seq as u32, kind, index, value };
                    self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(record);
                }
                outcome.map_err(|payload| Error::Panicked { op: command.label, message: message(&*payload) })
            }
            Work::Copy => {
                // SAFETY: forwarded.
                unsafe { copy(&bindings[0], &bindings[1]) };
                Ok(())
            }
            Work::Fill(byte) => {
                let (rect, p) = (&bindings[0].rect, bindings[0].host_address());
                for row in 0..rect.rows {
                    // SAFETY: forwarded; the run lies inside the binding.
                    unsafe { std::ptr::write_bytes(p.add(address(row * rect.pitch)), byte, address(rect.width)) };
                }
                Ok(())
            }
        }
    }
}

/// Offsets inside an allocation fit the address space.
#[allow(clippy::cast_possible_truncation)]
fn address(x: u64) -> usize {
    debug_assert!(usize::try_from(x).is_ok());
    x as usize
}

fn bind(binding: &Binding) -> Bound {
    let bytes = address(binding.rect.end() - binding.rect.offset);
    Bound { ptr: binding.host_address(), bytes, access: binding.access }
}

/// Copies run by run, from the end where the target lies above the source, so that overlapping views come out right.
unsafe fn copy(from: &Binding, to: &Binding) {
    let (src, dst) = (from.host_address(), to.host_address());
    let (rows, width) = (from.rect.rows, address(from.rect.width));
    debug_assert!(rows == to.rect.rows && from.rect.width == to.rect.width);
    let dense = from.rect.pitch == from.rect.width && to.rect.pitch == to.rect.width;
    let run = |row: u64| {
        // SAFETY: forwarded; both runs lie inside their bindings.
        unsafe {
            let (src, dst) = (src.add(address(row * from.rect.pitch)), dst.add(address(row * to.rect.pitch)));
            std::ptr::copy(src, dst, width);
        }
    };
    if dense {
        // SAFETY: forwarded.
        unsafe { std::ptr::copy(src, dst, address(rows) * width) };
    } else if dst > src {
        (0..rows).rev().for_each(run);
    } else {
        (0..rows).for_each(run);
    }
}

/// The text of a panic.
fn message(payload: &(dyn Any + Send)) -> Box<str> {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").into()
}

impl Queue for CpuQueue {
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()> {
        // SAFETY: forwarded.
        let outcome = unsafe { self.execute(batch, fences) };
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.completed.fetch_max(signal, Ordering::Release);
        drop(guard);
        self.changed.notify_all();
        outcome
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.completed() < signal {
            guard = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return Ok(false),
                Some(left) => self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
            };
        }
        Ok(true)
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
