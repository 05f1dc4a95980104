//! Failures of the device: each is a typed error with the command's label, hits only what depends on it, and leaves
//! memory safe.

mod common;

use common::mock;
use std::time::{Duration, Instant};
use tessl::device::metal::Options;
use tessl::{BufferKind, DType, Error, ErrorKind, FaultKind, Gemm, GpuRuntime, RuntimeOptions, Scope, Stream, Tensor};
use tessl_metal_mock::{CommitFault, Mock, Run};
use tessl_sim::Schedule;

const GOOD: CommitFault = CommitFault { after: 0, code: 0, signals: true, answers: true, runs: true };
const TIMEOUT: isize = 1;
const REMOVED: isize = 4;
const INTERNAL: isize = 6;

fn open(mock: &Mock) -> Run {
    let options =
        Options { stall: Duration::from_millis(400), feedback: Duration::from_millis(100), ..Options::default() };
    mock.open_with(&RuntimeOptions::new(), options).unwrap()
}

fn operands(rt: &GpuRuntime) -> [Tensor; 3] {
    let values = |n: usize| (0..n).map(|i| (i % 5) as f32).collect::<Vec<_>>();
    let a = rt.from_slice(&values(12), &[3, 4]).unwrap();
    let b = rt.from_slice(&values(20), &[4, 5]).unwrap();
    let c = rt.alloc_tensor_f32(&[3, 5]).unwrap();
    rt.synchronize().unwrap();
    [a, b, c]
}

fn product(rt: &GpuRuntime) -> Vec<f32> {
    let [a, b, c] = operands(rt);
    Gemm::new(&a, &b, &c).run().unwrap();
    c.read::<f32>().unwrap()
}

/// A submission fails; the error names the op, the stream recovers, and results are right again.
fn one_failure(mock: &Mock, fault: CommitFault) -> Error {
    let run = open(mock);
    let rt = &run.rt;
    let [a, b, c] = operands(rt);
    mock.inject(|f| f.commit = Some(fault));
    Gemm::new(&a, &b, &c).run().unwrap();
    let error = c.read::<f32>().unwrap_err();
    assert_eq!(error.scope(), Scope::Stream, "{error}");
    assert!(matches!(&error, Error::Device(e) if e.op == "gemm"), "{error:?}");
    // Told once; from then on calls name the cause, and nothing stale is read.
    assert!(matches!(c.read::<f32>().unwrap_err(), Error::Poisoned { failed: "gemm", .. }));
    let count = rt.dispatch_count();
    assert!(matches!(Gemm::new(&a, &b, &c).run().unwrap_err(), Error::Poisoned { .. }));
    assert_eq!(rt.dispatch_count(), count);
    // Another stream goes on, but not with what the failed command should have written.
    let mut other = rt.stream().unwrap();
    let d = rt.alloc_tensor_f32(&[3, 5]).unwrap_or_else(|_| rt.uninit(DType::F32, &[3, 5], BufferKind::Hot).unwrap());
    Gemm::new(&a, &b, &d).run_on(&mut other).unwrap();
    other.synchronize().unwrap();
    assert!(Gemm::new(&c, &b.t().unwrap(), &a).run_on(&mut other).is_err());
    rt.recover().unwrap();
    assert_eq!(product(rt), product(rt));
    drop((a, b, c, d, other, run));
    assert_eq!(mock.findings(), Vec::<String>::new());
    error
}

#[test]
fn a_failed_commit_is_reported_with_its_label() {
    let error = one_failure(&mock(Schedule::Forward), CommitFault { code: INTERNAL, ..GOOD });
    assert!(matches!(&error, Error::Device(e) if e.code == 6 && e.message.contains("gemm")), "{error}");
    one_failure(&mock(Schedule::Backward), CommitFault { code: TIMEOUT, runs: false, ..GOOD });
}

#[test]
fn an_error_without_its_event_is_reported_as_well() {
    one_failure(&mock(Schedule::Forward), CommitFault { code: INTERNAL, signals: false, runs: false, ..GOOD });
}

#[test]
fn feedback_that_never_comes_is_a_failure() {
    let error = one_failure(&mock(Schedule::Forward), CommitFault { answers: false, ..GOOD });
    assert!(error.to_string().contains("no end"), "{error}");
}

#[test]
fn an_event_that_never_comes_does_no_harm() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    let wanted = product(&run.rt);
    mock.inject(|f| f.commit = Some(CommitFault { after: 1, signals: false, ..GOOD }));
    assert_eq!(product(&run.rt), wanted);
    assert_eq!(product(&run.rt), wanted);
    drop(run);
    assert_eq!(mock.findings(), Vec::<String>::new());
}

/// A stream that was already waiting for a failed one must not pass its results off as good.
#[test]
fn what_depends_on_a_failure_fails() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    let rt = &run.rt;
    let [a, b, c] = operands(rt);
    let (e, d) = (rt.uninit(DType::F32, &[3, 4], BufferKind::Hot).unwrap(), b.t().unwrap());
    let (mut s, mut t, mut u): (Stream, Stream, Stream) =
        (rt.stream().unwrap(), rt.stream().unwrap(), rt.stream().unwrap());
    mock.inject(|f| f.commit = Some(CommitFault { code: INTERNAL, runs: false, ..GOOD }));
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    s.commit().unwrap();
    Gemm::new(&c, &d, &e).run_on(&mut t).unwrap();
    t.commit().unwrap();
    let f = rt.uninit(DType::F32, &[3, 5], BufferKind::Hot).unwrap();
    Gemm::new(&a, &b, &f).run_on(&mut u).unwrap();
    // Nobody has looked at `s` yet.
    assert!(t.synchronize().is_err());
    u.synchronize().unwrap();
    assert!(s.synchronize().is_err());
    s.recover().unwrap();
    t.recover().unwrap();
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    Gemm::new(&c, &d, &e).run_on(&mut t).unwrap();
    t.synchronize().unwrap();
    drop((a, b, c, d, e, f, s, t, u, run));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn a_removed_device_ends_the_runtime() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    let rt = run.rt.clone();
    let [a, b, c] = operands(&rt);
    mock.inject(|f| f.commit = Some(CommitFault { code: REMOVED, runs: false, ..GOOD }));
    Gemm::new(&a, &b, &c).run().unwrap();
    let error = rt.synchronize().unwrap_err();
    assert_eq!((error.scope(), error.kind()), (Scope::Runtime, ErrorKind::Device), "{error}");
    assert!(rt.recover().is_err());
    assert!(Gemm::new(&a, &b, &c).run().is_err());
    drop((a, b, c, run, rt));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

/// The GPU never ends: a typed error within the time set, no hang, and no memory is freed under it.
#[test]
fn a_hang_is_given_up() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    let rt = run.rt.clone();
    let [a, b, c] = operands(&rt);
    let hang = CommitFault { signals: false, answers: false, runs: false, ..GOOD };
    mock.inject(|f| f.commit = Some(hang));
    let (mut s, mut other) = (rt.stream().unwrap(), rt.stream().unwrap());
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    assert!(matches!(s.synchronize_timeout(Duration::from_millis(20)), Err(Error::Timeout { .. })));
    let start = Instant::now();
    let error = s.synchronize().unwrap_err();
    assert_eq!(error.scope(), Scope::Runtime, "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(s.recover().is_err());
    assert!(other.synchronize().is_ok());
    drop(other);
    drop((a, b, c, s, run, rt));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn allocation_failure_leaves_the_runtime_usable() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    let rt = &run.rt;
    let wanted = product(rt);
    mock.inject(|f| f.buffers_left = Some(0));
    let error = rt.uninit(DType::F32, &[1 << 20], BufferKind::Hot).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    mock.inject(|f| f.buffers_left = None);
    assert_eq!(product(rt), wanted);
    // More than the device has is refused before Metal is asked.
    let error = rt.uninit(DType::F32, &[1 << 32], BufferKind::Hot).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

#[test]
fn objects_that_metal_refuses_are_typed_errors() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    mock.inject(|f| f.no_objects = true);
    let error = run.rt.stream().expect_err("no queue");
    assert!(matches!(&error, Error::Device(e) if e.op == "newMTL4CommandQueue"), "{error:?}");
    let [a, b, c] = operands(&run.rt);
    let mut s = run.rt.stream().unwrap();
    mock.inject(|f| f.no_objects = true);
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    let error = s.synchronize().unwrap_err();
    assert!(matches!(&error, Error::Device(e) if e.op == "newCommandAllocator"), "{error:?}");
    s.recover().unwrap();
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    s.synchronize().unwrap();
    drop((a, b, c, s, run));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn the_compilers_text_reaches_the_caller() {
    let mock = mock(Schedule::Forward);
    let run = open(&mock);
    let [a, b, c] = operands(&run.rt);
    mock.inject(|f| f.compile = Some("program_source:7: error: no such type".to_owned()));
    let error = Gemm::new(&a, &b, &c).run().unwrap_err();
    assert!(error.to_string().contains("no such type") && error.scope() == Scope::Call, "{error}");
    mock.inject(|f| f.pipeline = Some("too many registers".to_owned()));
    let error = Gemm::new(&a, &b, &c).run().unwrap_err();
    assert!(error.to_string().contains("registers") && error.to_string().contains("gemm_simd"), "{error}");
    assert_eq!(run.rt.dispatch_count(), 0);
    Gemm::new(&a, &b, &c).run().unwrap();
    run.rt.synchronize().unwrap();
}

/// What a kernel reports comes back with the op's label, also from a graph.
#[test]
fn faults_of_kernels_come_back() {
    let mock = mock(Schedule::Backward);
    let run = open(&mock);
    let rt = &run.rt;
    let table = rt.from_slice(&[1.0f32; 12], &[4, 3]).unwrap();
    let ids = rt.from_slice(&[1u32, 77], &[2]).unwrap();
    let out = rt.alloc_tensor_f32(&[2, 3]).unwrap();
    tessl::nn::Embedding::new(&table, &ids, &out).run().unwrap();
    let error = out.read::<f32>().unwrap_err();
    let right =
        matches!(error, Error::Fault { op: "embedding", kind: FaultKind::IndexOutOfRange, index: 1, value: 77 });
    assert!(right, "{error:?}");
    rt.recover().unwrap();
    let mut s = rt.stream().unwrap();
    let graph = s.capture(|s| tessl::nn::Embedding::new(&table, &ids, &out).run_on(s)).unwrap();
    graph.replay(&mut s).unwrap();
    assert!(matches!(s.synchronize().unwrap_err(), Error::Fault { value: 77, .. }));
    s.recover().unwrap();
    ids.write(&[1u32, 3]).unwrap();
    graph.replay(&mut s).unwrap();
    s.synchronize().unwrap();
    assert_eq!(out.read::<f32>().unwrap(), [1.0; 6]);
    assert_eq!(mock.findings(), Vec::<String>::new());
}
