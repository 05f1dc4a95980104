//! Own kernels on the CPU device.

use crate::support::{Kernels, cpu};
use tessl::device::cpu::{Bound, KernelCall};
use tessl::{Error, FaultKind, Library, Scope};

unsafe fn double(call: &KernelCall<'_>) {
    let (from, to) = (call.binding(0), call.binding(1));
    let n = from.bytes.min(to.bytes) / 4;
    call.pool().run(n.div_ceil(7), &|chunk| {
        // Whole operands: their pointers alone are not shared between threads.
        let (from, to): (Bound, Bound) = (from, to);
        for i in chunk * 7..(chunk * 7 + 7).min(n) {
            // SAFETY: inside both bindings; chunks write disjoint elements.
            unsafe { to.ptr.cast::<f32>().add(i).write(2.0 * from.ptr.cast::<f32>().add(i).read()) };
        }
    });
}

#[test]
fn runs_on_views_and_counts() {
    let rt = cpu();
    rt.add_library(Library::cpu("mine").kernel("double", double)).unwrap();
    let kernel = rt.kernel("mine", "double").unwrap();
    let x = rt.from_slice(&(0..100u8).map(f32::from).collect::<Vec<_>>(), &[100]).unwrap();
    let y = rt.alloc_tensor_f32(&[100]).unwrap();
    let mut s = rt.stream().unwrap();
    let (from, to) = (x.narrow(0, 10, 50).unwrap(), y.narrow(0, 20, 50).unwrap());
    let before = rt.dispatch_count();
    // SAFETY: the kernel stays inside its bindings.
    unsafe { s.dispatch(&kernel, |b| b.input(&from).output(&to)) }.unwrap();
    // SAFETY: as above; nothing is launched for an empty grid.
    unsafe { s.dispatch(&kernel, |b| b.input(&from).output(&to).grid([0, 1, 1])) }.unwrap();
    assert_eq!(rt.dispatch_count(), before + 1);
    let got = y.read::<f32>().unwrap();
    for (i, &value) in got.iter().enumerate() {
        let want = if (20..70).contains(&i) { 2.0 * (i as f32 - 10.0) } else { 0.0 };
        assert_eq!(value, want, "{i}");
    }
}

#[test]
fn names_are_unique() {
    let rt = cpu();
    let library = || Library::cpu("mine").kernel("double", double);
    rt.add_library(library()).unwrap();
    let error = rt.add_library(library()).unwrap_err();
    assert!(matches!(error, Error::Name { .. }) && error.to_string().contains("already"), "{error}");
    // Across libraries as well.
    let error = rt.add_library(Library::cpu("yours").kernel("double", double)).unwrap_err();
    assert!(matches!(error, Error::Name { .. }), "{error}");
    assert!(matches!(rt.kernel("mine", "triple").unwrap_err(), Error::Name { .. }));
    assert!(matches!(rt.kernel("theirs", "double").unwrap_err(), Error::Name { .. }));
    // The library's own kernels cannot be taken over.
    assert!(rt.add_library(Library::cpu("gemm").kernel("gemm_f32_f32_scalar", double)).is_err());
}

#[test]
fn a_panic_is_a_typed_error_and_the_stream_recovers() {
    for deep in [false, true] {
        let rt = cpu();
        let k = Kernels::new(&rt);
        let (x, y) = (rt.from_slice(&[1u32], &[1]).unwrap(), rt.from_slice(&[1u32], &[1]).unwrap());
        rt.synchronize().unwrap();
        let mut s = rt.stream().unwrap();
        k.mix(&mut s, &y, &y, 0).unwrap();
        s.synchronize().unwrap();
        k.panic_on(&mut s, &x, deep).unwrap();
        let error = s.synchronize().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Panicked { op: "panics", .. }), "{error}");
        assert!(text.contains("panics on purpose"), "{text}");
        assert_eq!(error.scope(), Scope::Stream);
        let refused = k.mix(&mut s, &y, &y, 0).unwrap_err();
        assert!(matches!(refused, Error::Poisoned { failed: "panics", .. }), "{refused}");
        assert!(x.read::<u32>().is_err(), "no stale data");
        // Other streams go on.
        let mut t = rt.stream().unwrap();
        k.mix(&mut t, &y, &y, 0).unwrap();
        t.synchronize().unwrap();
        s.recover().unwrap();
        k.mix(&mut s, &y, &x, 5).unwrap();
        assert_eq!(x.read::<u32>().unwrap(), [9 * 3 + 5]);
    }
}

#[test]
fn faults_name_kind_place_and_value() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let rows = rt.from_slice(&[-1i32; 4], &[2, 2]).unwrap();
    let position = rt.from_slice(&[2i32], &[1]).unwrap();
    let mut s = rt.stream().unwrap();
    k.put_row(&mut s, &position, &rows).unwrap();
    let error = s.synchronize().unwrap_err();
    let fault = matches!(error, Error::Fault { op: "put_row", kind: FaultKind::CacheOverflow, index: 0, value: 2 });
    assert!(fault, "{error:?}");
    s.recover().unwrap();
    assert_eq!(rows.read::<i32>().unwrap(), [-1; 4], "the store was skipped");
    position.write_on(&[1i32], &mut s).unwrap();
    k.put_row(&mut s, &position, &rows).unwrap();
    assert_eq!(rows.read::<i32>().unwrap(), [-1, -1, 1, 1]);
}
