//! Every kernel against a loop in f64.

mod beside;
mod cases;
mod harness;
mod past_caches;
