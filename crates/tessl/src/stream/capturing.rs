//! Which captures this thread is inside of: work for the default stream would silently not be part of the graph.

use crate::error::{Error, Result};
use crate::runtime::GpuRuntime;
use std::cell::RefCell;

thread_local! {
    /// Identities of the runtimes of the captures around the running code, the innermost last.
    static OPEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Marks a capture as open until it is dropped.
pub(super) struct Marker;

/// A capture of a stream of `rt` begins on this thread.
pub(super) fn enter(rt: &GpuRuntime) -> Marker {
    OPEN.with_borrow_mut(|open| open.push(rt.identity()));
    Marker
}

impl Drop for Marker {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|open| open.pop());
    }
}

/// Refuses work for the default stream of `rt` inside a capture of one of its streams.
pub(crate) fn refuse_default(rt: &GpuRuntime, op: &'static str) -> Result<()> {
    if OPEN.with_borrow(|open| open.contains(&rt.identity())) {
        let reason = "this is inside a capture, which would not record it; use run_on with the closure's stream";
        return Err(Error::Capture { op, reason });
    }
    Ok(())
}
