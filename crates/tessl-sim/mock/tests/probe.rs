//! Which devices there are, what is missing, and libraries of the caller's.

mod common;

use tessl::{Device, Error, ErrorKind, Gemm, GpuRuntime, Library, RuntimeOptions};
use tessl_metal_mock::{Config, Mock, set_macos};

/// One test, because what the process seems to run on is the same for all its threads.
#[test]
fn devices_and_what_they_need() {
    let metal = Device::metal(0);
    let missing = metal.info().missing.expect("no device yet");
    assert!(missing.contains("no such device"), "{missing}");
    assert!(Device::enumerate().iter().any(|d| d.id == "metal:0" && d.missing.is_some()));

    let mock = Mock::new(Config::default());
    mock.make_default();
    let info = metal.info();
    assert_eq!((info.missing.as_deref(), info.id.as_str(), info.profile.as_str()), (None, "metal:0", "m2"));
    assert!(info.driver.starts_with("macOS 26") && info.unified_memory && info.memory_bytes > 0, "{info:?}");
    assert_eq!(Device::best(), metal);
    assert!(Device::metal(1).info().missing.is_some());
    let rt = GpuRuntime::with_options(&RuntimeOptions::new().device(metal.clone()).cache_dir("")).unwrap();
    let a = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let c = rt.alloc_tensor_f32(&[2, 2]).unwrap();
    Gemm::new(&a, &a, &c).run().unwrap();
    assert_eq!(c.read::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
    assert!(rt.profile().max_threads <= 1024 && rt.profile().shared_bytes == 32 << 10);

    set_macos(15);
    let info = metal.info();
    assert!(info.missing.is_some_and(|m| m.contains("macOS 26")) && info.help.is_some());
    let error = GpuRuntime::with_device(&metal).expect_err("too old");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!Device::best().is_gpu() || Device::best() != metal);
    set_macos(26);

    let old = Mock::new(Config { metal4: false, ..Config::default() });
    let error = old.open(&RuntimeOptions::new()).err().expect("no Metal 4");
    assert!(error.to_string().contains("Metal 4"), "{error}");
    drop((a, c, rt));
    assert_eq!((mock.findings(), old.findings()), (vec![], vec![]));
}

#[test]
fn own_libraries_have_unique_names_and_run() {
    let mock = common::mock(tessl_sim::Schedule::Forward);
    let run = mock.open(&RuntimeOptions::new()).unwrap();
    let rt = &run.rt;
    let text = "#include \"tessl.h\"\nKERNEL(twice, 32, IN(float, x, 0), OUT(float, y, 1)) {\n  \
        y[gpu_tg.x * 32 + gpu_tid.x] = 2.0f * x[gpu_tg.x * 32 + gpu_tid.x];\n}\n";
    rt.add_library(Library::metal_source("mine", text)).unwrap();
    let error = rt.add_library(Library::metal_source("mine", text)).unwrap_err();
    assert!(matches!(&error, Error::Name { taken: true, .. }), "{error}");
    assert!(rt.add_library(Library::metal_source("yours", text)).is_err());
    assert!(rt.add_library(Library::metal_source("norm", text)).is_err());
    let bad = rt.add_library(Library::metal_source("bad", "KERNEL(k, 32, OUT(float, y, 0)) { y[0] = nothing; }\n"));
    assert!(matches!(&bad, Err(Error::Device(e)) if e.message.contains("nothing")), "{bad:?}");
    assert!(matches!(rt.add_library(Library::cuda_source("c", "")), Err(Error::Unsupported { .. })));
    assert!(matches!(rt.add_library(Library::metallib("/nowhere/x.metallib")), Err(Error::Io { .. })));
    assert!(matches!(rt.kernel("mine", "thrice"), Err(Error::Name { taken: false, .. })));
    let kernel = rt.kernel("mine", "twice").unwrap();
    let x = rt.from_slice(&[1.5f32; 64], &[64]).unwrap();
    let y = rt.alloc_tensor_f32(&[64]).unwrap();
    let mut s = rt.stream().unwrap();
    // SAFETY: 64 threads, 64 elements on both sides.
    unsafe { s.dispatch(&kernel, |b| b.input(&x).output(&y).grid([2, 1, 1]).threads(32)) }.unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [3.0; 64]);
    // A threadgroup larger than the pipeline allows would be ignored by Metal.
    // SAFETY: nothing runs.
    unsafe { s.dispatch(&kernel, |b| b.input(&x).output(&y).grid([1, 1, 1]).threads(64)) }.unwrap();
    let error = s.synchronize().unwrap_err();
    assert!(error.to_string().contains("the pipeline allows 32"), "{error}");
    s.recover().unwrap();
    assert_eq!(mock.findings(), Vec::<String>::new());
}
