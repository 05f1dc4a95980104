//! The Metal device: plans and kernel sources. Running on Apple hardware is not part of this version; the kernels and
//! their plans run on the simulator of `tessl-sim`, which implements the same contract.

mod nn;
mod plan;
mod tables;

pub use plan::plan;
pub use tables::{GemmRow, PROFILES, gemm_rows};

use super::{Backend, DeviceInfo, DeviceKind};
use crate::error::{Error, Result};
use std::sync::Arc;

const MISSING: &str = "this version of tessl does not drive Metal yet";
const ELSEWHERE: &str = "Metal exists on Apple systems only";

pub(super) fn enumerate() -> Vec<DeviceInfo> {
    if cfg!(target_vendor = "apple") { vec![info(0)] } else { Vec::new() }
}

pub(super) fn info(index: u32) -> DeviceInfo {
    let missing = if cfg!(target_vendor = "apple") { MISSING } else { ELSEWHERE };
    DeviceInfo {
        id: format!("metal:{index}"),
        kind: DeviceKind::Metal,
        name: "Apple GPU".to_owned(),
        profile: "m5-pro".to_owned(),
        memory_bytes: 0,
        unified_memory: true,
        driver: String::new(),
        missing: Some(missing.to_owned()),
        help: Some("use the device `cpu`".to_owned()),
    }
}

pub(super) fn open(index: u32) -> Result<Arc<dyn Backend>> {
    let info = info(index);
    Err(Error::unavailable(info.id, info.missing.unwrap_or_default(), info.help))
}
