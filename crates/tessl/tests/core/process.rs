//! Forks, missing drivers, small devices.

use crate::support::{cpu, null};
use tessl::{Device, Error, Gemm, GpuRuntime, RuntimeOptions};

/// In a forked child, a runtime of the parent says so, and a new one works.
#[cfg(unix)]
#[test]
fn forked_children_get_a_typed_error() {
    let rt = cpu();
    let x = rt.from_slice(&[1.0f32; 4], &[2, 2]).unwrap();
    rt.synchronize().unwrap();
    let y = rt.alloc_tensor_f32(&[2, 2]).unwrap();
    let code = |checks: &[bool]| checks.iter().position(|ok| !ok).map_or(0, |at| i32::try_from(at).unwrap_or(99) + 1);
    // SAFETY: the child runs only code that this test vouches for and leaves with _exit, without unwinding into the
    // harness; the parent's other threads do not matter to it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let forked = |r: tessl::Result<()>| matches!(r, Err(Error::Forked { .. }));
        let checks = [
            forked(Gemm::new(&x, &x, &y).run()),
            forked(x.read::<f32>().map(|_| ())),
            forked(rt.stream().map(|_| ())),
            forked(rt.synchronize()),
            forked(rt.alloc_tensor_f32(&[1]).map(|_| ())),
            GpuRuntime::with_device(&Device::cpu()).is_ok(),
        ];
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code(&checks)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the check that failed in the child");
    Gemm::new(&x, &x, &y).run().unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [2.0; 4]);
}

#[test]
fn a_missing_driver_is_data() {
    let info = Device::cuda(0).info();
    let Some(reason) = info.missing else {
        tessl_conformance::skip::skip("no-cuda", "a_missing_driver_is_data", "this machine has a CUDA driver");
        return;
    };
    let error = GpuRuntime::with_device(&Device::cuda(0)).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(error.to_string().contains(reason.lines().next().unwrap_or("?")), "{error} / {reason}");
    let error = GpuRuntime::with_options(&RuntimeOptions::new().gpu_only()).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(Device::enumerate().iter().any(|d| d.id == "cpu" && d.missing.is_none()));
    assert_eq!(Device::best(), Device::cpu());
}

/// A device with 16 KiB of threadgroup memory gets kernels that fit, or an error with numbers.
#[test]
fn plans_fit_small_devices() {
    let rt = GpuRuntime::with_device(&Device::null("tiny-16k")).unwrap();
    let profile = rt.profile();
    assert_eq!(profile.shared_bytes, 16 << 10);
    for backend in tessl_backends() {
        for (m, n, k) in [(1, 64, 64), (128, 128, 128), (1000, 1000, 1000)] {
            for (input, output) in tessl_conformance::GEMM_PAIRS {
                let desc = tessl_conformance::rows::plain_gemm(m, n, k, input, output, backend);
                match tessl::plan::plan(&tessl::plan::Desc::Gemm(desc), profile) {
                    Ok(plan) => assert!(plan.shared_bytes <= 16 << 10, "{plan:?}"),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("bytes") && text.contains("16384"), "{text}");
                    }
                }
            }
        }
    }
}

fn tessl_backends() -> [tessl::GemmBackend; 2] {
    [tessl::GemmBackend::TensorOps, tessl::GemmBackend::Simdgroup]
}

#[test]
fn clones_are_the_same_runtime_and_others_are_not() {
    let (rt, other) = (null(), null());
    let (a, b) = (rt.clone().alloc_tensor_f32(&[2, 2]).unwrap(), other.alloc_tensor_f32(&[2, 2]).unwrap());
    let c = rt.alloc_tensor_f32(&[2, 2]).unwrap();
    Gemm::new(&a, &a, &c).run().unwrap();
    assert!(matches!(Gemm::new(&a, &b, &c).run().unwrap_err(), Error::WrongRuntime { operand: "b", .. }));
}
