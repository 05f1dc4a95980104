//! Facts about the process: forks, and names that live for ever.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once};

/// Forks between this process and the one that first asked.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTER: Once = Once::new();

/// Which process made something: device handles do not survive a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    pub(crate) fn now() -> Self {
        REGISTER.call_once(|| {
            #[cfg(unix)]
            {
                extern "C" fn in_child() {
                    FORKS.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: the handler only touches an atomic, which is allowed after fork.
                unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            }
        });
        Generation(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_this_process(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// The same text with static lifetime. Each distinct name is kept once; names come from the caller's kernel libraries.
pub(crate) fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(|e| e.into_inner());
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(kept);
    kept
}
