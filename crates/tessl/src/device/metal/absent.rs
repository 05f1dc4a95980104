//! Systems without Metal: the device is there by name, and says why it cannot be used.

use crate::device::{Backend, DeviceInfo, DeviceKind};
use crate::error::{Error, Result};
use crate::options::RuntimeOptions;
use std::sync::Arc;

pub(in crate::device) fn enumerate() -> Vec<DeviceInfo> {
    Vec::new()
}

pub(in crate::device) fn info(index: u32) -> DeviceInfo {
    DeviceInfo {
        id: format!("metal:{index}"),
        kind: DeviceKind::Metal,
        name: "Apple GPU".to_owned(),
        profile: "m5-pro".to_owned(),
        memory_bytes: 0,
        unified_memory: true,
        driver: String::new(),
        missing: Some("Metal exists on Apple systems only".to_owned()),
        help: Some("use the device `cpu`".to_owned()),
    }
}

pub(in crate::device) fn open(index: u32, _: &RuntimeOptions) -> Result<Arc<dyn Backend>> {
    let info = info(index);
    Err(Error::unavailable(info.id, info.missing.unwrap_or_default(), info.help))
}
