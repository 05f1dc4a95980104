//! Points in a stream: for other streams to wait for, and for the host.

use super::StreamCore;
use super::hazard::Progress;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A point of a stream. Made by [`Stream::record`](crate::Stream::record), waited for by
/// [`Stream::wait_event`](crate::Stream::wait_event); work that has not been submitted yet is submitted by the wait.
#[derive(Clone)]
pub struct Event {
    progress: Arc<Progress>,
    seq: u64,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Event {
    pub(crate) fn new(progress: Arc<Progress>, seq: u64) -> Self {
        Event { progress, seq }
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether the device has passed this point.
    pub fn is_done(&self) -> bool {
        self.progress.is_done(self.seq)
    }
}

/// Submitted work that the host can wait for.
pub struct Ticket {
    core: Arc<StreamCore>,
    seq: u64,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Ticket {
    pub(crate) fn new(core: Arc<StreamCore>, seq: u64) -> Self {
        Ticket { core, seq }
    }

    /// Whether the work has finished.
    pub fn is_done(&self) -> bool {
        self.core.progress().is_done(self.seq)
    }

    /// Waits for the work.
    ///
    /// # Errors
    /// The first failure of the stream.
    pub fn wait(&self) -> Result<()> {
        self.core.wait(self.seq, None).map(|_| ())
    }

    /// Waits for the work, for at most `limit`.
    ///
    /// # Errors
    /// `Timeout` when the limit has passed, or the first failure of the stream.
    pub fn wait_timeout(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(limit);
        if self.core.wait(self.seq, deadline)? {
            return Ok(());
        }
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Err(Error::Timeout { op: "Ticket::wait_timeout", millis })
    }
}
