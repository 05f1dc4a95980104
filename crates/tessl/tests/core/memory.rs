//! Pools, limits, lifetimes.

use crate::support::{Kernels, cpu, cpu_with, null};
use tessl::{BufferKind, DType, Error, Gemm, Tensor};

#[test]
fn cold_memory_is_recycled_and_hot_memory_is_not() {
    let rt = null();
    let bytes = |rt: &tessl::GpuRuntime| rt.memory_stats();
    drop(rt.uninit(DType::F32, &[1000], BufferKind::Cold).unwrap());
    let cached = bytes(&rt);
    assert_eq!((cached.live, cached.cached, cached.cached_count), (0, 4096, 1));
    let again = rt.uninit(DType::F32, &[900], BufferKind::Cold).unwrap();
    let reused = bytes(&rt);
    assert_eq!((reused.live, reused.cached, reused.pool_hits, reused.device_allocations), (4096, 0, 1, 1));
    drop(again);
    drop(rt.uninit(DType::F32, &[1000], BufferKind::Hot).unwrap());
    assert_eq!(bytes(&rt).cached, 4096, "Hot memory goes back to the device");
    rt.trim();
    let trimmed = bytes(&rt);
    assert_eq!((trimmed.live, trimmed.cached, trimmed.live_count, trimmed.cached_count), (0, 0, 0, 0));
}

#[test]
fn sizes_that_only_grow_stay_within_the_cache_limit() {
    let limit = 1 << 20;
    let options = tessl::RuntimeOptions::new().device(tessl::Device::null("h200")).cache_limit(limit);
    let rt = tessl::GpuRuntime::with_options(&options).unwrap();
    for i in 1..400usize {
        drop(rt.uninit(DType::U8, &[i * 1000], BufferKind::Cold).unwrap());
        let stats = rt.memory_stats();
        assert!(stats.cached <= limit && stats.live == 0, "{stats:?}");
    }
    // New sizes push old ones out: the size in use now is served from the cache.
    rt.set_cache_limit(64 << 20);
    for mib in 2..60usize {
        let get = || drop(rt.uninit(DType::U8, &[mib << 20], BufferKind::Cold).unwrap());
        get();
        let hits = rt.memory_stats().pool_hits;
        get();
        assert_eq!(rt.memory_stats().pool_hits, hits + 1, "{mib} MiB");
        assert!(rt.memory_stats().cached <= 64 << 20);
    }
    rt.set_cache_limit(1000);
    assert!(rt.memory_stats().cached <= 1000);
}

#[test]
fn cache_is_limited_in_count() {
    let options = tessl::RuntimeOptions::new().device(tessl::Device::null("h200")).cache_count(10);
    let rt = tessl::GpuRuntime::with_options(&options).unwrap();
    let many: Vec<Tensor> = (0..100).map(|_| rt.uninit(DType::U8, &[10], BufferKind::Cold).unwrap()).collect();
    drop(many);
    assert_eq!(rt.memory_stats().cached_count, 10);
}

#[test]
fn memory_limit_is_a_typed_error_and_the_cache_gives_way_first() {
    let rt = cpu_with(|o| o.memory_limit(10 << 20));
    let hold = rt.uninit(DType::U8, &[4 << 20], BufferKind::Hot).unwrap();
    drop(rt.uninit(DType::U8, &[5 << 20], BufferKind::Cold).unwrap());
    // 4 live and 5 cached: 6 more fit only without the cache.
    let more = rt.uninit(DType::U8, &[6 << 20], BufferKind::Hot).unwrap();
    let error = rt.uninit(DType::U8, &[1 << 20], BufferKind::Hot).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { limit, .. } if limit == 10 << 20), "{error}");
    drop(more);
    let x = rt.from_slice(&[1.0f32; 9], &[3, 3]).unwrap();
    let y = rt.alloc_tensor_f32(&[3, 3]).unwrap();
    Gemm::new(&x, &x, &y).run().unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [3.0; 9]);
    drop(hold);
}

#[test]
fn operands_dropped_after_encoding_keep_their_data() {
    let rt = cpu();
    let mut outputs = Vec::new();
    for i in 0..50u8 {
        let a = rt.from_slice(&[f32::from(i); 16], &[4, 4]).unwrap();
        let b = rt.from_slice(&[1.0f32; 16], &[4, 4]).unwrap();
        let c = rt.uninit(DType::F32, &[4, 4], BufferKind::Cold).unwrap();
        Gemm::new(&a, &b, &c).run().unwrap();
        outputs.push(c);
        // a and b are gone here, before anything has run; their memory must not be given to the next round.
    }
    for (i, c) in outputs.iter().enumerate() {
        assert_eq!(c.read::<f32>().unwrap(), [4.0 * i as f32; 16]);
    }
}

#[test]
fn bump_memory_expires_and_is_reused() {
    let rt = cpu();
    let mut s = rt.stream().unwrap();
    let x = rt.from_slice(&[2.0f32; 64], &[8, 8]).unwrap();
    let out = rt.alloc_tensor_f32(&[8, 8]).unwrap();
    let mut after_first = None;
    for step in 0..100 {
        let old = s
            .step(|s| {
                let t = s.bump(DType::F32, &[8, 8])?;
                let u = s.bump(DType::F32, &[8, 8])?;
                assert_eq!((t.buffer_kind(), t.shape()), (BufferKind::Bump, &[8usize, 8][..]));
                Gemm::new(&x, &x, &t).run_on(s)?;
                Gemm::new(&t, &x, &u).run_on(s)?;
                Gemm::new(&u, &x, &out).run_on(s)?;
                Ok(t)
            })
            .unwrap();
        assert!(matches!(old.read::<f32>().unwrap_err(), Error::Expired { .. }));
        let live = rt.memory_stats().live;
        assert!(*after_first.get_or_insert(live) >= live, "step {step}: {live} bytes");
    }
    assert_eq!(out.read::<f32>().unwrap(), [2.0 * 16.0 * 16.0 * 16.0; 64]);
    // A step larger than its slab, whose tensors stay good until it ends.
    s.step(|s| {
        let small = s.bump(DType::U8, &[1000])?;
        small.write_on(&[7u8; 1000], s)?;
        let large = s.bump(DType::U8, &[40 << 20])?;
        let again = s.bump(DType::U8, &[1000])?;
        again.write_on(&[9u8; 1000], s)?;
        assert_eq!(small.read::<u8>()?, [7u8; 1000]);
        assert_eq!(large.len(), 40 << 20);
        assert_eq!(again.read::<u8>()?, [9u8; 1000]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_million_views_cost_no_device_memory() {
    let rt = cpu();
    let all = rt.zeros(DType::U8, &[256 << 10], BufferKind::Hot).unwrap();
    let before = rt.memory_stats();
    let views: Vec<Tensor> = (0..1_000_000).map(|i| all.narrow(0, i % 1024 * 256, 256).unwrap()).collect();
    assert_eq!(rt.memory_stats(), before);
    views[777_777].write(&[3u8; 256]).unwrap();
    assert_eq!(views[777_777 % 1024].read::<u8>().unwrap(), [3u8; 256]);
    assert_eq!(views[(777_777 + 1) % 1024].read::<u8>().unwrap(), [0u8; 256]);
}

/// Uploads that nobody waits for do not pile up staging memory.
#[test]
fn staging_memory_is_bounded() {
    let rt = cpu();
    let x = rt.uninit(DType::U8, &[16 << 20], BufferKind::Hot).unwrap();
    let data = vec![1u8; 16 << 20];
    for _ in 0..60 {
        x.write(&data).unwrap();
    }
    rt.synchronize().unwrap();
    let peak = rt.memory_stats().peak;
    assert!(peak <= 400 << 20, "{} MiB", peak >> 20);
}

#[test]
fn external_memory_is_kept_alive_and_released() {
    let rt = cpu();
    let k = Kernels::new(&rt);
    let words: std::sync::Arc<[std::sync::atomic::AtomicU32]> =
        [5u32, 0].into_iter().map(std::sync::atomic::AtomicU32::new).collect();
    // SAFETY: the words live as long as `keep_alive` and are written through this runtime alone.
    let bytes = unsafe { rt.from_external(words.as_ptr().cast::<u8>().cast_mut(), 8, words.clone()) }.unwrap();
    assert_eq!(bytes.buffer_kind(), BufferKind::External);
    let both = bytes.bitcast(DType::U32).unwrap();
    drop(bytes);
    let mut s = rt.stream().unwrap();
    let (from, to) = (both.narrow(0, 0, 1).unwrap(), both.narrow(0, 1, 1).unwrap());
    k.mix(&mut s, &from, &to, 1).unwrap();
    drop((both, from, to));
    assert_eq!(std::sync::Arc::strong_count(&words), 2, "the pending command keeps the memory");
    s.synchronize().unwrap();
    assert_eq!(words[1].load(std::sync::atomic::Ordering::Relaxed), 16);
    assert_eq!(std::sync::Arc::strong_count(&words), 1);
}
