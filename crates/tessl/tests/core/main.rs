//! Behaviour of the core: streams, graphs, memory, threads, own kernels, faults survived.

mod faults;
mod graph;
mod kernels;
mod memory;
mod process;
mod streams;
mod support;
mod threads;
mod types;
