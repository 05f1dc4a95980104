//! The CPU device.

mod call;
mod pool;

use super::*;
use crate::plan::{Desc, Plan};
pub use call::{Bound, FaultCell, KernelCall, KernelFn};
pub use pool::Pool;
pub const PROFILES: &[DeviceProfile] = &[];
pub fn plan(_d: &Desc, _p: &DeviceProfile) -> Result<Plan> {
    Err(crate::Error::unsupported("x", "y", "cuda"))
}
pub(super) fn info() -> DeviceInfo {
    todo!()
}
pub(super) fn open_with(_i: Option<Isa>, _o: Option<usize>) -> Result<Arc<dyn Backend>> {
    Err(crate::Error::unavailable("cpu", "no", None))
}
