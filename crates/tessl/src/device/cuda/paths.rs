//! Where libraries and compiled kernels are, when no options say so.

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

/// The folder of the kernel cache; an empty path in the options turns it off.
pub(super) fn cache(options: &RuntimeOptions) -> Option<PathBuf> {
    match &options.cache_dir {
        Some(path) => (!path.as_os_str().is_empty()).then(|| path.clone()),
        None => user_cache(|name| env::var_os(name).map(PathBuf::from)),
    }
}

/// The user's cache folder, as the XDG base directory specification has it, or Windows.
fn user_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|p| p.is_absolute());
    let base = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
    };
    base.map(|p| p.join("tessl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn the_cache_is_the_user_s_unless_options_say_otherwise() {
        let of = |xdg: &'static str, home: &'static str| {
            user_cache(move |name| match name {
                "XDG_CACHE_HOME" if !xdg.is_empty() => Some(xdg.into()),
                "HOME" if !home.is_empty() => Some(home.into()),
                _ => None,
            })
        };
        assert_eq!(of("/x", "/u"), Some("/x/tessl".into()));
        assert_eq!(of("", "/u"), Some("/u/.cache/tessl".into()));
        assert_eq!(of("relative", "/u"), Some("/u/.cache/tessl".into()));
        assert_eq!(of("", ""), None);
        assert_eq!(cache(&RuntimeOptions::new().cache_dir("")), None);
        assert_eq!(cache(&RuntimeOptions::new().cache_dir("/c")), Some("/c".into()));
    }
}
