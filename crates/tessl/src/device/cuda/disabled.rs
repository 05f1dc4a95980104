//! This device in a build without the `cuda` feature.

use crate::device::{Backend, DeviceInfo, DeviceKind};
use crate::error::{Error, Result};
use std::sync::Arc;

const REASON: &str = "built without the `cuda` feature";
const HELP: &str = "build tessl with its default features, or with `--features cuda`";

/// One entry that says so.
pub(crate) fn enumerate() -> Vec<DeviceInfo> {
    vec![info(0)]
}

/// The same for any index.
pub(crate) fn info(index: u32) -> DeviceInfo {
    DeviceInfo {
        id: format!("cuda:{index}"),
        kind: DeviceKind::Cuda,
        name: "NVIDIA".to_owned(),
        profile: String::new(),
        memory_bytes: 0,
        unified_memory: false,
        driver: String::new(),
        missing: Some(REASON.to_owned()),
        help: Some(HELP.to_owned()),
    }
}

/// Always an error.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn open(index: u32, _options: &crate::RuntimeOptions) -> Result<Arc<dyn Backend>> {
    Err(Error::unavailable(format!("cuda:{index}"), REASON, Some(HELP.to_owned())))
}

/// There is nothing to look for.
pub(crate) fn remember(_options: &crate::RuntimeOptions) {}
