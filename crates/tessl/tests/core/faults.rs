//! Failures injected through a device that wraps another one.

use crate::support::within_a_minute;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tessl::device::{Backend, FaultRecord, Fence, MemoryUse, PipelineId, Queue, RawMemory};
use tessl::plan::KernelKey;
use tessl::stream::Batch;
use tessl::{
    BufferKind, DType, Device, DeviceInfo, DeviceProfile, Error, FaultKind, Gemm, GpuRuntime, Library, RuntimeOptions,
    Scope, Tensor,
};

/// What goes wrong, and when.
#[derive(Default)]
struct Plan {
    allocations_left: AtomicU64,
    limit_allocations: AtomicBool,
    fail_submit: AtomicBool,
    fail_wait: AtomicBool,
    lose_device: AtomicBool,
    fault: AtomicBool,
    /// 1: the next submission does not complete by itself. 2: somebody may wait for it. 3: somebody waits. The submission
    /// after that completes both, with a fault, and takes its time before it returns.
    overlap: AtomicU64,
}

/// A device with real memory on which every kernel does nothing; failures on command.
struct Faulty {
    plan: Arc<Plan>,
    info: DeviceInfo,
    profile: DeviceProfile,
    pipelines: AtomicU64,
}

struct FaultyQueue {
    plan: Arc<Plan>,
    completed: AtomicU64,
    first: AtomicU64,
}

impl Backend for Faulty {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    fn allocate(&self, bytes: u64, _: MemoryUse) -> tessl::Result<RawMemory> {
        if self.plan.limit_allocations.load(Ordering::SeqCst)
            && self
                .plan
                .allocations_left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_err()
        {
            return Err(Error::OutOfMemory { requested: bytes, in_use: 0, limit: 0 });
        }
        let words = usize::try_from(bytes.div_ceil(8)).expect("small");
        let host = Box::into_raw(vec![0u64; words].into_boxed_slice()).cast::<u8>();
        Ok(RawMemory { device: host as u64, host, bytes, token: words as u64 })
    }

    unsafe fn free(&self, memory: RawMemory) {
        let words = usize::try_from(memory.token).expect("small");
        // SAFETY: made by `allocate` with this length, freed once (reason 4 of the contract).
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory.host.cast::<u64>(), words)) });
    }

    fn pipeline(&self, _: &KernelKey) -> tessl::Result<PipelineId> {
        Ok(PipelineId(u32::try_from(self.pipelines.fetch_add(1, Ordering::SeqCst)).expect("few")))
    }

    fn add_library(&self, _: Library) -> tessl::Result<()> {
        Err(Error::unsupported("add_library", "own kernels", "faulty"))
    }

    fn queue(&self) -> tessl::Result<Arc<dyn Queue>> {
        let (completed, first) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(FaultyQueue { plan: self.plan.clone(), completed, first }))
    }
}

impl Queue for FaultyQueue {
    unsafe fn submit(&self, batch: &Batch, _: &[Fence], signal: u64) -> tessl::Result<()> {
        match self.plan.overlap.load(Ordering::SeqCst) {
            1 => {
                self.plan.overlap.store(2, Ordering::SeqCst);
                return Ok(());
            }
            3 => {
                self.plan.fault.store(true, Ordering::SeqCst);
                self.completed.fetch_max(signal, Ordering::SeqCst);
                self.plan.overlap.store(0, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(200));
            }
            _ => {}
        }
        self.completed.fetch_max(signal, Ordering::SeqCst);
        if let Some(command) = batch.commands().first() {
            self.first.store(command.seq, Ordering::SeqCst);
            if self.plan.lose_device.load(Ordering::SeqCst) {
                return Err(Error::device(command.label, 700, "the device is lost", Scope::Runtime));
            }
            if self.plan.fail_submit.swap(false, Ordering::SeqCst) {
                return Err(Error::device(command.label, 719, "the launch failed", Scope::Stream));
            }
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::SeqCst)
    }

    fn wait(&self, _: u64, _: Option<Instant>) -> tessl::Result<bool> {
        if self.plan.overlap.compare_exchange(2, 3, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            while self.plan.overlap.load(Ordering::SeqCst) == 3 {
                std::thread::yield_now();
            }
        }
        if self.plan.fail_wait.swap(false, Ordering::SeqCst) {
            return Err(Error::device("wait", 999, "the wait failed", Scope::Stream));
        }
        Ok(true)
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        let seq = u32::try_from(self.first.load(Ordering::SeqCst)).expect("small");
        let fault = self.plan.fault.swap(false, Ordering::SeqCst);
        fault.then_some(FaultRecord { seq, kind: FaultKind::IndexOutOfRange, index: 3, value: -7 })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn faulty() -> (GpuRuntime, Arc<Plan>) {
    let model = GpuRuntime::with_device(&Device::null("m2")).unwrap();
    let plan = Arc::new(Plan::default());
    let info = DeviceInfo { id: "faulty".into(), unified_memory: true, ..model.info().clone() };
    let device = Faulty { plan: plan.clone(), info, profile: model.profile().clone(), pipelines: AtomicU64::new(0) };
    (GpuRuntime::with_backend(Arc::new(device), &RuntimeOptions::new()).unwrap(), plan)
}

fn operands(rt: &GpuRuntime) -> [Tensor; 3] {
    let tensors = [[2, 3], [3, 4], [2, 4]].map(|shape| rt.alloc_tensor_f32(&shape).unwrap());
    rt.synchronize().unwrap();
    tensors
}

/// candle#3850: a failed command reaches the caller, with its label, and no stale data follows.
#[test]
fn candle_3850() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    plan.fail_submit.store(true, Ordering::SeqCst);
    Gemm::new(&a, &b, &c).run().unwrap();
    let error = c.read::<f32>().unwrap_err();
    assert!(matches!(&error, Error::Device(e) if e.op == "gemm" && e.code == 719), "{error:?}");
    assert_eq!(error.scope(), Scope::Stream);
    // The cause is told once; from then on calls name it.
    let again = c.read::<f32>().unwrap_err();
    assert!(matches!(again, Error::Poisoned { failed: "gemm", .. }), "{again}");
    let count = rt.dispatch_count();
    let refused = Gemm::new(&a, &b, &c).run().unwrap_err();
    assert!(matches!(refused, Error::Poisoned { op: "gemm", failed: "gemm" }), "{refused}");
    assert!(refused.to_string().contains("recover"), "{refused}");
    assert_eq!(rt.dispatch_count(), count);
    assert!(rt.synchronize().is_err());
    rt.recover().unwrap();
    Gemm::new(&a, &b, &c).run().unwrap();
    rt.synchronize().unwrap();
    c.read::<f32>().unwrap();
}

#[test]
fn a_failed_wait_reaches_the_caller() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    Gemm::new(&a, &b, &c).run().unwrap();
    plan.fail_wait.store(true, Ordering::SeqCst);
    let error = rt.synchronize().unwrap_err();
    assert!(matches!(&error, Error::Device(e) if e.code == 999), "{error:?}");
    rt.recover().unwrap();
    rt.synchronize().unwrap();
}

#[test]
fn a_lost_device_cannot_be_recovered() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    plan.lose_device.store(true, Ordering::SeqCst);
    Gemm::new(&a, &b, &c).run().unwrap();
    let error = rt.synchronize().unwrap_err();
    assert_eq!(error.scope(), Scope::Runtime);
    assert!(rt.recover().is_err());
    assert!(Gemm::new(&a, &b, &c).run().is_err());
    within_a_minute("dropping a runtime whose device is lost", move || drop((a, b, c, rt)));
}

#[test]
fn faults_of_kernels_are_found_at_the_next_wait() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    Gemm::new(&a, &b, &c).run().unwrap();
    plan.fault.store(true, Ordering::SeqCst);
    let error = rt.synchronize().unwrap_err();
    let right = matches!(error, Error::Fault { kind: FaultKind::IndexOutOfRange, index: 3, value: -7, .. });
    assert!(right, "{error:?}");
    assert!(error.to_string().contains("reported by a later call"), "{error}");
}

/// A reader learns of a fault also while another thread is submitting to the stream.
#[test]
fn a_fault_is_not_lost_behind_a_submission() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    let other = rt.alloc_tensor_f32(&[2, 4]).unwrap();
    rt.synchronize().unwrap();
    rt.set_async_encode(false);
    plan.overlap.store(1, Ordering::SeqCst);
    Gemm::new(&a, &b, &c).run().unwrap();
    let reader = std::thread::spawn(move || c.read::<f32>());
    let started = Instant::now();
    while plan.overlap.load(Ordering::SeqCst) != 3 {
        assert!(started.elapsed() < Duration::from_secs(60), "the reader does not wait");
        std::thread::yield_now();
    }
    Gemm::new(&a, &b, &other).run().unwrap();
    let error = reader.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::Fault { index: 3, value: -7, .. }), "{error:?}");
}

/// A failed allocation is a typed error after the cache was given back, and the next call works.
#[test]
fn allocation_failure_leaves_the_runtime_usable() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    let cached = rt.uninit(DType::F32, &[1 << 16], BufferKind::Cold).unwrap();
    drop(cached);
    assert!(rt.memory_stats().cached > 0);
    plan.limit_allocations.store(true, Ordering::SeqCst);
    let before = rt.memory_stats();
    let error = rt.uninit(DType::F32, &[100], BufferKind::Hot).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { requested: 512, .. }), "{error:?}");
    let after = rt.memory_stats();
    assert_eq!((after.live, after.live_count, after.cached), (before.live, before.live_count, 0));
    // Without an allocation, work goes on; a write needs staging memory and says so.
    Gemm::new(&a, &b, &c).run().unwrap();
    rt.synchronize().unwrap();
    assert!(matches!(a.write(&[0.0f32; 6]).unwrap_err(), Error::OutOfMemory { .. }));
    assert!(matches!(rt.stream().unwrap().reserve(1 << 20).unwrap_err(), Error::OutOfMemory { .. }));
    plan.limit_allocations.store(false, Ordering::SeqCst);
    a.write(&[1.0f32; 6]).unwrap();
    Gemm::new(&a, &b, &c).run().unwrap();
    a.read::<f32>().unwrap();
    // The second try after the cache was trimmed succeeds.
    drop(rt.uninit(DType::F32, &[1 << 16], BufferKind::Cold).unwrap());
    plan.allocations_left.store(1, Ordering::SeqCst);
    plan.limit_allocations.store(true, Ordering::SeqCst);
    rt.uninit(DType::F32, &[100], BufferKind::Hot).unwrap();
}

/// Failing streams do not stop others, but nobody works on what they should have written.
#[test]
fn other_streams_do_not_use_failed_results() {
    let (rt, plan) = faulty();
    let [a, b, c] = operands(&rt);
    let d = rt.alloc_tensor_f32(&[2, 4]).unwrap();
    let e = rt.alloc_tensor_f32(&[4, 4]).unwrap();
    rt.synchronize().unwrap();
    let (mut s, mut t) = (rt.stream().unwrap(), rt.stream().unwrap());
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    // Encoded before the failure is known.
    Gemm::new(&c, &e, &d).run_on(&mut t).unwrap();
    plan.fail_submit.store(true, Ordering::SeqCst);
    s.synchronize().unwrap_err();
    assert!(t.synchronize().is_err(), "t's input was never written");
    t.recover().unwrap();
    // Encoded afterwards.
    assert!(matches!(Gemm::new(&c, &e, &d).run_on(&mut t).unwrap_err(), Error::Poisoned { .. }));
    Gemm::new(&a, &b, &d).run_on(&mut t).unwrap();
    t.synchronize().unwrap();
    s.recover().unwrap();
    Gemm::new(&a, &b, &c).run_on(&mut s).unwrap();
    Gemm::new(&c, &e, &d).run_on(&mut t).unwrap();
    t.synchronize().unwrap();
}
