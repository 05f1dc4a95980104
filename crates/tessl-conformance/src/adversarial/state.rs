//! Calls in the wrong state: streams, captures, steps, libraries, names.

use super::{Bench, Kind, Result, tensors, text};
use std::time::Duration;
use tessl::device::cpu::KernelCall;
use tessl::{Activation, DType, Device, Gemm, GemmBackend, GpuRuntime, Library, RuntimeOptions};

pub(super) fn streams(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let mut stream = rt.stream().map_err(text)?;
    bench.accept("nothing to wait for", || {
        stream.synchronize()?;
        stream.synchronize_timeout(Duration::ZERO)?;
        stream.commit()?.wait()?;
        stream.recover()
    });
    let event = stream.record();
    let mut second = rt.stream().map_err(text)?;
    bench.accept("an event of nothing", || second.wait_event(&event));
    bench.accept("its own event", || stream.wait_event(&event));
    drop(stream);
    bench.accept("an event of a dropped stream", || {
        second.wait_event(&event)?;
        second.synchronize()
    });
    tensors::options(bench);
    Ok(())
}

pub(super) fn captures(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let (a, b, c) = (bench.a.clone(), bench.b.clone(), bench.zeros(DType::F32, &[2, 4])?);
    let mut stream = rt.stream().map_err(text)?;
    let graph = stream.capture(|s| Gemm::new(&a, &b, &c).run_on(s)).map_err(text)?;
    let mut inside = |what: &str, words: &[&str], call: &dyn Fn(&mut tessl::Stream) -> tessl::Result<()>| {
        bench.reject(what, Kind::Capture, words, || stream.capture(call).map(|_| ()));
    };
    inside("capture in a capture", &["Stream::capture"], &|s| s.capture(|_| Ok(())).map(|_| ()));
    inside("synchronize", &["Stream::synchronize", "capturing"], &|s| s.synchronize());
    inside("commit", &["Stream::commit"], &|s| s.commit().map(|_| ()));
    inside("replay", &["Graph::replay"], &|s| graph.replay(s).map(|_| ()));
    inside("run() instead of run_on()", &["gemm", "run_on"], &|_| Gemm::new(&a, &b, &c).run());
    inside("write() instead of write_on()", &["Tensor::write", "run_on"], &|_| a.write(&[1.0f32; 6]));
    let event = rt.stream().map_err(text)?.record();
    inside("wait_event", &["Stream::wait_event"], &|s| s.wait_event(&event));
    // A bump tensor would be dead at the replay.
    bench.reject("a Bump tensor in a graph", Kind::Capture, &["gemm", "Bump"], || {
        stream.step(|s| {
            let temp = s.bump(DType::F32, &[2, 4])?;
            s.capture(|s| Gemm::new(&a, &b, &temp).run_on(s)).map(|_| ())
        })
    });
    // A capture that fails or panics leaves the stream usable and keeps nothing.
    bench.reject("a failing closure", Kind::Shape, &["gemm"], || {
        stream.capture(|s| Gemm::new(&a, &b, &c).run_on(s).and_then(|()| Gemm::new(&a, &a, &c).run_on(s)))
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.capture(|_| -> tessl::Result<()> { panic!("a test panics inside a capture") })
    }));
    if panicked.is_ok() {
        return Err("the panic was swallowed".into());
    }
    bench.accept("after a panic", || {
        Gemm::new(&a, &b, &c).run()?;
        stream.synchronize()
    });
    let mut foreign = bench.other.stream().map_err(text)?;
    bench.reject("replay on a foreign stream", Kind::WrongRuntime, &["Graph::replay"], || graph.replay(&mut foreign));
    bench.accept("replay", || graph.replay(&mut stream)?.wait());
    bench.accept("an empty graph", || {
        let empty = stream.capture(|_| Ok(()))?;
        assert!(empty.is_empty());
        empty.replay(&mut stream)?.wait()
    });
    Ok(())
}

pub(super) fn steps(bench: &mut Bench<'_>) -> Result {
    let mut stream = bench.env.rt.stream().map_err(text)?;
    bench.reject("bump outside", Kind::Capture, &["Stream::bump", "step"], || stream.bump(DType::F32, &[1]));
    bench.reject("step in a step", Kind::Capture, &["Stream::step"], || stream.step(|s| s.step(|_| Ok(()))));
    bench.reject("size", Kind::Shape, &["Stream::bump"], || stream.step(|s| s.bump(DType::F32, &[usize::MAX, 2])));
    bench.accept("empty and many", || {
        stream.step(|s| {
            s.bump(DType::F32, &[0])?;
            for i in 0..100 {
                s.bump(DType::F16, &[1000 * i])?;
            }
            Ok(())
        })
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.step(|_| -> tessl::Result<()> { panic!("a test panics inside a step") })
    }));
    if panicked.is_ok() {
        return Err("the panic was swallowed".into());
    }
    bench.accept("after a panic", || stream.step(|s| s.bump(DType::F32, &[4]).map(|_| ())));
    Ok(())
}

unsafe fn nothing(_: &KernelCall<'_>) {}

pub(super) fn libraries(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    if bench.env.computes {
        bench.reject("kernel", Kind::Name, &["does not exist"], || rt.kernel("no-such-library", "k"));
    }
    let file = std::path::Path::new("/nonexistent/x.metallib");
    if rt.info().kind != tessl::DeviceKind::Metal {
        bench.reject("metallib", Kind::Unsupported, &["not supported"], || rt.add_metallib(file));
    }
    if rt.info().kind == tessl::DeviceKind::Cpu && bench.env.computes {
        // Names stay taken for the life of a runtime, so each run takes a fresh one.
        let name = format!("adversarial-{}", rt.dispatch_count());
        let library = || Library::cpu(name.clone()).kernel("k", nothing);
        bench.accept("first", || rt.add_library(library()));
        bench.reject("second of the same name", Kind::Name, &["already"], || rt.add_library(library()));
        let twice = Library::cpu(format!("{name}-twice")).kernel("k", nothing).kernel("k", nothing);
        bench.reject("a name twice", Kind::Name, &["`k`"], || rt.add_library(twice));
        bench.reject("missing kernel", Kind::Name, &["does not exist"], || rt.kernel(&name, "q"));
        let cuda = Library::cuda_source("cuda", "");
        bench.reject("CUDA source", Kind::Unsupported, &["not supported"], || rt.add_library(cuda));
        let kernel = rt.kernel(&name, "k").map_err(text)?;
        let mut stream = rt.stream().map_err(text)?;
        let mut wrong = |what: &str, call: &dyn Fn(&mut tessl::Stream) -> tessl::Result<()>| {
            bench.reject(what, Kind::TooLarge, &["k: "], || call(&mut stream));
        };
        let big = [[0u64; 32]; 32];
        wrong("arguments", &|s| {
            // SAFETY: the kernel touches nothing, and the call is refused.
            unsafe { s.dispatch(&kernel, |b| b.args(&big)) }
        });
        wrong("grid", &|s| {
            // SAFETY: the kernel touches nothing, and the call is refused.
            unsafe { s.dispatch(&kernel, |b| b.grid([1, 70_000, 1])) }
        });
        wrong("threads", &|s| {
            // SAFETY: the kernel touches nothing, and the call is refused.
            unsafe { s.dispatch(&kernel, |b| b.threads(1 << 20)) }
        });
        let mut foreign = bench.other.stream().map_err(text)?;
        // SAFETY: refused.
        bench.reject("foreign stream", Kind::WrongRuntime, &["`kernel`"], || unsafe {
            foreign.dispatch(&kernel, |b| b.threads(1))
        });
    }
    Ok(())
}

/// Text that names devices, types and options.
pub(super) fn names(bench: &mut Bench<'_>) -> Result {
    for name in ["", "gpu7", "cuda:", "cuda:x", "cuda:-1", "cpu:1", "null", "null:nothing", "cuda:4294967296", "CPU"] {
        bench.reject(name, Kind::Parse, &["device"], || name.parse::<Device>());
    }
    for name in ["", "F32", "f64", "float"] {
        bench.reject(name, Kind::Parse, &["dtype"], || name.parse::<DType>());
    }
    bench.reject("activation", Kind::Parse, &["activation"], || "swish".parse::<Activation>());
    bench.reject("backend", Kind::Parse, &["backend"], || "cublas".parse::<GemmBackend>());
    bench.reject("profile", Kind::Parse, &["profile"], || GpuRuntime::with_device(&Device::null("h9000")));
    let var = |k: &str, v: &str| RuntimeOptions::new().from_vars([(k.to_owned(), v.to_owned())]);
    for (key, value) in [("TESSL_THREADS", "many"), ("TESSL_MEMORY_LIMIT", "-1"), ("TESSL_FLUSH_EVERY", "1.5")] {
        bench.reject(key, Kind::Parse, &[key, value], || var(key, value));
    }
    bench.reject("huge number", Kind::Parse, &[], || var("TESSL_CACHE_LIMIT", "99999999999G"));
    // A device that is not there is data: why, and what to do.
    for device in [Device::cuda(63), Device::metal(63)] {
        let info = device.info();
        if info.missing.is_none() {
            return Err(format!("{device} exists?"));
        }
        bench.reject(&device.to_string(), Kind::Unavailable, &["not available"], || GpuRuntime::with_device(&device));
    }
    Ok(())
}
