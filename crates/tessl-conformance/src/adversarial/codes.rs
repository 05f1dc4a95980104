//! Wrong calls with caches of codes.

use super::{Bench, Kind, Result, text};
use tessl::nn::{Attention, KvStore, RingDensify};
use tessl::{BufferKind, DType, Tensor};

pub(super) fn attention(bench: &mut Bench<'_>) -> Result {
    let (q, out) = (bench.zeros(DType::F16, &[2, 3, 4, 8])?, bench.zeros(DType::F16, &[2, 3, 4, 8])?);
    let (k, v) = (bench.zeros(DType::I8, &[2, 5, 2, 8])?, bench.zeros(DType::I8, &[2, 5, 2, 8])?);
    let scales = bench.zeros(DType::F32, &[2, 5, 2])?;
    let call = |k: &Tensor, v: &Tensor, a: &Tensor, b: &Tensor| Attention::new(&q, k, v, &out).kv_scales(a, b).run();
    bench.accept("codes", || call(&k, &v, &scales, &scales));
    bench.reject("codes without scales", Kind::DType, &["attention", "`k`", "i8"], || {
        Attention::new(&q, &k, &v, &out).run()
    });
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::I8) {
        let wrong = bench.zeros(dtype, &[2, 5, 2, 8])?;
        bench.reject("k", Kind::DType, &["attention", "`k`", dtype.name()], || call(&wrong, &v, &scales, &scales));
        bench.reject("v", Kind::DType, &["attention", "`v`", dtype.name()], || call(&k, &wrong, &scales, &scales));
    }
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        let wrong = bench.zeros(dtype, &[2, 5, 2])?;
        bench.reject("scales", Kind::DType, &["attention", "`k_scales`", "f32"], || call(&k, &v, &wrong, &scales));
        bench.reject("scales", Kind::DType, &["attention", "`v_scales`", "f32"], || call(&k, &v, &scales, &wrong));
    }
    for shape in [&[2usize, 5, 3][..], &[2, 4, 2], &[2, 5, 2, 1], &[20], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("scales", Kind::Shape, &["`k_scales`", "[2, 5, 2]"], || call(&k, &v, &wrong, &scales));
        bench.reject("scales", Kind::Shape, &["`v_scales`", "[2, 5, 2]"], || call(&k, &v, &scales, &wrong));
    }
    let foreign = bench.other.zeros(DType::F32, &[2, 5, 2], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign scales", Kind::WrongRuntime, &["`v_scales`"], || call(&k, &v, &scales, &foreign));
    Ok(())
}

pub(super) fn kv_store(bench: &mut Bench<'_>) -> Result {
    let (shape, room) = ([2usize, 3, 2, 8], [2usize, 5, 2, 8]);
    let (k, v) = (bench.zeros(DType::Bf16, &shape)?, bench.zeros(DType::Bf16, &shape)?);
    let (kc, vc) = (bench.zeros(DType::I8, &room)?, bench.zeros(DType::I8, &room)?);
    let (ks, vs) = (bench.zeros(DType::F32, &room[..3])?, bench.zeros(DType::F32, &room[..3])?);
    let one = |cache: &Tensor, scales: &Tensor| KvStore::new(&k, cache, 0).k_scales(scales).run();
    let two = |ks: &Tensor, vs: &Tensor| KvStore::pair(&k, &kc, &v, &vc, 0).k_scales(ks).v_scales(vs).run();
    bench.accept("one", || one(&kc, &ks));
    bench.accept("two", || two(&ks, &vs));
    bench.reject("no scales", Kind::DType, &["kv_store", "`k_cache`", "i8"], || KvStore::new(&k, &kc, 0).run());
    for (what, name, op) in [
        ("no scales of v", "`v_scales`", KvStore::pair(&k, &kc, &v, &vc, 0).k_scales(&ks)),
        ("no scales of k", "`k_scales`", KvStore::pair(&k, &kc, &v, &vc, 0).v_scales(&vs)),
    ] {
        bench.reject(what, Kind::DType, &["kv_store", name, "i8"], || op.run());
    }
    bench.reject("no v", Kind::Shape, &["kv_store", "`v_scales`"], || {
        KvStore::new(&k, &kc, 0).k_scales(&ks).v_scales(&vs).run()
    });
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        let wrong = bench.zeros(dtype, &room[..3])?;
        bench.reject("scales", Kind::DType, &["kv_store", "`k_scales`", dtype.name()], || one(&kc, &wrong));
        bench.reject("scales", Kind::DType, &["kv_store", "`v_scales`", dtype.name()], || two(&ks, &wrong));
        if dtype != DType::I8 {
            let cache = bench.zeros(dtype, &room)?;
            bench.reject("cache", Kind::DType, &["kv_store", "`k_cache`", dtype.name()], || one(&cache, &ks));
        }
    }
    for shape in [&[2usize, 5, 3][..], &[2, 3, 2], &[2, 5, 2, 1], &[20]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("scales", Kind::Shape, &["`k_scales`", "[2, 5, 2]"], || one(&kc, &wrong));
        bench.reject("scales", Kind::Shape, &["`v_scales`", "[2, 5, 2]"], || two(&ks, &wrong));
    }
    bench.reject("one for both", Kind::Overlap, &["kv_store", "_scales`"], || two(&ks, &ks));
    let repeated = ks.view(&room[..3], &[0, 2, 1], 0).map_err(text)?;
    bench.reject("repeats", Kind::Layout, &["`k_scales`", "repeat"], || one(&kc, &repeated));
    let foreign = bench.other.zeros(DType::F32, &room[..3], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign scales", Kind::WrongRuntime, &["`k_scales`"], || one(&kc, &foreign));
    // A ring of codes, and of their scales.
    let out = bench.zeros(DType::I8, &[2, 4, 2, 8])?;
    bench.accept("ring of codes", || RingDensify::new(&kc, 7, &out).run());
    let (column, ordered) = (ks.reshape(&[2, 5, 2, 1]).map_err(text)?, bench.zeros(DType::F32, &[2, 4, 2, 1])?);
    bench.accept("ring of scales", || RingDensify::new(&column, 7, &ordered).run());
    Ok(())
}
