//! Where libraries are, when no options say so.

use crate::RuntimeOptions;
use std::env;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The folder or file that the last runtime was told to use.
static LIBRARY: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Keeps a runtime's choice for calls that have no options, such as listing devices.
pub(crate) fn remember(options: &RuntimeOptions) {
    if let Some(path) = &options.cuda_lib {
        *LIBRARY.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
    }
}

/// The remembered choice, else `TESSL_CUDA_LIB`: devices are listed before there are options.
pub(super) fn library() -> Option<PathBuf> {
    let remembered = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner).clone();
    remembered.or_else(|| env::var_os("TESSL_CUDA_LIB").filter(|v| !v.is_empty()).map(PathBuf::from))
}
