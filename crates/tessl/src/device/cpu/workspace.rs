//! Memory that one thread packs into: small enough to stay in its second-level cache from call to call.

use super::memory;
use std::cell::Cell;

/// Bytes for packed rows of A.
pub(super) const A_BYTES: usize = 1 << 20;
/// Bytes for f32 sums.
pub(super) const ACC_BYTES: usize = 1 << 20;
/// Bytes for packed columns of a small B.
pub(super) const B_BYTES: usize = 512 << 10;

const BYTES: usize = A_BYTES + ACC_BYTES + B_BYTES;

/// The calling thread's memory, aligned to 4096 bytes.
#[derive(Clone, Copy)]
pub(super) struct Workspace {
    base: *mut u8,
}

struct Owner(Cell<*mut u8>);

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.0.get().is_null() {
            // SAFETY: mapped in `Workspace::get` with this size; the thread has ended its last kernel.
            unsafe { memory::unmap(self.0.get(), BYTES) };
        }
    }
}

thread_local! {
    static WORKSPACE: Owner = const { Owner(Cell::new(std::ptr::null_mut())) };
}

impl Workspace {
    /// This thread's workspace, mapped at its first use and kept until the thread ends. Two bodies that use it must
    /// not be active on one thread at once; a kernel body starts no region, so they are not.
    ///
    /// # Panics
    /// When the system has no memory for it.
    pub(super) fn get() -> Self {
        WORKSPACE.with(|owner| {
            if owner.0.get().is_null() {
                owner.0.set(memory::map(BYTES).expect("no memory for the workspace of a thread"));
            }
            Workspace { base: owner.0.get() }
        })
    }

    /// [`A_BYTES`] bytes.
    pub(super) fn a(self) -> *mut u8 {
        self.base
    }

    /// [`ACC_BYTES`] bytes.
    pub(super) fn acc(self) -> *mut f32 {
        self.base.wrapping_add(A_BYTES).cast()
    }

    /// [`B_BYTES`] bytes.
    pub(super) fn b(self) -> *mut u8 {
        self.base.wrapping_add(A_BYTES + ACC_BYTES)
    }
}
