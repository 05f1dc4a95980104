//! Wrong calls of `norm_qkv_rope`.

use super::{Bench, Kind, Result, text};
use tessl::nn::{KvPlaces, NormQkvRope, RopeFrequencies, RopeScaling, Start};
use tessl::{DType, QFormat, QTensor, Scalar, Tensor};

pub(super) fn calls(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let op = "norm_qkv_rope";
    let (x, norm) = (bench.zeros(DType::F32, &[2, 3, 64])?, bench.zeros(DType::F32, &[64])?);
    let weights = |rows: usize| QTensor::quantize(&bench.zeros(DType::F32, &[rows, 64])?, QFormat::Q4_0).map_err(text);
    let (wq, wk) = (weights(32)?, weights(16)?);
    let (q, k) = (bench.zeros(DType::F32, &[2, 3, 4, 8])?, bench.zeros(DType::F32, &[2, 3, 2, 8])?);
    let v = bench.zeros(DType::F32, &[2, 3, 2, 8])?;
    let frequencies = RopeFrequencies::new(&rt, 8, 10_000.0, RopeScaling::None).map_err(text)?;
    let plain = || NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &frequencies, 0, [&q, &k, &v]);
    let to = |outputs: [&Tensor; 3]| NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &frequencies, 0, outputs).run();
    let of = |w: [&QTensor; 3]| NormQkvRope::new(&x, &norm, w, &frequencies, 0, [&q, &k, &v]).run();
    let from =
        |x: &Tensor, norm: &Tensor| NormQkvRope::new(x, norm, [&wq, &wk, &wk], &frequencies, 0, [&q, &k, &v]).run();
    bench.accept("plain", || plain().run());
    // Types.
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::F32) {
        let (bad_x, bad_q, bad_k) =
            (bench.zeros(dtype, &[2, 3, 64])?, bench.zeros(dtype, &[2, 3, 4, 8])?, bench.zeros(dtype, &[2, 3, 2, 8])?);
        let (vector, bias) = (bench.zeros(dtype, &[64])?, bench.zeros(dtype, &[32])?);
        let said = |name| [op, name, dtype.name()];
        if !dtype.is_float() {
            bench.reject("x", Kind::DType, &said("`x`"), || from(&bad_x, &norm));
        }
        bench.reject("norm", Kind::DType, &said("`norm_weight`"), || from(&x, &vector));
        bench.reject("q", Kind::DType, &said("`q`"), || to([&bad_q, &k, &v]));
        bench.reject("k", Kind::DType, &said("`k`"), || to([&q, &bad_k, &v]));
        bench.reject("v", Kind::DType, &said("`v`"), || to([&q, &k, &bad_k]));
        bench.reject("bias", Kind::DType, &said("`bias of q`"), || plain().biases([&bias; 3]).run());
        bench.reject("added", Kind::DType, &said("`added`"), || plain().residual(&bad_x, &norm, &x).run());
        bench.reject("sum", Kind::DType, &said("`sum`"), || plain().residual(&x, &norm, &bad_x).run());
        let head = bench.zeros(dtype, &[8])?;
        bench.reject("head norm", Kind::DType, &said("`q_weight`"), || plain().head_norms(&head, &head).run());
        if dtype != DType::U32 {
            let one = bench.zeros(dtype, &[1])?;
            let call =
                || NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &frequencies, Scalar::Device(&one), [&q, &k, &v]).run();
            bench.reject("start", Kind::DType, &said("`start`"), call);
            let pages = bench.zeros(DType::F32, &[6, 16, 2, 8])?;
            let other = bench.zeros(DType::F32, &[6, 16, 2, 8])?;
            let table = bench.zeros(dtype, &[2, 1])?;
            let call = NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &frequencies, 0, [&q, &pages, &other]);
            bench.reject("table", Kind::DType, &said("`table`"), || call.kv(KvPlaces::Pages(&table)).run());
        }
    }
    // Shapes.
    for shape in [&[3usize, 64][..], &[64], &[], &[1, 2, 3, 64]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("x", Kind::Shape, &[op, "`x`", "[B, T, K]"], || from(&wrong, &norm));
    }
    for shape in [&[2usize, 3, 32][..], &[2, 2, 4, 8], &[2, 3, 0, 8], &[2, 3, 4, 0]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("q", Kind::Shape, &[op, "`q`"], || to([&wrong, &k, &v]));
    }
    for shape in [&[2usize, 3, 16][..], &[2, 4, 2, 8], &[2, 3, 2, 7]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("k", Kind::Shape, &[op, "`k`"], || to([&q, &wrong, &v]));
        bench.reject("v", Kind::Shape, &[op, "`v`", "[2, 3, 2, 8]"], || to([&q, &k, &wrong]));
    }
    let many = bench.zeros(DType::F32, &[3, 3, 64])?;
    bench.reject("nine rows", Kind::TooLarge, &[op, "9", "8"], || from(&many, &norm));
    let empty = bench.zeros(DType::F32, &[2, 3, 0])?;
    bench.reject("no K", Kind::Shape, &[op, "`x`", "K"], || from(&empty, &norm));
    let short = bench.zeros(DType::F32, &[32])?;
    bench.reject("norm", Kind::Shape, &[op, "`norm_weight`", "[64]"], || from(&x, &short));
    let sum = bench.zeros(DType::F32, &[2, 3, 64])?;
    let call = || plain().residual(&x, &short, &sum).run();
    bench.reject("weight of added", Kind::Shape, &[op, "`weight of added`", "[64]"], call);
    bench.reject("sum shape", Kind::Shape, &[op, "`sum`", "[2, 3, 64]"], || plain().residual(&x, &norm, &many).run());
    bench.reject("head norm", Kind::Shape, &[op, "`q_weight`", "[8]"], || plain().head_norms(&short, &short).run());
    bench.reject("bias", Kind::Shape, &[op, "`bias of k`", "[16]"], || plain().biases([&short; 3]).run());
    let wide = RopeFrequencies::new(&rt, 10, 10_000.0, RopeScaling::None).map_err(text)?;
    let call = || NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &wide, 0, [&q, &k, &v]).run();
    bench.reject("turned", Kind::Shape, &[op, "`q`", "10 elements"], call);
    // Weights.
    bench.reject("rows", Kind::Shape, &[op, "`wk`", "[16, 64]"], || of([&wq, &wq, &wk]));
    let other = QTensor::quantize(&bench.zeros(DType::F32, &[16, 64])?, QFormat::Q8_0).map_err(text)?;
    bench.reject("formats", Kind::Layout, &[op, "`wv`", "one kind"], || of([&wq, &wk, &other]));
    let dense = |x: &Tensor, [a, b, c]: [&Tensor; 3], norm: &Tensor| {
        NormQkvRope::new(x, norm, [a, b, c], &frequencies, 0, [&q, &k, &v]).run()
    };
    let (dq, dk) = (bench.zeros(DType::F32, &[32, 64])?, bench.zeros(DType::F32, &[16, 64])?);
    bench.accept("dense", || dense(&x, [&dq, &dk, &dk], &norm));
    let half = bench.zeros(DType::F16, &[16, 64])?;
    bench.reject("dense types", Kind::Layout, &[op, "`wk`", "one kind"], || dense(&x, [&dq, &half, &dk], &norm));
    let (iq, ik) = (bench.zeros(DType::I8, &[32, 64])?, bench.zeros(DType::I8, &[16, 64])?);
    bench.reject("integers", Kind::DType, &[op, "`wq`", "i8"], || dense(&x, [&iq, &ik, &ik], &norm));
    let flat = bench.zeros(DType::F32, &[8192])?;
    let view = |shape: &[usize], strides: &[usize], at| flat.view(shape, strides, at).map_err(text);
    let apart = view(&[16, 64], &[65, 1], 0)?;
    bench.reject("row strides", Kind::Layout, &[op, "`wk`", "far apart"], || dense(&x, [&dq, &apart, &dk], &norm));
    let columns = view(&[16, 64], &[64, 2], 0)?;
    bench.reject("inner stride", Kind::Layout, &[op, "`wk`", "last stride"], || dense(&x, [&dq, &columns, &dk], &norm));
    let (x33, n33) = (bench.zeros(DType::F32, &[2, 3, 33])?, bench.zeros(DType::F32, &[33])?);
    let (q33, k33) = (bench.zeros(DType::F32, &[32, 33])?, bench.zeros(DType::F32, &[16, 33])?);
    bench.reject("odd K", Kind::Shape, &[op, "`wq`", "32"], || dense(&x33, [&q33, &k33, &k33], &n33));
    // Strides and memory.
    let strided = view(&[2, 3, 64], &[384, 128, 2], 0)?;
    bench.reject("x stride", Kind::Layout, &[op, "`x`", "stride"], || from(&strided, &norm));
    bench.reject("one output twice", Kind::Overlap, &[op, "`k`", "`v`"], || to([&q, &k, &k]));
    let (over_x, over_q) = (view(&[2, 3, 64], &[192, 64, 1], 0)?, view(&[2, 3, 4, 8], &[96, 32, 8, 1], 100)?);
    let call = || NormQkvRope::new(&over_x, &norm, [&wq, &wk, &wk], &frequencies, 0, [&over_q, &k, &v]).run();
    bench.reject("q over x", Kind::Overlap, &[op, "`q`", "`x`"], call);
    let added = bench.zeros(DType::F32, &[2, 3, 64])?;
    bench.reject("sum is x", Kind::Overlap, &[op, "`sum`", "`x`"], || plain().residual(&added, &norm, &x).run());
    bench.reject("sum is added", Kind::Overlap, &[op, "`sum`", "`added`"], || {
        plain().residual(&added, &norm, &added).run()
    });
    let repeated = view(&[2, 3, 4, 8], &[0, 32, 8, 1], 0)?;
    bench.reject("q repeats", Kind::Layout, &[op, "`q`", "repeat"], || to([&repeated, &k, &v]));
    // Scalars.
    for eps in [-1.0, f32::NAN, f32::INFINITY] {
        bench.reject("eps", Kind::Scalar, &[op, "`eps`"], || plain().eps(eps).run());
    }
    bench.reject("offset", Kind::Scalar, &[op, "`weight_offset`"], || plain().weight_offset(f32::NAN).run());
    // Positions and caches.
    let (ck, cv) = (bench.zeros(DType::F32, &[2, 4, 2, 8])?, bench.zeros(DType::F32, &[2, 4, 2, 8])?);
    let cached =
        |start, kv| NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &frequencies, start, [&q, &ck, &cv]).kv(kv).run();
    bench.accept("a cache", || cached(Start::from(1), KvPlaces::Cache));
    bench.reject("beyond", Kind::TooLarge, &[op, "5", "4"], || cached(Start::from(2), KvPlaces::Cache));
    bench.accept("a ring", || cached(Start::from(9), KvPlaces::Ring));
    let starts = bench.zeros(DType::U32, &[3])?;
    bench.reject("starts", Kind::Shape, &[op, "`start`", "[2]"], || cached(Start::Each(&starts), KvPlaces::Cache));
    let (small, tiny) = (bench.zeros(DType::F32, &[2, 2, 2, 8])?, bench.zeros(DType::F32, &[2, 2, 2, 8])?);
    let call = NormQkvRope::new(&x, &norm, [&wq, &wk, &wk], &frequencies, 0, [&q, &small, &tiny]).kv(KvPlaces::Ring);
    bench.reject("a short ring", Kind::Shape, &[op, "ring", "2 tokens"], || call.run());
    let table = bench.zeros(DType::U32, &[2, 1])?;
    bench.reject("page size", Kind::Shape, &[op, "`k`", "16, 32 or 64"], || {
        cached(Start::from(0), KvPlaces::Pages(&table))
    });
    let table = bench.zeros(DType::U32, &[3, 1])?;
    bench.reject("table", Kind::Shape, &[op, "`table`", "[2, pages]"], || {
        cached(Start::from(0), KvPlaces::Pages(&table))
    });
    // Runtimes.
    let foreign = bench.other.zeros(DType::F32, &[2, 3, 4, 8], tessl::BufferKind::Cold).map_err(text)?;
    bench.reject("foreign q", Kind::WrongRuntime, &[op, "`q`"], || to([&foreign, &k, &v]));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("foreign stream", Kind::WrongRuntime, &[op, "`stream`"], || plain().run_on(&mut stream));
    let before = rt.dispatch_count();
    let (x0, q0, k0) = (
        bench.zeros(DType::F32, &[0, 3, 64])?,
        bench.zeros(DType::F32, &[0, 3, 4, 8])?,
        bench.zeros(DType::F32, &[0, 3, 2, 8])?,
    );
    bench.accept("no rows", || NormQkvRope::new(&x0, &norm, [&wq, &wk, &wk], &frequencies, 0, [&q0, &k0, &k0]).run());
    if rt.dispatch_count() != before {
        return Err("nothing was launched".into());
    }
    Ok(())
}
