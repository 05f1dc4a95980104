//! What a CPU kernel receives.

use super::pool::Pool;
use crate::error::FaultKind;
use crate::stream::Access;
use std::sync::Mutex;

/// A CPU kernel: a function of argument block, bindings and pool.
///
/// It is unsafe to call because it follows the pointers of its bindings; the core vouches for them, and for own
/// kernels the caller of [`Stream::dispatch`](crate::Stream::dispatch) does.
pub type KernelFn = unsafe fn(&KernelCall<'_>);

/// One operand: a pointer to its first byte and the bytes from there to the end of what may be touched.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes that may be touched, from `ptr`.
    pub bytes: usize,
    /// Whether they may be written.
    pub access: Access,
}

// SAFETY: a kernel shares its bindings among the pool's threads; that they write disjoint parts is the kernel's duty.
unsafe impl Send for Bound {}
// SAFETY: as for Send.
unsafe impl Sync for Bound {}

/// The first fault a kernel reported.
#[derive(Debug, Default)]
pub struct FaultCell(Mutex<Option<(FaultKind, u64, i64)>>);

impl FaultCell {
    /// Keeps the first report.
    pub(crate) fn set(&self, kind: FaultKind, index: u64, value: i64) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert((kind, index, value));
    }

    /// Takes the report.
    pub(crate) fn take(&self) -> Option<(FaultKind, u64, i64)> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).take()
    }
}

/// One launch of a CPU kernel.
#[derive(Debug)]
pub struct KernelCall<'a> {
    pub(crate) args: &'a [u8],
    pub(crate) bindings: &'a [Bound],
    pub(crate) pool: &'a Pool,
    pub(crate) fault: &'a FaultCell,
}

impl<'a> KernelCall<'a> {
    /// The argument block as `T`.
    ///
    /// # Panics
    /// When the block has another size than `T`; the panic becomes an [`Error::Panicked`](crate::Error::Panicked).
    pub fn args<T: bytemuck::AnyBitPattern>(&self) -> &'a T {
        bytemuck::from_bytes(self.args)
    }

    /// The `i`-th operand.
    ///
    /// # Panics
    /// When there are fewer operands.
    pub fn binding(&self, i: usize) -> Bound {
        self.bindings[i]
    }

    /// Number of operands.
    pub fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Whether there are no operands.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// The threads to work with.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Reports invalid data; the first report of a command reaches the caller at the next wait.
    pub fn fault(&self, kind: FaultKind, index: u64, value: i64) {
        self.fault.set(kind, index, value);
    }
}
