//! The residency set: which memory the GPU may reach by address.

use super::objects::{Obj, Own, error, none};
use crate::error::{Error, Result, Scope};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTL4CommandQueue, MTLAllocation, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory that has been freed is given back at the next submission, or at once when there is more of it than this.
const LEAVING_BYTES: u64 = 64 << 20;

/// One set for all memory of a device, attached to each of its queues.
pub(super) struct Residency {
    state: Mutex<State>,
}

struct State {
    set: Own<Obj<dyn MTLResidencySet>>,
    /// Allocations came or went since the last commit.
    changed: bool,
    /// Allocations came.
    grown: bool,
    /// What went; it lives until the set has let go of it.
    leaving: Vec<Own<Obj<dyn MTLAllocation>>>,
    leaving_bytes: u64,
}

impl Residency {
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>) -> Result<Self> {
        let op = "newResidencySet";
        let set = device
            .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            .map_err(|e| Error::Device(Box::new(error(op, &e, "", Scope::Call))))?;
        let state = State { set: Own(set), changed: false, grown: false, leaving: Vec::new(), leaving_bytes: 0 };
        Ok(Residency { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn attach(&self, queue: &ProtocolObject<dyn MTL4CommandQueue>) {
        queue.addResidencySet(&self.state().set.0);
    }

    pub(super) fn detach(&self, queue: &ProtocolObject<dyn MTL4CommandQueue>) {
        queue.removeResidencySet(&self.state().set.0);
    }

    pub(super) fn add(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        let mut state = self.state();
        state.set.0.addAllocation(allocation);
        (state.changed, state.grown) = (true, true);
    }

    /// The allocation, of this many bytes, must be in no unfinished batch.
    pub(super) fn remove(&self, allocation: Obj<dyn MTLAllocation>, bytes: usize) {
        let mut state = self.state();
        state.set.0.removeAllocation(&allocation);
        state.changed = true;
        state.leaving_bytes += bytes as u64;
        state.leaving.push(Own(allocation));
        if state.leaving_bytes > LEAVING_BYTES {
            state.commit();
        }
    }

    /// Makes all changes take effect; work committed after this sees them.
    pub(super) fn settle(&self) {
        let mut state = self.state();
        if state.changed {
            state.commit();
        }
        // Only before a submission: a process that wires memory and never runs anything leaves it wired.
        if std::mem::take(&mut state.grown) {
            state.set.0.requestResidency();
        }
    }

    /// Gives back what has been freed.
    pub(super) fn release(&self) {
        let mut state = self.state();
        if state.changed {
            state.commit();
        }
    }
}

impl State {
    fn commit(&mut self) {
        self.set.0.commit();
        self.changed = false;
        self.leaving.clear();
        self.leaving_bytes = 0;
    }
}

/// `None` is a device that refuses; callers say which call it was.
pub(super) fn made<T>(op: &'static str, object: Option<T>) -> Result<T> {
    object.ok_or_else(|| none(op))
}
