//! Wrong calls of tensors and allocations.

use super::{Bench, Kind, Result, text};
use tessl::{BufferKind, DType, Device, GpuRuntime, RuntimeOptions, f16};

pub(super) fn views(bench: &mut Bench<'_>) -> Result {
    let a = bench.a.clone(); // [2, 3]
    bench.reject("narrow axis", Kind::Shape, &["Tensor::narrow", "axis"], || a.narrow(2, 0, 1));
    bench.reject("narrow range", Kind::Shape, &["Tensor::narrow", "range"], || a.narrow(1, 2, 2));
    bench.reject("narrow overflow", Kind::Shape, &["Tensor::narrow"], || a.narrow(1, usize::MAX, 2));
    bench.reject("select", Kind::Shape, &["Tensor::narrow"], || a.select(0, 2));
    bench.reject("select axis", Kind::Shape, &["axis"], || a.select(7, 0));
    let line = bench.bias.clone(); // [4]
    bench.reject("t of a vector", Kind::Shape, &["Tensor::t", "two axes"], || line.t());
    for order in [&[0usize][..], &[0, 0], &[1, 2], &[0, 1, 2], &[]] {
        bench.reject("permute", Kind::Shape, &["Tensor::permute", "order"], || a.permute(order));
    }
    for shape in [&[7usize][..], &[2, 4], &[], &[0], &[usize::MAX, 2], &[1 << 63, 2, 0]] {
        bench.reject("reshape", Kind::Shape, &["Tensor::reshape"], || a.reshape(shape));
    }
    let turned = a.t().map_err(text)?;
    bench.reject("reshape of a transposed view", Kind::Layout, &["Tensor::reshape", "contiguous"], || {
        turned.reshape(&[6])
    });
    for shape in [&[3usize][..], &[2, 4], &[3, 2, 4], &[usize::MAX, 2, 3], &[]] {
        bench.reject("broadcast_to", Kind::Shape, &["Tensor::broadcast_to"], || a.broadcast_to(shape));
    }
    bench.reject("view rank", Kind::Layout, &["Tensor::view", "strides"], || a.view(&[2, 3], &[1], 0));
    bench.reject("view past the end", Kind::Layout, &["Tensor::view", "memory"], || a.view(&[1000], &[1], 0));
    bench.reject("view offset", Kind::Layout, &["Tensor::view"], || a.view(&[1], &[1], 1 << 40));
    bench.reject("view offset overflow", Kind::Layout, &["Tensor::view"], || a.view(&[1], &[1], usize::MAX));
    bench.reject("view stride", Kind::Layout, &["Tensor::view"], || a.view(&[2], &[usize::MAX], 0));
    bench.reject("view stride and offset", Kind::Layout, &["Tensor::view"], || a.view(&[2], &[usize::MAX], usize::MAX));
    bench.reject("view shape", Kind::Shape, &["Tensor::view"], || a.view(&[usize::MAX, 2], &[0, 0], 0));
    bench.accept("view of one element far strided", || a.view(&[1, 2], &[usize::MAX, 1], 0));
    bench.reject("bitcast of a transposed view", Kind::Layout, &["Tensor::bitcast"], || turned.bitcast(DType::U8));
    let bytes = bench.zeros(DType::U8, &[7])?;
    bench.reject("bitcast of 7 bytes", Kind::Shape, &["Tensor::bitcast", "f32"], || bytes.bitcast(DType::F32));
    let odd = bytes.narrow(0, 1, 4).map_err(text)?;
    bench.reject("bitcast off its alignment", Kind::Layout, &["Tensor::bitcast"], || odd.bitcast(DType::F32));
    Ok(())
}

pub(super) fn transfers(bench: &mut Bench<'_>) -> Result {
    let a = bench.a.clone();
    bench.reject("read as f16", Kind::DType, &["Tensor::read", "f32", "f16"], || a.read::<f16>());
    bench.reject("read into 5", Kind::Shape, &["Tensor::read", "5 elements"], || a.read_into(&mut [0.0f32; 5]));
    bench.reject("write i32", Kind::DType, &["Tensor::write"], || a.write(&[0i32; 6]));
    bench.reject("write 7", Kind::Shape, &["Tensor::write", "7 elements"], || a.write(&[0.0f32; 7]));
    let wide = bench.bias.broadcast_to(&[3, 4]).map_err(text)?;
    bench.reject("write to a broadcast", Kind::Layout, &["Tensor::write", "repeats"], || wide.write(&[0.0f32; 12]));
    let mut foreign = bench.other.stream().map_err(text)?;
    bench.reject("write on a foreign stream", Kind::WrongRuntime, &["Tensor::write_on"], || {
        a.write_on(&[0.0f32; 6], &mut foreign)
    });
    let mut stream = bench.env.rt.stream().map_err(text)?;
    let old = stream.step(|s| s.bump(DType::F32, &[2])).map_err(text)?;
    bench.reject("read expired", Kind::Expired, &["Tensor::read"], || old.read::<f32>());
    bench.reject("write expired", Kind::Expired, &["Tensor::write"], || old.write(&[0.0f32; 2]));
    Ok(())
}

pub(super) fn allocation(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    for shape in [&[usize::MAX][..], &[1 << 32, 1 << 32], &[usize::MAX, 2], &[1 << 62]] {
        bench.reject("overflow", Kind::Shape, &["shape"], || rt.alloc_tensor_f32(shape));
        bench.reject("overflow", Kind::Shape, &["shape"], || rt.uninit(DType::Bf16, shape, BufferKind::Hot));
    }
    bench.reject("from_slice", Kind::Shape, &["Tensor::write", "3 elements"], || rt.from_slice(&[0.0f32; 3], &[2, 2]));
    bench.reject("Bump outside a step", Kind::Capture, &["Stream::step"], || {
        rt.zeros(DType::F32, &[1], BufferKind::Bump)
    });
    let external = || rt.zeros(DType::F32, &[1], BufferKind::External);
    bench.reject("External", Kind::Capture, &["from_external"], external);
    Ok(())
}

/// Views without elements, at sizes whose product would not fit.
pub(super) fn empty_and_huge(bench: &mut Bench<'_>) -> Result {
    let huge = 1usize << 40;
    let empty = bench.zeros(DType::F32, &[0, huge, huge])?;
    bench.accept("permuted", || {
        let turned = empty.permute(&[1, 2, 0])?;
        assert_eq!((turned.len(), turned.is_empty(), turned.read::<f32>()?.len()), (0, true, 0));
        turned.write::<f32>(&[])?;
        let _ = (turned.is_contiguous(), turned.t()?, turned.narrow(0, huge - 3, 2)?);
        Ok(())
    });
    let flat = bench.zeros(DType::F32, &[0, 10])?;
    bench.accept("narrow of an empty tensor", || {
        let part = flat.narrow(1, 5, 3)?;
        assert!(part.read::<f32>()?.is_empty());
        part.view(&[0], &[1], 0)
    });
    let part = flat.narrow(1, 5, 3).map_err(text)?;
    bench.reject("view of an empty tensor's memory", Kind::Layout, &["Tensor::view"], || part.view(&[1000], &[1], 0));
    let (rows, weight) = (bench.zeros(DType::F32, &[0, huge, huge, 4])?, bench.zeros(DType::F32, &[4])?);
    bench.accept("rms_norm of nothing", || {
        let x = rows.permute(&[1, 2, 0, 3])?;
        tessl::nn::RmsNorm::new(&x, &weight, &x).run()
    });
    Ok(())
}

pub(super) fn external(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    // SAFETY: a null pointer is refused before it is used.
    bench.reject("null", Kind::Layout, &["GpuRuntime::from_external", "null"], || unsafe {
        rt.from_external(std::ptr::null_mut(), 64, ())
    });
    if !rt.info().unified_memory {
        return Ok(());
    }
    // Three ranges of one buffer, the third over both others: a write through one is seen by all.
    let words: std::sync::Arc<[std::sync::atomic::AtomicU64]> =
        (0..64).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let start = words.as_ptr().cast::<u8>().cast_mut();
    let import = |at: usize, bytes: usize| {
        // SAFETY: inside the words, which `keep_alive` keeps; they are written only by this runtime.
        unsafe { rt.from_external(start.wrapping_add(at), bytes, words.clone()) }
            .and_then(|t| t.bitcast(DType::F32))
            .map_err(text)
    };
    let (first, second, both) = (import(0, 256)?, import(256, 256)?, import(128, 256)?);
    let (a, b) = (bench.a.clone(), bench.b.clone());
    let c = both.view(&[2, 4], &[32, 1], 0).map_err(text)?; // bytes 128..144 and 256..272 of the buffer
    let a1 = first.view(&[2, 3], &[3, 1], 32).map_err(text)?;
    bench.reject("over the first", Kind::Overlap, &["`a`"], || tessl::Gemm::new(&a1, &b, &c).run());
    let a2 = second.view(&[2, 3], &[3, 1], 0).map_err(text)?;
    bench.reject("over the second", Kind::Overlap, &["`a`"], || tessl::Gemm::new(&a2, &b, &c).run());
    bench.accept("written through the third", || {
        tessl::Gemm::new(&a, &b, &c).run()?;
        let seen = second.narrow(0, 0, 4)?.read::<f32>()?;
        assert!(!bench_computes(&rt) || seen == [3.0; 4], "{seen:?}");
        Ok(())
    });
    Ok(())
}

fn bench_computes(rt: &GpuRuntime) -> bool {
    !rt.device().starts_with("null")
}

/// Options outside their ranges.
pub(super) fn options(bench: &mut Bench<'_>) {
    let null = Device::null("m2");
    let open = |o: RuntimeOptions| GpuRuntime::with_options(&o.device(null.clone()));
    bench.reject("flush_every 0", Kind::Scalar, &["flush_every"], || open(RuntimeOptions::new().flush_every(0)));
    bench.reject("flush_every", Kind::Scalar, &["flush_every"], || open(RuntimeOptions::new().flush_every(1 << 20)));
    bench.reject("gpu_only", Kind::Unavailable, &["gpu"], || open(RuntimeOptions::new().gpu_only()));
    bench.reject("memory limit", Kind::OutOfMemory, &["limit 1000"], || {
        open(RuntimeOptions::new().memory_limit(1000))?.alloc_tensor_f32(&[1000])
    });
}
