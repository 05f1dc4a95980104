//! Commands: the one record that every device executes.

use crate::device::PipelineId;
use crate::memory::Allocation;
use crate::tensor::to_usize;
use smallvec::SmallVec;
use std::sync::Arc;

/// How a command touches a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes, perhaps after reading.
    Write,
}

/// Bytes of one allocation: `rows` runs of `width` bytes, `pitch` bytes apart, from `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rect {
    /// First byte.
    pub offset: u64,
    /// Bytes of one run.
    pub width: u64,
    /// Distance between runs; at least `width` when there are several.
    pub pitch: u64,
    /// Number of runs.
    pub rows: u64,
}

impl Rect {
    /// `bytes` bytes from `offset`.
    pub fn linear(offset: u64, bytes: u64) -> Self {
        Rect { offset, width: bytes, pitch: bytes, rows: 1 }
    }

    /// One past the last byte.
    pub fn end(&self) -> u64 {
        if self.rows == 0 || self.width == 0 {
            return self.offset;
        }
        self.offset + self.pitch * (self.rows - 1) + self.width
    }

    /// Whether both touch a common byte. Equal pitches are compared exactly, otherwise the bounding ranges count.
    pub fn overlaps(&self, other: &Rect) -> bool {
        if self.offset >= other.end() || other.offset >= self.end() {
            return false;
        }
        if self.pitch != other.pitch || self.rows == 1 || other.rows == 1 || self.pitch == 0 {
            return true;
        }
        // Same pitch: runs meet where the column ranges do, in this row distance or the next one.
        let (a, b) = if self.offset <= other.offset { (self, other) } else { (other, self) };
        let distance = b.offset - a.offset;
        let (rows, column) = (distance / a.pitch, distance % a.pitch);
        let meets_here = column < a.width && rows < a.rows;
        let meets_next = column + b.width > a.pitch && rows + 1 < a.rows;
        meets_here || meets_next
    }
}

/// One operand of a command.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The memory; held until the device has finished with the command.
    pub memory: Arc<Allocation>,
    /// The bytes touched. `rect.offset` is where the kernel's pointer starts.
    pub rect: Rect,
    /// How they are touched.
    pub access: Access,
}

impl Binding {
    /// The address the kernel receives.
    pub fn device_address(&self) -> u64 {
        self.memory.raw().device + self.rect.offset
    }

    /// The host address of the same byte; null where memory is not mapped.
    pub fn host_address(&self) -> *mut u8 {
        let base = self.memory.raw().host;
        if base.is_null() { base } else { base.wrapping_add(to_usize(self.rect.offset)) }
    }
}

/// What a command does.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs a kernel. Bindings become its buffer arguments in order, the argument block comes last.
    Kernel {
        /// Compiled kernel.
        pipeline: PipelineId,
        /// Threadgroups.
        grid: [u32; 3],
        /// Threads of one threadgroup (one-dimensional).
        threads: u32,
        /// Dynamic threadgroup memory, in bytes.
        shared_bytes: u32,
    },
    /// Copies binding 0 to binding 1: `rows` runs of equal `width` on both sides, each with its own pitch.
    Copy,
    /// Fills binding 0 with a byte.
    Fill(u8),
}

/// One command of a batch. Arguments and bindings are ranges of the batch's arenas.
#[derive(Clone, Debug)]
pub struct Command {
    /// Position in the stream; 0 inside a captured tape.
    pub seq: u64,
    /// Name for errors, traces and profilers.
    pub label: &'static str,
    /// What to do.
    pub work: Work,
    /// All earlier commands of the stream must have finished first.
    pub barrier: bool,
    /// First byte of the argument block.
    pub(crate) args_start: u32,
    /// Bytes of the argument block.
    pub(crate) args_len: u32,
    /// First binding.
    pub(crate) bindings_start: u32,
    /// Number of bindings.
    pub(crate) bindings_len: u32,
}

/// Argument blocks start at multiples of this.
pub const ARGS_ALIGN: usize = 64;
/// An argument block has this many bytes at most.
pub const MAX_ARGS: usize = 4096;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; ARGS_ALIGN]);

/// Commands that are submitted together. Recycled, so that steady encoding allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    commands: Vec<Command>,
    args: Vec<Line>,
    bindings: Vec<Binding>,
}

impl Batch {
    /// The commands in order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// A command's argument block, aligned to [`ARGS_ALIGN`].
    pub fn args(&self, command: &Command) -> &[u8] {
        let start = command.args_start as usize;
        &bytemuck_bytes(&self.args)[start..start + command.args_len as usize]
    }

    /// Every argument block; a command's starts at its `args_start`.
    #[cfg_attr(not(any(target_vendor = "apple", tessl_mock)), expect(dead_code, reason = "for graphs on Metal"))]
    pub(crate) fn all_args(&self) -> &[u8] {
        bytemuck_bytes(&self.args)
    }

    /// A command's operands.
    pub fn bindings(&self, command: &Command) -> &[Binding] {
        let start = command.bindings_start as usize;
        &self.bindings[start..start + command.bindings_len as usize]
    }

    /// Every operand of every command.
    pub fn all_bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Empties the batch, releasing what it retained and keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.commands.clear();
        self.args.clear();
        self.bindings.clear();
    }

    /// Appends a command.
    pub(crate) fn push(&mut self, encoded: Encoded<'_>, seq: u64, barrier: bool) {
        debug_assert!(encoded.args.len() <= MAX_ARGS);
        let args_start = self.args.len() * ARGS_ALIGN;
        for chunk in encoded.args.chunks(ARGS_ALIGN) {
            let mut line = Line([0; ARGS_ALIGN]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            self.args.push(line);
        }
        let bindings_start = self.bindings.len();
        let bindings_len = encoded.bindings.len();
        self.bindings.extend(encoded.bindings);
        self.commands.push(Command {
            seq,
            label: encoded.label,
            work: encoded.work,
            barrier,
            args_start: index(args_start),
            args_len: index(encoded.args.len()),
            bindings_start: index(bindings_start),
            bindings_len: index(bindings_len),
        });
    }
}

/// Batches are flushed long before their arenas reach 4 GiB.
fn index(n: usize) -> u32 {
    u32::try_from(n).expect("INVARIANT: a batch is bounded by flush_every")
}

fn bytemuck_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: `Line` is plain bytes without padding, so its memory is `len * ARGS_ALIGN` initialised bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), std::mem::size_of_val(lines)) }
}

/// A command on its way into a batch.
pub(crate) struct Encoded<'a> {
    pub(crate) label: &'static str,
    pub(crate) work: Work,
    pub(crate) args: &'a [u8],
    pub(crate) bindings: SmallVec<[Binding; 6]>,
}

#[cfg(test)]
mod tests {
    use super::Rect;

    /// The definition: some byte is in both.
    fn touches(a: &Rect, b: &Rect) -> bool {
        let bytes = |r: &Rect| -> Vec<u64> {
            (0..r.rows)
                .flat_map(|i| (0..r.width).map(move |j| (i, j)))
                .map(|(i, j)| r.offset + i * r.pitch + j)
                .collect()
        };
        let (a, b) = (bytes(a), bytes(b));
        a.iter().any(|x| b.contains(x))
    }

    #[test]
    fn overlap_is_exact_for_equal_pitches_and_never_missed_otherwise() {
        let mut exact = 0;
        for pitch in [4u64, 6] {
            for (oa, ob) in (0..14).flat_map(|a| (0..14).map(move |b| (a, b))) {
                for (wa, wb) in [(1u64, 1u64), (2, 3), (4, 2), (4, 4)] {
                    for (ra, rb) in [(1u64, 1u64), (2, 2), (3, 1), (2, 4)] {
                        let a = Rect { offset: oa, width: wa, pitch, rows: ra };
                        let b = Rect { offset: ob, width: wb, pitch, rows: rb };
                        let (got, want) = (a.overlaps(&b), touches(&a, &b));
                        assert!(got || !want, "missed: {a:?} {b:?}");
                        if ra > 1 && rb > 1 {
                            assert_eq!(got, want, "{a:?} {b:?}");
                            exact += 1;
                        }
                    }
                }
            }
        }
        assert!(exact > 1000);
    }

    #[test]
    fn q_k_v_views_of_one_buffer_do_not_conflict() {
        let view = |column: u64| Rect { offset: column * 64, width: 64, pitch: 192, rows: 10 };
        assert!(!view(0).overlaps(&view(1)) && !view(1).overlaps(&view(2)) && !view(2).overlaps(&view(0)));
        assert!(view(0).overlaps(&Rect { offset: 60, width: 64, pitch: 192, rows: 10 }));
    }
}
