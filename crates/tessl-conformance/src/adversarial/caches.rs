//! Wrong calls of attention and of caches.

use super::{Bench, Kind, Result, text};
use tessl::nn::{Attention, KvStore, RingDensify, Start};
use tessl::{BufferKind, DType, Scalar, Tensor};

pub(super) fn attention(bench: &mut Bench<'_>) -> Result {
    let (q_shape, k_shape) = ([2usize, 3, 4, 8], [2usize, 5, 2, 8]);
    let (q, out) = (bench.zeros(DType::F32, &q_shape)?, bench.zeros(DType::F32, &q_shape)?);
    let (k, v) = (bench.zeros(DType::F32, &k_shape)?, bench.zeros(DType::F32, &k_shape)?);
    let plain = || Attention::new(&q, &k, &v, &out);
    let call = |q: &Tensor, k: &Tensor, v: &Tensor, out: &Tensor| Attention::new(q, k, v, out).run();
    bench.accept("plain", || plain().run());
    // Types.
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        let (a, b) = (bench.zeros(dtype, &q_shape)?, bench.zeros(dtype, &k_shape)?);
        if !dtype.is_float() {
            bench.reject("q", Kind::DType, &["attention", "`q`", dtype.name()], || call(&a, &b, &b, &a));
        }
        bench.reject("k", Kind::DType, &["attention", "`k`", dtype.name()], || call(&q, &b, &v, &out));
        bench.reject("v", Kind::DType, &["attention", "`v`", dtype.name()], || call(&q, &k, &b, &out));
        bench.reject("out", Kind::DType, &["attention", "`out`", dtype.name()], || call(&q, &k, &v, &a));
        if dtype != DType::U32 {
            let (n, one) = (bench.zeros(dtype, &[2])?, bench.zeros(dtype, &[1])?);
            let said = |name| ["attention", name, dtype.name()];
            bench.reject("lengths", Kind::DType, &said("`kv_lengths`"), || plain().kv_lengths(&n).run());
            bench.reject("start", Kind::DType, &said("`start`"), || plain().causal(Scalar::Device(&one)).run());
            bench.reject("starts", Kind::DType, &said("`start`"), || plain().causal(Start::Each(&n)).run());
        }
        let sinks = bench.zeros(dtype, &[4])?;
        bench.reject("sinks", Kind::DType, &["attention", "`sinks`", "f32"], || plain().sinks(&sinks).run());
        if !dtype.is_float() && dtype != DType::U8 {
            let mask = bench.zeros(dtype, &[3, 5])?;
            bench.reject("mask", Kind::DType, &["attention", "`mask`"], || plain().mask(&mask).run());
        }
    }
    // Shapes.
    for shape in [&[3usize, 4, 8][..], &[6, 32], &[], &[1, 2, 3, 4, 8]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("q", Kind::Shape, &["attention", "`q`", "[B, Tq, Hq, D]"], || call(&wrong, &k, &v, &wrong));
        bench.reject("k", Kind::Shape, &["attention", "`k`", "[B, Tkv, Hkv, D]"], || call(&q, &wrong, &wrong, &out));
        bench.reject("out", Kind::Shape, &["attention", "`out`", "[2, 3, 4, 8]"], || call(&q, &k, &v, &wrong));
    }
    let odd = bench.zeros(DType::F32, &[2, 5, 3, 8])?;
    bench.reject("head groups", Kind::Shape, &["attention", "`k`", "4 heads", "its 3"], || call(&q, &odd, &odd, &out));
    let short = bench.zeros(DType::F32, &[2, 5, 2, 7])?;
    bench.reject("head size", Kind::Shape, &["attention", "`k`", "8 elements"], || call(&q, &short, &short, &out));
    bench.reject("v", Kind::Shape, &["attention", "`v`", "[2, 5, 2, 8]"], || call(&q, &k, &short, &out));
    let three = bench.zeros(DType::F32, &[3, 5, 2, 8])?;
    bench.reject("sequences", Kind::Shape, &["attention", "`k`", "2 sequences"], || call(&q, &three, &three, &out));
    let wide = bench.zeros(DType::F32, &[1, 1, 1, 513])?;
    let other = bench.zeros(DType::F32, &[1, 1, 1, 513])?;
    bench.reject("wide heads", Kind::TooLarge, &["attention", "513", "512"], || call(&wide, &wide, &wide, &other));
    let three = bench.zeros(DType::U32, &[3])?;
    bench.reject("lengths", Kind::Shape, &["`kv_lengths`", "[2]"], || plain().kv_lengths(&three).run());
    bench.reject("starts", Kind::Shape, &["`start`", "[2]"], || plain().causal(Start::Each(&three)).run());
    bench.reject("start", Kind::Shape, &["`start`", "one element"], || plain().causal(Scalar::Device(&three)).run());
    bench.reject("sinks", Kind::Shape, &["`sinks`", "[4]"], || plain().sinks(&bench_sinks(&q)).run());
    for shape in [&[4usize, 5][..], &[3, 4], &[1, 2, 3, 4, 5], &[3, 1, 1, 1]] {
        let mask = bench.zeros(DType::U8, shape)?;
        bench.reject("mask", Kind::Shape, &["`mask`", "[2, 4, 3, 5]"], || plain().mask(&mask).run());
    }
    // Scalars.
    for scale in [f32::NAN, f32::INFINITY] {
        bench.reject("scale", Kind::Scalar, &["attention", "`scale`"], || plain().scale(scale).run());
    }
    for softcap in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        bench.reject("softcap", Kind::Scalar, &["attention", "`softcap`"], || plain().softcap(softcap).run());
    }
    bench.reject("window", Kind::Scalar, &["`window`", "itself"], || plain().causal(0).window(0).run());
    bench.reject("window alone", Kind::Scalar, &["`window`", "causal"], || plain().window(3).run());
    // Pages.
    let table = bench.zeros(DType::U32, &[2, 3])?;
    let pages = bench.zeros(DType::F32, &[6, 16, 2, 8])?;
    let paged = |k: &Tensor, table: &Tensor| Attention::new(&q, k, k, &out).table(table).run();
    bench.accept("pages", || paged(&pages, &table));
    bench.reject("page size", Kind::Shape, &["`k`", "16, 32 or 64"], || paged(&k, &table));
    bench.reject("table", Kind::Shape, &["`table`", "[2, pages]"], || paged(&pages, &three));
    // Packed sequences.
    let (packed_q, packed_k) = (bench.zeros(DType::F32, &[6, 4, 8])?, bench.zeros(DType::F32, &[9, 2, 8])?);
    let packed_out = bench.zeros(DType::F32, &[6, 4, 8])?;
    let packed = || Attention::new(&packed_q, &packed_k, &packed_k, &packed_out);
    bench.accept("packed", || packed().varlen(&three, &three).run());
    bench.reject("no table", Kind::Shape, &["`q`"], || packed().run());
    let two = bench.zeros(DType::U32, &[2])?;
    let none = bench.zeros(DType::U32, &[0])?;
    bench.reject("cu_k", Kind::Shape, &["`cu_k`", "[3]"], || packed().varlen(&three, &two).run());
    bench.reject("cu_q", Kind::Shape, &["`cu_q`", "[B + 1]"], || packed().varlen(&none, &two).run());
    let mask = bench.zeros(DType::U8, &[1])?;
    bench.reject("mask", Kind::Shape, &["`mask`", "no mask"], || packed().varlen(&three, &three).mask(&mask).run());
    bench.reject("two lengths", Kind::Shape, &["`kv_lengths`", "cu_k"], || {
        packed().varlen(&three, &three).kv_lengths(&two).run()
    });
    // Memory.
    let flat = bench.zeros(DType::F32, &[4096])?;
    let view = |shape: &[usize], strides: &[usize], at| flat.view(shape, strides, at).map_err(text);
    let far = view(&q_shape, &[192, 64, 16, 2], 0)?;
    bench.reject("q stride", Kind::Layout, &["`q`", "stride"], || call(&far, &k, &v, &out));
    bench.reject("out stride", Kind::Layout, &["`out`", "stride"], || call(&q, &k, &v, &far));
    let same = view(&q_shape, &[96, 32, 8, 1], 0)?;
    bench.reject("out is q", Kind::Overlap, &["`out`", "`q`"], || call(&same, &k, &v, &same));
    let inside = view(&k_shape, &[80, 16, 8, 1], 40)?;
    bench.reject("out in v", Kind::Overlap, &["`out`", "`v`"], || call(&q, &k, &inside, &same));
    let repeated = view(&q_shape, &[0, 32, 8, 1], 0)?;
    bench.reject("out repeats", Kind::Layout, &["`out`", "repeat"], || call(&q, &k, &v, &repeated));
    let foreign = bench.other.zeros(DType::F32, &k_shape, BufferKind::Cold).map_err(text)?;
    bench.reject("foreign k", Kind::WrongRuntime, &["`k`"], || call(&q, &foreign, &v, &out));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("foreign stream", Kind::WrongRuntime, &["`stream`"], || plain().run_on(&mut stream));
    let mut mine = bench.env.rt.stream().map_err(text)?;
    let old = mine.step(|s| s.bump(DType::F32, &k_shape)).map_err(text)?;
    bench.reject("expired v", Kind::Expired, &["`v`", "step"], || call(&q, &k, &old, &out));
    let before = bench.env.rt.dispatch_count();
    let nothing = bench.zeros(DType::F32, &[2, 0, 4, 8])?;
    bench.accept("no queries", || call(&nothing, &k, &v, &nothing));
    if bench.env.rt.dispatch_count() == before { Ok(()) } else { Err("nothing was launched".into()) }
}

/// A tensor of the wrong shape for sinks, on the runtime of `t`.
fn bench_sinks(t: &Tensor) -> Tensor {
    t.reshape(&[24, 8]).expect("contiguous")
}

pub(super) fn kv_store(bench: &mut Bench<'_>) -> Result {
    let (shape, room) = ([2usize, 3, 2, 8], [2usize, 5, 2, 8]);
    let (k, v) = (bench.zeros(DType::F32, &shape)?, bench.zeros(DType::F32, &shape)?);
    let (kc, vc) = (bench.zeros(DType::F32, &room)?, bench.zeros(DType::F32, &room)?);
    let call = |k: &Tensor, cache: &Tensor| KvStore::new(k, cache, 0).run();
    bench.accept("one", || call(&k, &kc));
    bench.accept("two", || KvStore::pair(&k, &kc, &v, &vc, 2).run());
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        let (a, b) = (bench.zeros(dtype, &shape)?, bench.zeros(dtype, &room)?);
        if !dtype.is_float() {
            bench.reject("k", Kind::DType, &["kv_store", "`k`", dtype.name()], || call(&a, &b));
        }
        bench.reject("cache", Kind::DType, &["kv_store", "`k_cache`", dtype.name()], || call(&k, &b));
        bench.reject("v", Kind::DType, &["kv_store", "`v`", dtype.name()], || KvStore::pair(&k, &kc, &a, &b, 0).run());
        if dtype != DType::U32 {
            let each = bench.zeros(dtype, &[2])?;
            bench.reject("start", Kind::DType, &["kv_store", "`start`"], || {
                KvStore::new(&k, &kc, Start::Each(&each)).run()
            });
        }
    }
    for shape in [&[2usize, 5, 2, 7][..], &[2, 5, 3, 8], &[3, 5, 2, 8], &[10, 2, 8], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("cache", Kind::Shape, &["kv_store", "`k_cache`", "capacity"], || call(&k, &wrong));
        bench
            .reject("v_cache", Kind::Shape, &["kv_store", "`v_cache`"], || KvStore::pair(&k, &kc, &v, &wrong, 0).run());
    }
    let flat_rows = bench.zeros(DType::F32, &[6, 16])?;
    bench.reject("k", Kind::Shape, &["kv_store", "`k`", "[B, T, Hkv, D]"], || call(&flat_rows, &kc));
    bench.reject("overflow", Kind::TooLarge, &["kv_store", "6", "5"], || KvStore::new(&k, &kc, 3).run());
    bench.reject("overflow", Kind::TooLarge, &["kv_store", "5"], || KvStore::new(&k, &kc, u32::MAX).run());
    let small = bench.zeros(DType::F32, &[2, 2, 2, 8])?;
    bench.reject("ring", Kind::Shape, &["kv_store", "`k`", "2 tokens"], || KvStore::new(&k, &small, 0).ring().run());
    let three = bench.zeros(DType::U32, &[3])?;
    bench.reject("starts", Kind::Shape, &["`start`", "[2]"], || KvStore::new(&k, &kc, Start::Each(&three)).run());
    bench.reject("start", Kind::Shape, &["`start`", "one element"], || {
        KvStore::new(&k, &kc, Scalar::Device(&three)).run()
    });
    let (table, pages) = (bench.zeros(DType::U32, &[2, 1])?, bench.zeros(DType::F32, &[2, 16, 2, 8])?);
    let paged = |cache: &Tensor, table: &Tensor| KvStore::new(&k, cache, 0).table(table).run();
    bench.accept("pages", || paged(&pages, &table));
    bench.reject("page size", Kind::Shape, &["`k_cache`", "16, 32 or 64"], || paged(&kc, &table));
    bench.reject("table", Kind::Shape, &["`table`", "[2, pages]"], || paged(&pages, &three));
    let flat = bench.zeros(DType::F32, &[1024])?;
    let view = |shape: &[usize], strides: &[usize], at| flat.view(shape, strides, at).map_err(text);
    let (cache, inside) = (view(&room, &[80, 16, 8, 1], 0)?, view(&shape, &[48, 16, 8, 1], 20)?);
    bench.reject("k in the cache", Kind::Overlap, &["`k_cache`", "`k`"], || call(&inside, &cache));
    bench.reject("one cache", Kind::Overlap, &["kv_store", "cache`"], || KvStore::pair(&k, &kc, &v, &kc, 0).run());
    let repeated = view(&room, &[0, 16, 8, 1], 0)?;
    bench.reject("cache repeats", Kind::Layout, &["`k_cache`", "repeat"], || call(&k, &repeated));
    let wide = view(&room, &[200, 40, 20, 2], 0)?;
    bench.reject("cache stride", Kind::Layout, &["`k_cache`", "stride"], || call(&k, &wide));
    let foreign = bench.other.zeros(DType::F32, &room, BufferKind::Cold).map_err(text)?;
    bench.reject("foreign cache", Kind::WrongRuntime, &["`k_cache`"], || call(&k, &foreign));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("foreign stream", Kind::WrongRuntime, &["`stream`"], || KvStore::new(&k, &kc, 0).run_on(&mut stream));
    let before = bench.env.rt.dispatch_count();
    let nothing = bench.zeros(DType::F32, &[2, 0, 2, 8])?;
    bench.accept("no tokens", || call(&nothing, &kc));
    if bench.env.rt.dispatch_count() == before { Ok(()) } else { Err("nothing was launched".into()) }
}

pub(super) fn ring_densify(bench: &mut Bench<'_>) -> Result {
    let (ring, out) = (bench.zeros(DType::F32, &[2, 5, 2, 8])?, bench.zeros(DType::F32, &[2, 4, 2, 8])?);
    let call = |ring: &Tensor, out: &Tensor| RingDensify::new(ring, 7, out).run();
    bench.accept("plain", || call(&ring, &out));
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        let (a, b) = (bench.zeros(dtype, &[2, 5, 2, 8])?, bench.zeros(dtype, &[2, 4, 2, 8])?);
        if !dtype.is_float() && dtype != DType::I8 {
            bench.reject("ring", Kind::DType, &["ring_densify", "`ring`", dtype.name()], || call(&a, &b));
        }
        bench.reject("out", Kind::DType, &["ring_densify", "`out`", dtype.name()], || call(&ring, &b));
    }
    for shape in [&[2usize, 6, 2, 8][..], &[2, 4, 2, 7], &[2, 4, 1, 8], &[1, 4, 2, 8], &[8, 2, 8]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("out", Kind::Shape, &["ring_densify", "`out`", "at most 5"], || call(&ring, &wrong));
    }
    let flat = bench.zeros(DType::F32, &[10, 16])?;
    bench.reject("ring", Kind::Shape, &["ring_densify", "`ring`"], || call(&flat, &out));
    bench.reject("in place", Kind::Overlap, &["ring_densify", "`out`", "`ring`"], || call(&ring, &ring));
    let starts = bench.zeros(DType::U32, &[3])?;
    bench.reject("starts", Kind::Shape, &["`start`", "[2]"], || {
        RingDensify::new(&ring, Start::Each(&starts), &out).run()
    });
    let floats = bench.zeros(DType::F32, &[2])?;
    bench.reject("starts", Kind::DType, &["`start`"], || RingDensify::new(&ring, Start::Each(&floats), &out).run());
    let foreign = bench.other.zeros(DType::F32, &[2, 4, 2, 8], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign out", Kind::WrongRuntime, &["`out`"], || call(&ring, &foreign));
    Ok(())
}
