//! stub
use super::*;
use crate::plan::{Desc, Plan};
pub const PROFILES: &[DeviceProfile] = &[];
pub fn plan(_d: &Desc, _p: &DeviceProfile) -> Result<Plan> {
    Err(crate::Error::unsupported("x", "y", "cuda"))
}
pub(super) fn enumerate() -> Vec<DeviceInfo> {
    vec![]
}
pub(super) fn info(i: u32) -> DeviceInfo {
    let mut x = super::cpu::info();
    x.missing = Some(format!("{i}"));
    x
}
pub(super) fn open(_i: u32, _o: &crate::RuntimeOptions) -> Result<Arc<dyn Backend>> {
    Err(crate::Error::unavailable("cuda", "no", None))
}
