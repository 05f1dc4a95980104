//! Everything that calls Metal. Objects of Metal 4 only: no `MTLCommandQueue`, so nothing tracks hazards, retains
//! resources or checks bounds for us.
//!
//! - A queue ([`queue`]) owns an `MTL4CommandQueue` and a shared event. Each batch becomes one command buffer with one
//!   compute encoder ([`encode`]), on an allocator of its own that is reset when the batch has finished.
//! - What may not run side by side is separated by the barriers that the core asks for; across streams, events.
//! - Memory is resident through one residency set ([`residency`]), changed by commits in bulk.
//! - Kernels are compiled when first used and kept on disk as Metal archives ([`archive`]).
//! - Arguments go through chunks of a 16 MiB ring ([`arena`]), because Metal 4 binds addresses only.
//! - Captured batches have their arguments in a buffer of their own ([`graph`]), and on request their commands in an
//!   indirect command buffer ([`indirect`]).
//! - A batch has finished when Metal's commit feedback says so ([`track`]): the event alone does not tell errors.

mod archive;
mod arena;
mod backend;
mod commit;
mod encode;
mod graph;
mod indirect;
mod objects;
mod probe;
mod queue;
mod registry;
mod residency;
mod tensor_probe;
mod track;

pub use probe::{Options, with_device};
pub(in crate::device) use probe::{enumerate, info, open};
