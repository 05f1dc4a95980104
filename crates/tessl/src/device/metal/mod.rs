//! Apple GPUs: Metal 4 command queues, argument tables and residency sets; kernels compiled at run time.
//!
//! Plans, profiles and sources are pure and always present. What calls Metal is in `host`, on Apple systems and, with
//! `tessl_mock`, over the mock driver of `crates/tessl-sim/mock`, which runs the same code on Linux.

#[cfg(not(any(target_vendor = "apple", tessl_mock)))]
mod absent;
#[cfg(any(target_vendor = "apple", tessl_mock))]
mod host;
mod nn;
mod plan;
#[cfg(any(target_vendor = "apple", tessl_mock, test))]
mod source;
#[cfg(any(target_vendor = "apple", tessl_mock, test))]
#[cfg_attr(not(any(target_vendor = "apple", tessl_mock)), allow(dead_code, reason = "tested where it is not used"))]
mod steps;
mod tables;
#[cfg(any(target_vendor = "apple", tessl_mock, test))]
#[cfg_attr(not(any(target_vendor = "apple", tessl_mock)), allow(dead_code, reason = "tested where it is not used"))]
mod transfer;

#[cfg(not(any(target_vendor = "apple", tessl_mock)))]
pub(super) use absent::{enumerate, info, open};
#[cfg(any(target_vendor = "apple", tessl_mock))]
pub use host::{Options, with_device};
#[cfg(any(target_vendor = "apple", tessl_mock))]
pub(super) use host::{enumerate, info, open};
pub use plan::plan;
pub use tables::{GemmRow, PROFILES, gemm_rows};
