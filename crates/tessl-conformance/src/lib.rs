//! Conformance of tessl's devices: cases and a runner as a library.
//!
//! `cargo test` runs them on the CPU device, `tessl verify` on any device, a bundle on machines without Rust, and the tests
//! of the simulator on simulated GPUs: the same code everywhere. A case never knows its device; it learns tiles and
//! thresholds by planning ([`rows`]), so that a new table row is tested on both sides without a new test.
//!
//! ```
//! use tessl_conformance::{Env, Suite};
//! let rt = tessl::GpuRuntime::with_device(&tessl::Device::cpu())?;
//! let report = Suite::op("tensor").run(&Env::new(rt), |case, outcome| println!("{}: {outcome:?}", case.name));
//! assert!(report.is_ok(), "{:#?}", report.failed);
//! # Ok::<(), tessl::Error>(())
//! ```

mod adversarial;
pub mod attention;
pub mod cache;
mod data;
pub mod elementwise;
pub mod embed;
mod env;
mod experts;
pub mod fuzz;
pub mod gemm;
pub mod golden;
mod known;
pub mod mlp;
mod movement;
pub mod norm;
pub mod qkv;
pub mod quant;
pub mod reduce;
mod report;
pub mod rope;
pub mod rows;
pub mod rowwise;
mod sample;
pub mod skip;
mod suite;
mod tensor;

pub use data::format_of;
pub use env::{Env, GEMM_PAIRS, NORM_PAIRS, Outcome, SMALL_BUDGET};
pub use report::{Covered, Entry, Report};
pub use suite::{Case, Suite, run};
