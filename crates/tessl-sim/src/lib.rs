//! Runs the Metal kernels of tessl on the CPU: x86-64 Linux and clang++ instead of a Mac.
//!
//! The texts of `crates/tessl/kernels/{simt,metal}` are compiled as C++ against a stand-in for `<metal_stdlib>`. Each
//! GPU thread is a fiber; simdgroup operations and barriers are rendezvous, so that divergence, a missing thread at a
//! barrier and lanes in different operations are errors. Threadgroup memory and matrix registers start as NaN. Lanes,
//! simdgroups and threadgroups run in the order of a [`Schedule`]; a kernel is tested under all three, because a
//! missing barrier may be harmless in one of them.
//!
//! What it cannot show: how Apple's compiler reads a text, fast-math differences, timing, and a race that gives the
//! right result in every order tried.
//!
//! # Sanitizers
//!
//! `TESSL_SIM_SANITIZE=1 cargo test --profile ci -p tessl-sim --target-dir target/asan` builds the kernels with
//! AddressSanitizer and UndefinedBehaviorSanitizer and links clang's runtime into each executable that depends on this
//! crate. An out-of-range or misaligned access ends the process with a report. It needs `libclang-rt-19-dev`. A
//! separate target folder keeps both builds.

mod device;
mod launch;
pub mod lint;
mod module;
mod toolchain;

pub use device::{SimDevice, open};
pub use launch::{KernelInfo, Launch, Schedule, available, kernels, launch, sanitized};
pub use module::Module;
