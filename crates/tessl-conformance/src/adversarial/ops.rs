//! Wrong calls of operations.

use super::{Bench, Kind, Result, text};
use tessl::nn::RmsNorm;
use tessl::{
    Activation, BatchStrides, BufferKind, DType, Epilogue, Gemm, GemmBackend, Tensor, gemm, gemm_batched, gemm_epilogue,
};

const T: GemmBackend = GemmBackend::TensorOps;

pub(super) fn gemm_operands(bench: &mut Bench<'_>) -> Result {
    let (a, b, c) = (bench.a.clone(), bench.b.clone(), bench.c.clone());
    let bad_k = bench.zeros(DType::F32, &[5, 4])?;
    bench.reject("k differs", Kind::Shape, &["gemm", "`b`", "[5, 4]", "k = 3"], || gemm(&a, &bad_k, &c, T));
    let bt = bench.zeros(DType::F32, &[4, 3])?;
    bench.reject("b transposed", Kind::Shape, &["`b`", "did you mean b.t()?"], || gemm(&a, &bt, &c, T));
    let at = bench.zeros(DType::F32, &[3, 2])?;
    bench.reject("a transposed", Kind::Shape, &["`b`", "did you mean a.t()?"], || gemm(&at, &b, &c, T));
    let ct = bench.zeros(DType::F32, &[4, 2])?;
    bench.reject("c transposed", Kind::Shape, &["`c`", "did you mean c.t()?"], || gemm(&a, &b, &ct, T));
    let bad_c = bench.zeros(DType::F32, &[2, 5])?;
    bench.reject("c", Kind::Shape, &["gemm", "`c`", "[2, 5]", "[2, 4]"], || gemm(&a, &b, &bad_c, T));
    for (name, rank) in [("vector", &[3usize][..]), ("scalar", &[]), ("rank 4", &[1, 1, 2, 3])] {
        let odd = bench.zeros(DType::F32, rank)?;
        bench.reject(&format!("a is a {name}"), Kind::Shape, &["gemm", "`a`"], || gemm(&odd, &b, &c, T));
        bench.reject(&format!("b is a {name}"), Kind::Shape, &["gemm", "`b`"], || gemm(&a, &odd, &c, T));
        bench.reject(&format!("c is a {name}"), Kind::Shape, &["gemm", "`c`"], || gemm(&a, &b, &odd, T));
    }
    for dtype in DType::ALL {
        let (x, y, z) = (bench.zeros(dtype, &[2, 3])?, bench.zeros(dtype, &[3, 4])?, bench.zeros(dtype, &[2, 4])?);
        if matches!(dtype, DType::I32 | DType::U32) {
            bench.reject("integer a", Kind::DType, &["gemm", "`a`", dtype.name()], || gemm(&x, &y, &z, T));
        }
        if dtype != DType::F32 {
            bench.reject("b of another type", Kind::DType, &["gemm", "`b`", dtype.name()], || gemm(&a, &y, &c, T));
        }
        if !dtype.is_float() {
            bench.reject("integer c", Kind::DType, &["gemm", "`c`", dtype.name()], || gemm(&a, &b, &z, T));
        }
    }
    let flat = bench.zeros(DType::F32, &[64])?;
    let strided = flat.view(&[2, 3], &[8, 2], 0).map_err(text)?;
    bench.reject("a without unit stride", Kind::Layout, &["gemm", "`a`", "strides"], || gemm(&strided, &b, &c, T));
    let strided = flat.view(&[3, 4], &[16, 2], 0).map_err(text)?;
    bench.reject("b without unit stride", Kind::Layout, &["gemm", "`b`", "strides"], || gemm(&a, &strided, &c, T));
    let strided = flat.view(&[2, 4], &[16, 2], 0).map_err(text)?;
    bench.reject("c without unit stride", Kind::Layout, &["gemm", "`c`", "strides"], || gemm(&a, &b, &strided, T));
    let repeated = flat.view(&[2, 4], &[0, 1], 0).map_err(text)?;
    bench.reject("c repeats rows", Kind::Layout, &["gemm", "`c`", "repeat"], || gemm(&a, &b, &repeated, T));
    let woven = flat.view(&[2, 4], &[3, 1], 0).map_err(text)?;
    bench.reject("c's rows overlap", Kind::Layout, &["gemm", "`c`", "repeat"], || gemm(&a, &b, &woven, T));
    overlaps(bench)
}

fn overlaps(bench: &mut Bench<'_>) -> Result {
    let (a, b) = (bench.a.clone(), bench.b.clone());
    let flat = bench.zeros(DType::F32, &[64])?;
    let c = flat.view(&[2, 4], &[4, 1], 3).map_err(text)?;
    let a_over = flat.view(&[2, 3], &[3, 1], 0).map_err(text)?;
    bench.reject("c over a", Kind::Overlap, &["gemm", "`c`", "`a`"], || gemm(&a_over, &b, &c, T));
    let b_over = flat.view(&[3, 4], &[4, 1], 10).map_err(text)?;
    bench.reject("c over b", Kind::Overlap, &["gemm", "`c`", "`b`"], || gemm(&a, &b_over, &c, T));
    let bias_over = flat.view(&[4], &[1], 7).map_err(text)?;
    let with_bias = |c| Gemm::new(&a, &b, c).bias(&bias_over);
    bench.reject("c over bias", Kind::Overlap, &["gemm", "`c`", "`bias`"], || with_bias(&c).run());
    let square = bench.zeros(DType::F32, &[4, 4])?;
    bench.reject("in place", Kind::Overlap, &["`c`", "`a`"], || gemm(&square, &square, &square, T));
    // Side by side in one buffer is no overlap: columns 0-2, 4-7 and 8-11 of rows of 12.
    let (x, z) = (flat.view(&[2, 3], &[12, 1], 0).map_err(text)?, flat.view(&[2, 4], &[12, 1], 4).map_err(text)?);
    bench.accept("columns of one buffer", || gemm(&x, &b, &z, T));
    Ok(())
}

pub(super) fn epilogues(bench: &mut Bench<'_>) -> Result {
    let (a, b, c, bias) = (bench.a.clone(), bench.b.clone(), bench.c.clone(), bench.bias.clone());
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        bench.reject("alpha", Kind::Scalar, &["gemm", "`alpha`", "finite"], || Gemm::new(&a, &b, &c).alpha(bad).run());
        bench.reject("beta", Kind::Scalar, &["gemm", "`beta`", "finite"], || Gemm::new(&a, &b, &c).beta(bad).run());
        let epilogue = Epilogue { alpha: bad, beta: 0.0, bias: None, activation: Activation::None };
        bench.reject("epilogue", Kind::Scalar, &["gemm", "`alpha`"], || gemm_epilogue_call(&a, &b, &c, epilogue));
    }
    for shape in [&[3usize][..], &[5], &[4, 1], &[2, 4], &[], &[1, 1, 4]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench
            .reject("bias shape", Kind::Shape, &["gemm", "`bias`", "[4]"], || Gemm::new(&a, &b, &c).bias(&wrong).run());
    }
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::F32) {
        let wrong = bench.zeros(dtype, &[4])?;
        bench.reject("bias type", Kind::DType, &["gemm", "`bias`", dtype.name()], || {
            Gemm::new(&a, &b, &c).bias(&wrong).run()
        });
    }
    let wide = bench.zeros(DType::F32, &[8])?;
    let strided = wide.view(&[4], &[2], 0).map_err(text)?;
    bench.reject("bias stride", Kind::Layout, &["gemm", "`bias`"], || Gemm::new(&a, &b, &c).bias(&strided).run());
    let row = bias.reshape(&[1, 4]).map_err(text)?;
    bench.accept("bias [1, n]", || Gemm::new(&a, &b, &c).bias(&row).run());
    Ok(())
}

fn gemm_epilogue_call(a: &Tensor, b: &Tensor, c: &Tensor, e: Epilogue<'_>) -> tessl::Result<()> {
    gemm_epilogue(a, b, c, T, e)
}

pub(super) fn gemm_batched_call(bench: &mut Bench<'_>) -> Result {
    let none = Epilogue::default();
    let (a, b) = (bench.zeros(DType::F32, &[6, 3])?, bench.zeros(DType::F32, &[9, 4])?);
    let c = bench.zeros(DType::F32, &[6, 4])?;
    let (a1, b1, c1) =
        (a.narrow(0, 0, 2).map_err(text)?, b.narrow(0, 0, 3).map_err(text)?, c.narrow(0, 0, 2).map_err(text)?);
    let side = BatchStrides::contiguous(2, 4, 3);
    bench.accept("three", || gemm_batched(&a1, &b1, &c1, 3, side, T, none));
    bench.accept("none", || gemm_batched(&a1, &b1, &c1, 0, side, T, none));
    // Rounded allocations leave room behind the last matrix, so the bad counts are far out.
    let call = |batch, strides| gemm_batched(&a1, &b1, &c1, batch, strides, T, none);
    bench.reject("past the end", Kind::Layout, &["gemm_batched", "`a`", "memory"], || call(1000, side));
    bench.reject("huge batch", Kind::Layout, &["gemm_batched", "`a`"], || call(usize::MAX, side));
    let far = BatchStrides { a: usize::MAX / 2, ..side };
    bench.reject("huge stride", Kind::Layout, &["gemm_batched", "`a`"], || call(3, far));
    bench
        .reject("c's matrices on one place", Kind::Layout, &["gemm", "`c`"], || call(3, BatchStrides { c: 0, ..side }));
    bench.reject("c's matrices overlap", Kind::Layout, &["gemm", "`c`"], || call(3, BatchStrides { c: 3, ..side }));
    let cube = bench.zeros(DType::F32, &[2, 2, 3])?;
    bench.reject("three axes", Kind::Shape, &["gemm_batched", "`a`"], || {
        gemm_batched(&cube, &b1, &c1, 3, side, T, none)
    });
    let (a3, c3) = (bench.zeros(DType::F32, &[3, 2, 3])?, bench.zeros(DType::F32, &[4, 2, 4])?);
    bench.reject("batches differ", Kind::Shape, &["gemm", "`a`", "batch"], || gemm(&a3, &b1, &c3, T));
    let b3 = bench.zeros(DType::F32, &[3, 3, 4])?;
    let c2 = bench.zeros(DType::F32, &[2, 4])?;
    bench.reject("c without a batch", Kind::Shape, &["gemm", "`b`", "batch"], || gemm(&a1, &b3, &c2, T));
    Ok(())
}

/// Operands of another runtime, wrong streams, expired tensors, sizes past the limits.
pub(super) fn gemm_runtime(bench: &mut Bench<'_>) -> Result {
    let (a, b, c, bias) = (bench.a.clone(), bench.b.clone(), bench.c.clone(), bench.bias.clone());
    let foreign = |shape: &[usize]| bench.other.zeros(DType::F32, shape, BufferKind::Cold).map_err(text);
    let (fa, fb, fc, fbias) = (foreign(&[2, 3])?, foreign(&[3, 4])?, foreign(&[2, 4])?, foreign(&[4])?);
    bench.reject("foreign b", Kind::WrongRuntime, &["gemm", "`b`"], || gemm(&a, &fb, &c, T));
    bench.reject("foreign c", Kind::WrongRuntime, &["gemm", "`c`"], || gemm(&a, &b, &fc, T));
    bench.reject("foreign a", Kind::WrongRuntime, &["gemm"], || gemm(&fa, &b, &c, T));
    bench.reject("foreign bias", Kind::WrongRuntime, &["gemm", "`bias`"], || Gemm::new(&a, &b, &c).bias(&fbias).run());
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("foreign stream", Kind::WrongRuntime, &["gemm", "`stream`"], || {
        Gemm::new(&a, &b, &c).bias(&bias).run_on(&mut stream)
    });
    let mut mine = bench.env.rt.stream().map_err(text)?;
    let old = mine.step(|s| s.bump(DType::F32, &[2, 3])).map_err(text)?;
    bench.reject("expired a", Kind::Expired, &["gemm", "`a`"], || gemm(&old, &b, &c, T));
    bench.reject("expired a again", Kind::Expired, &["gemm", "`a`"], || Gemm::new(&old, &b, &c).run_on(&mut mine));
    // Extents that kernels cannot count, without the memory: broadcast rows.
    let one = bench.zeros(DType::F32, &[1, 3])?;
    let tall = one.broadcast_to(&[1 << 31, 3]).map_err(text)?;
    bench.reject("2^31 rows", Kind::TooLarge, &["gemm", "2147483648", "2147483647"], || gemm(&tall, &b, &c, T));
    Ok(())
}

fn norm(x: &Tensor, w: &Tensor, y: &Tensor) -> tessl::Result<()> {
    RmsNorm::new(x, w, y).run()
}

pub(super) fn rms_norm(bench: &mut Bench<'_>) -> Result {
    let (x, w, y) = (bench.zeros(DType::F32, &[2, 4])?, bench.bias.clone(), bench.zeros(DType::F32, &[2, 4])?);
    for shape in [&[3usize][..], &[1, 4], &[4, 1], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("weight shape", Kind::Shape, &["rms_norm", "`weight`", "[4]"], || norm(&x, &wrong, &y));
    }
    let scalar = bench.zeros(DType::F32, &[])?;
    bench.reject("scalar x", Kind::Shape, &["rms_norm", "`x`"], || norm(&scalar, &w, &scalar));
    for shape in [&[2usize, 5][..], &[4, 2], &[8], &[1, 2, 4]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("y shape", Kind::Shape, &["rms_norm", "`y`", "[2, 4]"], || norm(&x, &w, &wrong));
    }
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::F32) {
        let (dx, dw) = (bench.zeros(dtype, &[2, 4])?, bench.zeros(dtype, &[4])?);
        if !dtype.is_float() {
            bench.reject("integer x", Kind::DType, &["rms_norm", "`x`", dtype.name()], || norm(&dx, &dw, &dx));
        }
        bench.reject("y type", Kind::DType, &["rms_norm", "`y`", dtype.name()], || norm(&x, &w, &dx));
        bench.reject("weight type", Kind::DType, &["rms_norm", "`weight`", dtype.name()], || norm(&x, &dw, &y));
    }
    let flat = bench.zeros(DType::F32, &[64])?;
    let strided = flat.view(&[2, 4], &[16, 2], 0).map_err(text)?;
    bench.reject("x stride", Kind::Layout, &["rms_norm", "`x`"], || norm(&strided, &w, &y));
    bench.reject("y stride", Kind::Layout, &["rms_norm", "`y`"], || norm(&x, &w, &strided));
    let strided = flat.view(&[4], &[2], 0).map_err(text)?;
    bench.reject("weight stride", Kind::Layout, &["rms_norm", "`weight`"], || norm(&x, &strided, &y));
    let repeated = flat.view(&[2, 4], &[0, 1], 0).map_err(text)?;
    bench.reject("y repeats", Kind::Layout, &["rms_norm", "`y`", "repeat"], || norm(&x, &w, &repeated));
    let (front, back) = (flat.view(&[2, 4], &[4, 1], 0).map_err(text)?, flat.view(&[2, 4], &[4, 1], 3).map_err(text)?);
    bench.reject("y over x, shifted", Kind::Overlap, &["rms_norm", "`y`", "`x`"], || norm(&front, &w, &back));
    let over = flat.view(&[4], &[1], 2).map_err(text)?;
    bench.reject("y over weight", Kind::Overlap, &["rms_norm", "`y`", "`weight`"], || norm(&x, &over, &front));
    bench.accept("in place", || norm(&front, &w, &front));
    let deep = flat.view(&[2, 2, 2, 2, 1], &[31, 15, 7, 3, 1], 0).map_err(text)?;
    let (deep_y, one) = (bench.zeros(DType::F32, &[2, 2, 2, 2, 1])?, bench.zeros(DType::F32, &[1])?);
    bench.reject("four strided axes", Kind::Layout, &["rms_norm", "`x`", "three"], || norm(&deep, &one, &deep_y));
    for eps in [f32::NAN, f32::INFINITY, -1e-6] {
        bench.reject("eps", Kind::Scalar, &["rms_norm", "`eps`"], || RmsNorm::new(&x, &w, &y).eps(eps).run());
    }
    for offset in [f32::NAN, f32::NEG_INFINITY] {
        let call = || RmsNorm::new(&x, &w, &y).weight_offset(offset).run();
        bench.reject("weight_offset", Kind::Scalar, &["rms_norm", "`weight_offset`"], call);
    }
    let foreign = bench.other.zeros(DType::F32, &[2, 4], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign y", Kind::WrongRuntime, &["rms_norm", "`y`"], || norm(&x, &w, &foreign));
    let mut stream = bench.other.stream().map_err(text)?;
    let on = |s: &mut tessl::Stream| RmsNorm::new(&x, &w, &y).run_on(s);
    bench.reject("foreign stream", Kind::WrongRuntime, &["rms_norm", "`stream`"], || on(&mut stream));
    let mut mine = bench.env.rt.stream().map_err(text)?;
    let old = mine.step(|s| s.bump(DType::F32, &[2, 4])).map_err(text)?;
    bench.reject("expired x", Kind::Expired, &["rms_norm", "`x`"], || norm(&old, &w, &y));
    let before = bench.env.rt.dispatch_count();
    for shape in [&[0usize, 4][..], &[3, 0, 4]] {
        let empty = bench.zeros(DType::F32, shape)?;
        bench.accept("no rows", || norm(&empty, &w, &empty));
    }
    let (empty, none) = (bench.zeros(DType::F32, &[3, 0])?, bench.zeros(DType::F32, &[0])?);
    bench.accept("rows of nothing", || norm(&empty, &none, &empty));
    if bench.env.rt.dispatch_count() != before {
        return Err("an empty normalisation was launched".into());
    }
    Ok(())
}
