//! Every kernel against a loop in f64.

mod cases;
mod harness;
mod past_caches;
