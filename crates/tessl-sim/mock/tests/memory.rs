//! Memory: storage modes, residency, imports, lifetimes, the arena, many threads.

mod common;

use common::{mock, scenario};
use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tessl::device::metal::Options;
use tessl::device::{Backend, FaultRecord, Fence, MemoryUse, PipelineId, Queue, RawMemory};
use tessl::plan::KernelKey;
use tessl::stream::Batch;
use tessl::{DType, DeviceInfo, DeviceProfile, Gemm, GpuRuntime, Library, Result, RuntimeOptions};
use tessl_metal_mock::{Config, Mock};
use tessl_sim::Schedule;

#[test]
fn private_storage_goes_through_staging() {
    let good = mock(Schedule::Forward);
    let wanted = scenario(&good.open(&RuntimeOptions::new()).unwrap().rt).unwrap().numbers;
    let mock = Mock::new(Config { unified: false, schedule: Schedule::Backward, ..Config::default() });
    let run = mock.open(&RuntimeOptions::new()).unwrap();
    assert!(!run.rt.info().unified_memory);
    assert_eq!(scenario(&run.rt).unwrap().numbers, wanted);
    drop(run);
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn imported_memory_is_used_in_place_and_let_go() {
    let mock = mock(Schedule::Random(3));
    let run = mock.open(&RuntimeOptions::new()).unwrap();
    let rt = &run.rt;
    let owner = Arc::new(vec![0.5f32; 1000]);
    let pointer = owner.as_ptr().cast_mut();
    // SAFETY: the vector lives as long as `owner`, is not written by others, and reads wait.
    let all = unsafe { rt.from_external(pointer.cast(), 4000, owner.clone()) }.unwrap().bitcast(DType::F32).unwrap();
    // SAFETY: as above; it overlaps the first import.
    let part = unsafe { rt.from_external(pointer.wrapping_add(30).cast(), 400, owner.clone()) };
    let part = part.unwrap().bitcast(DType::F32).unwrap();
    let ones = rt.from_slice(&[1.0f32; 100], &[100]).unwrap();
    tessl::nn::Add::new(&part, &ones, &part).run().unwrap();
    let sum = rt.alloc_tensor_f32(&[1000]).unwrap();
    tessl::nn::Add::new(&all, &all, &sum).run().unwrap();
    let got = sum.read::<f32>().unwrap();
    assert!(got.iter().enumerate().all(|(i, v)| *v == if (30..130).contains(&i) { 3.0 } else { 1.0 }));
    drop((all, part));
    rt.synchronize().unwrap();
    drop(run);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(owner[30], 1.5);
    assert_eq!(mock.findings(), Vec::<String>::new());
}

/// Arguments of one batch that are more than the ring holds: the batch is cut, and the ring is waited for.
#[test]
fn a_batch_larger_than_the_arena_is_cut() {
    const COMMANDS: usize = 4200;
    let mock = mock(Schedule::Forward);
    let run = mock.open(&RuntimeOptions::new().flush_every(16_000)).unwrap();
    let rt = &run.rt;
    let source = "#include \"tessl.h\"\nstruct Big { uint v[1024]; };\n\
        KERNEL(put, 32, OUT(uint, y, 0), ARGS(Big, p, 1)) {\n  if (gpu_tid.x == 0) y[0] = p.v[0] + p.v[1023];\n}\n";
    rt.add_library(Library::metal_source("mine", source)).unwrap();
    let kernel = rt.kernel("mine", "put").unwrap();
    let out = rt.uninit(DType::U32, &[COMMANDS, 64], tessl::BufferKind::Hot).unwrap();
    let mut s = rt.stream().unwrap();
    for i in 0..COMMANDS {
        let mut args = [0u32; 1024];
        (args[0], args[1023]) = (u32::try_from(i).unwrap(), 7);
        let place = out.narrow(0, i, 1).unwrap();
        // SAFETY: the kernel writes the first element of its binding.
        unsafe { s.dispatch(&kernel, |b| b.output(&place).args(&args).grid([1, 1, 1]).threads(32)) }.unwrap();
    }
    s.synchronize().unwrap();
    let got = out.read::<u32>().unwrap();
    assert!((0..COMMANDS).all(|i| got[i * 64] as usize == i + 7));
    let counts = mock.counts();
    assert!(counts.commits > 1 && counts.encoder_barriers == 0, "{counts:?}");
    assert_eq!(mock.findings(), Vec::<String>::new());
}

#[test]
fn sixteen_threads_with_a_stream_each() {
    let mock = mock(Schedule::Random(5));
    let run = mock.open(&RuntimeOptions::new()).unwrap();
    let rt = &run.rt;
    let (m, k) = (20, 24);
    let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32).collect();
    let a = rt.from_slice(&a, &[m, k]).unwrap();
    let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let work = |_| {
            scope.spawn(|| {
                let mut s = rt.stream().unwrap();
                let (c, d) = (rt.alloc_tensor_f32(&[m, m]).unwrap(), rt.alloc_tensor_f32(&[m, k]).unwrap());
                for _ in 0..4 {
                    Gemm::new(&a, &a.t().unwrap(), &c).run_on(&mut s).unwrap();
                    Gemm::new(&c, &a, &d).alpha(0.5).run_on(&mut s).unwrap();
                    s.commit().unwrap();
                }
                s.synchronize().unwrap();
                d.read::<f32>().unwrap()
            })
        };
        let threads: Vec<_> = (0..16).map(work).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(results.windows(2).all(|w| w[0] == w[1]));
    drop((a, run));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

/// Allocators, command buffers and resident memory do not pile up.
#[test]
fn nothing_grows() {
    let mock = mock(Schedule::Forward);
    let run = mock.open(&RuntimeOptions::new()).unwrap();
    let rt = &run.rt;
    let a = rt.from_slice(&[1.0f32; 64], &[8, 8]).unwrap();
    let c = rt.alloc_tensor_f32(&[8, 8]).unwrap();
    let round = || {
        Gemm::new(&a, &a, &c).run().unwrap();
        drop(rt.uninit(DType::F32, &[100], tessl::BufferKind::Hot).unwrap());
        rt.synchronize().unwrap();
    };
    (0..5).for_each(|_| round());
    let before = mock.counts();
    (0..200).for_each(|_| round());
    let after = mock.counts();
    assert_eq!((after.allocators, after.pipelines), (before.allocators, before.pipelines));
    assert_eq!(after.commits - before.commits, 200);
    let mut s = rt.stream().unwrap();
    Gemm::new(&a, &a, &c).run_on(&mut s).unwrap();
    s.synchronize().unwrap();
    assert!(s.device_time().is_some_and(|time| !time.is_zero()));
    assert_eq!(mock.findings(), Vec::<String>::new());
}

/// A backend that returns a batch's memory as soon as it is submitted.
struct Hasty {
    inner: Arc<dyn Backend>,
    gone: Arc<Mutex<Vec<u64>>>,
}

struct HastyQueue {
    inner: Arc<dyn Queue>,
    backend: Arc<dyn Backend>,
    gone: Arc<Mutex<Vec<u64>>>,
}

impl Queue for HastyQueue {
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()> {
        // SAFETY: the caller's promises.
        let outcome = unsafe { self.inner.submit(batch, fences, signal) };
        for binding in batch.all_bindings() {
            let raw = *binding.memory.raw();
            let mut gone = self.gone.lock().unwrap();
            if !gone.contains(&raw.token) {
                gone.push(raw.token);
                // SAFETY: none: the device may still use it, which is the mistake that this makes.
                unsafe { self.backend.free(raw) };
            }
        }
        outcome
    }

    fn completed(&self) -> u64 {
        self.inner.completed()
    }

    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        self.inner.wait(signal, deadline)
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        self.inner.take_fault()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Hasty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn profile(&self) -> &DeviceProfile {
        self.inner.profile()
    }

    fn allocate(&self, bytes: u64, usage: MemoryUse) -> Result<RawMemory> {
        self.inner.allocate(bytes, usage)
    }

    unsafe fn free(&self, memory: RawMemory) {
        if !self.gone.lock().unwrap().contains(&memory.token) {
            // SAFETY: the caller's promise.
            unsafe { self.inner.free(memory) };
        }
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        self.inner.pipeline(key)
    }

    fn add_library(&self, library: Library) -> Result<()> {
        self.inner.add_library(library)
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        let (inner, backend) = (self.inner.queue()?, self.inner.clone());
        Ok(Arc::new(HastyQueue { inner, backend, gone: self.gone.clone() }))
    }
}

/// The driver sees memory that is released before its commands have ended.
#[test]
fn memory_released_in_flight_is_found() {
    let mock = mock(Schedule::Forward);
    let backend = Hasty { inner: mock.backend(Options::default()).unwrap(), gone: Arc::default() };
    let rt = GpuRuntime::with_backend(Arc::new(backend), &RuntimeOptions::new()).unwrap();
    let mut s = rt.stream().unwrap();
    let [a, c] = [(); 2].map(|()| rt.uninit(DType::F32, &[8, 8], tessl::BufferKind::Hot).unwrap());
    Gemm::new(&a, &a, &c).run_on(&mut s).unwrap();
    s.commit().unwrap();
    // The next submission commits the residency set, and with it the release.
    let [d, e] = [(); 2].map(|()| rt.uninit(DType::F32, &[8, 8], tessl::BufferKind::Hot).unwrap());
    Gemm::new(&d, &d, &e).run_on(&mut s).unwrap();
    s.commit().unwrap();
    let findings = mock.findings();
    assert!(findings.iter().any(|f| f.contains("was released while")), "{findings:?}");
}
