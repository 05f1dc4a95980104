//! One module per command.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod gemm;
pub(crate) mod generate;
pub(crate) mod plan;
mod plan_tiles;
pub(crate) mod verify;
