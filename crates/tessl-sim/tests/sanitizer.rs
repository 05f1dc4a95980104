//! In a sanitizer build (`TESSL_SIM_SANITIZE=1`) a wrong access must end the process with a report. Elsewhere these
//! tests have nothing to do.

mod common;

use common::args::RmsNormArgs;
use common::{Buf, block, skip};
use std::process::Command;
use tessl_sim::{Launch, Schedule, launch};

const SELECT: &str = "TESSL_SIM_WRONG";

/// Runs [`wrong_access`] in a child process and returns what it wrote to stderr.
fn report(which: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "wrong_access", "--ignored", "--nocapture"])
        .env(SELECT, which)
        .output()
        .unwrap();
    assert!(!output.status.success(), "{which} passed");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "started by the tests below; each ends its process"]
fn wrong_access() {
    let Ok(which) = std::env::var(SELECT) else { return };
    // 64 elements are claimed, `n` of the weight exist; `skew` elements off the 16-byte boundary.
    let (n, skew, vec16) = match which.as_str() {
        "short" => (63, 0, 0.0),
        "misaligned" => (64, 1, 1.0),
        _ => (64, 0, 1.0),
    };
    let (mut x, mut y) = (Buf::<f32>::filled(64, 0, |_| 1.0), Buf::<f32>::new(64, 0));
    let mut w = Buf::<f32>::filled(n, skew, |_| 1.0);
    let args = RmsNormArgs {
        x_s2: 64,
        y_s2: 64,
        rows: 1,
        r1: 1,
        r2: 1,
        n: 64,
        groups: 1,
        eps: 1e-5,
        ..RmsNormArgs::default()
    };
    let l = Launch {
        kernel: "rms_norm_f32_f32",
        constants: &[("VEC16", vec16)],
        grid: [1, 1, 1],
        threads: 256,
        args: &[x.ptr(), w.ptr(), y.ptr(), block(&args)],
        schedule: Schedule::Forward,
    };
    // SAFETY: none for the first two; the process is expected to be ended by the sanitizer, which is the test.
    unsafe { launch(&l) }.unwrap();
    assert!(which != "right", "the control case ran to its end");
}

#[test]
fn wrong_accesses_are_reported() {
    if !tessl_sim::sanitized() {
        skip("wrong_accesses_are_reported", "not a sanitizer build");
    } else {
        assert!(report("short").contains("AddressSanitizer: heap-buffer-overflow"), "{}", report("short"));
        assert!(report("misaligned").contains("misaligned address"), "{}", report("misaligned"));
        assert!(report("right").contains("the control case ran to its end"));
    }
}
