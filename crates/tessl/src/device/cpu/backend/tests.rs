//! Queues, libraries and memory of the CPU device.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use super::*;
use crate::args::RmsNormArgs;
use crate::device::cpu::KernelCall;
use crate::device::{FaultRecord, Fence};
use crate::error::FaultKind;
use crate::memory::{Allocation, BufferKind, Memory};
use crate::stream::{Access, Batch, Binding, Encoded, Rect, Work};
use smallvec::smallvec;
use std::time::{Duration, Instant};

fn buffer(device: &Arc<dyn Backend>, bytes: u64) -> Arc<Allocation> {
    Memory::new(device.clone(), None, 0, 0).allocate(bytes, BufferKind::Hot).expect("room")
}

fn bind(memory: &Arc<Allocation>, rect: Rect, access: Access) -> Binding {
    Binding { memory: Arc::clone(memory), rect, access }
}

fn bytes(memory: &Allocation) -> &[u8] {
    let raw = memory.raw();
    let len = usize::try_from(raw.bytes).expect("small");
    // SAFETY: no command runs.
    unsafe { std::slice::from_raw_parts(raw.host, len) }
}

fn push(batch: &mut Batch, seq: u64, label: &'static str, work: Work, args: &[u8], bindings: &[Binding]) {
    batch.push(Encoded { label, work, args, bindings: bindings.iter().cloned().collect() }, seq, false);
}

fn kernel(pipeline: PipelineId) -> Work {
    Work::Kernel { pipeline, grid: [1; 3], threads: 1, shared_bytes: 0 }
}

unsafe fn fails(_: &KernelCall<'_>) {
    panic!("on purpose");
}

unsafe fn reports(call: &KernelCall<'_>) {
    call.pool().run(4, &|_| call.fault(FaultKind::BadLength, 5, -3));
}

#[test]
fn fill_and_copy_touch_their_rectangles_only() {
    let device = open_with(None, None).expect("a CPU");
    let queue = device.queue().expect("a queue");
    let (a, b) = (buffer(&device, 64), buffer(&device, 64));
    let mut batch = Batch::default();
    let rect = Rect { offset: 3, width: 2, pitch: 8, rows: 4 };
    for (memory, byte) in [(&a, 1), (&b, 2)] {
        push(&mut batch, 1, "fill", Work::Fill(byte), &[], &[bind(memory, Rect::linear(0, 64), Access::Write)]);
    }
    push(&mut batch, 2, "fill", Work::Fill(9), &[], &[bind(&a, rect, Access::Write)]);
    let to = Rect { offset: 1, width: 2, pitch: 5, rows: 4 };
    push(&mut batch, 3, "copy", Work::Copy, &[], &[bind(&a, rect, Access::Read), bind(&b, to, Access::Write)]);
    // Overlapping, upwards and dense: as memmove.
    let (low, high) = (Rect::linear(40, 10), Rect::linear(43, 10));
    push(&mut batch, 4, "fill", Work::Fill(7), &[], &[bind(&b, Rect::linear(40, 1), Access::Write)]);
    push(&mut batch, 5, "copy", Work::Copy, &[], &[bind(&b, low, Access::Read), bind(&b, high, Access::Write)]);
    // SAFETY: every rectangle lies inside its buffer.
    unsafe { queue.submit(&batch, &[], 1) }.expect("runs");
    let inside = |i: usize, r: Rect| {
        let (o, w, p) = (r.offset as usize, r.width as usize, r.pitch as usize);
        i >= o && (i - o) % p < w && (i - o) / p < r.rows as usize
    };
    for i in 0..64 {
        assert_eq!(bytes(&a)[i], if inside(i, rect) { 9 } else { 1 }, "a[{i}]");
        let want = if i == 40 || i == 43 {
            7
        } else if inside(i, to) {
            9
        } else {
            2
        };
        assert_eq!(bytes(&b)[i], want, "b[{i}]");
    }
}

#[test]
fn built_in_kernels_run_from_a_batch() {
    let device = open_with(None, None).expect("a CPU");
    let queue = device.queue().expect("a queue");
    let suffix = if device.profile().isa == Isa::Amx { "avx512" } else { device.profile().name };
    let id = device.pipeline(&KernelKey::builtin("norm", format!("rms_norm_f32_f32_{suffix}"))).expect("built in");
    let (x, y) = (buffer(&device, 16), buffer(&device, 16));
    let args = RmsNormArgs { rows: 1, r1: 1, r2: 1, n: 4, weight_offset: 1.0, ..Default::default() };
    let mut batch = Batch::default();
    let whole = Rect::linear(0, 16);
    // 0x40404040 is 3.0039; all equal, so that the norm is 1 (and the weights, x again, add to it).
    push(&mut batch, 1, "fill", Work::Fill(0x40), &[], &[bind(&x, whole, Access::Write)]);
    let bindings = [bind(&x, whole, Access::Read), bind(&x, whole, Access::Read), bind(&y, whole, Access::Write)];
    push(&mut batch, 2, "rms_norm", kernel(id), bytemuck::bytes_of(&args), &bindings);
    // SAFETY: the operands are as the arguments say.
    unsafe { queue.submit(&batch, &[], 1) }.expect("runs");
    let want = f32::from_bits(0x4040_4040) + 1.0;
    for y in bytes(&y).chunks(4) {
        let y = f32::from_ne_bytes(y.try_into().expect("four bytes"));
        assert!((y - want).abs() < 1e-5, "{y} {want}");
    }
}

#[test]
fn a_panicking_kernel_is_an_error_and_ends_its_batch() {
    let device = open_with(None, Some(2)).expect("a CPU");
    device.add_library(Library::cpu("mine").kernel("fails", fails)).expect("new names");
    let id = device.pipeline(&KernelKey { module: "mine".into(), name: "fails".into(), constants: smallvec![] });
    let queue = device.queue().expect("a queue");
    let a = buffer(&device, 8);
    let mut batch = Batch::default();
    let whole = || [bind(&a, Rect::linear(0, 8), Access::Write)];
    push(&mut batch, 1, "fill", Work::Fill(1), &[], &whole());
    push(&mut batch, 2, "bad_op", kernel(id.expect("added")), &[], &[]);
    push(&mut batch, 3, "fill", Work::Fill(2), &[], &whole());
    // SAFETY: the fills are inside the buffer.
    let error = unsafe { queue.submit(&batch, &[], 3) }.expect_err("the kernel panics");
    assert_eq!(error.to_string(), "bad_op: a CPU kernel panicked: on purpose");
    assert_eq!(bytes(&a), [1; 8], "later commands were skipped");
    assert_eq!(queue.completed(), 3, "waiters go on");
    batch.clear();
    // SAFETY: nothing to run.
    unsafe { queue.submit(&batch, &[], 4) }.expect("the queue goes on");
}

#[test]
fn faults_carry_the_sequence_number() {
    let device = open_with(None, Some(2)).expect("a CPU");
    device.add_library(Library::cpu("mine").kernel("reports", reports)).expect("new names");
    let key = KernelKey { module: "mine".into(), name: "reports".into(), constants: smallvec![] };
    let id = device.pipeline(&key).expect("added");
    let queue = device.queue().expect("a queue");
    let mut batch = Batch::default();
    push(&mut batch, (1 << 32) + 7, "op", kernel(id), &[], &[]);
    push(&mut batch, (1 << 32) + 8, "op", kernel(id), &[], &[]);
    // SAFETY: the kernel touches nothing.
    unsafe { queue.submit(&batch, &[], 1) }.expect("a fault is no error of submission");
    assert_eq!(queue.take_fault(), Some(FaultRecord { seq: 7, kind: FaultKind::BadLength, index: 5, value: -3 }));
    assert_eq!(queue.take_fault(), None);
}

#[test]
fn names_are_taken_once_and_libraries_are_added_whole() {
    let device = open_with(None, None).expect("a CPU");
    let builtin = "rms_norm_f32_f32_scalar";
    for taken in [builtin, "twice"] {
        let library = Library::cpu("l").kernel("fresh", fails).kernel("twice", fails).kernel(taken, fails);
        let error = device.add_library(library).expect_err("a name is taken");
        assert_eq!(error.to_string(), format!("add_library: kernel `{taken}` exists already"));
        let key = KernelKey { module: "l".into(), name: "fresh".into(), constants: smallvec![] };
        let error = device.pipeline(&key).expect_err("nothing was added");
        assert_eq!(error.to_string(), "pipeline: kernel `l/fresh` does not exist");
    }
    assert!(matches!(device.add_library(Library::cuda_source("c", "")), Err(Error::Unsupported { .. })));
}

#[test]
fn waits_end_at_their_deadline_and_fences_order_queues() {
    let device = open_with(None, None).expect("a CPU");
    let (first, second) = (device.queue().expect("a queue"), device.queue().expect("a queue"));
    assert!(!first.wait(1, Some(Instant::now() + Duration::from_millis(5))).expect("no failure"));
    std::thread::scope(|scope| {
        let fence = Fence { queue: Arc::clone(&first), value: 1 };
        let waiter = scope.spawn(|| {
            // SAFETY: nothing to run.
            unsafe { second.submit(&Batch::default(), &[fence], 1) }.expect("runs");
            first.completed()
        });
        std::thread::sleep(Duration::from_millis(5));
        // SAFETY: nothing to run.
        unsafe { first.submit(&Batch::default(), &[], 1) }.expect("runs");
        assert_eq!(waiter.join().expect("no panic"), 1);
    });
}

#[test]
fn memory_beyond_the_machine_is_refused_and_the_device_stays_usable() {
    let device = open_with(None, None).expect("a CPU");
    for bytes in [u64::MAX, 1 << 50] {
        assert!(matches!(device.allocate(bytes, MemoryUse::Device), Err(Error::OutOfMemory { .. })));
    }
    for bytes in [0, 1, 3 << 20] {
        let raw = device.allocate(bytes, MemoryUse::Staging).expect("room");
        assert_eq!(raw.device % 64, 0);
        // SAFETY: not in use.
        unsafe { device.free(raw) };
    }
}

#[test]
fn an_instruction_set_can_be_forced() {
    for profile in PROFILES {
        match open_with(Some(profile.isa), Some(1)) {
            Ok(device) => assert_eq!(device.profile().name, profile.name),
            Err(error) => {
                assert!(!isa::usable(profile.isa));
                assert!(matches!(error, Error::Unavailable(_)), "{error}");
            }
        }
    }
    assert!(PROFILES.iter().any(|p| p.name == info().profile));
}
