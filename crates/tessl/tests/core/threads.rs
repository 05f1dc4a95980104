//! One runtime from many threads; one result for any number of threads.

use crate::support::{cpu, null, numbers};
use tessl::nn::RmsNorm;
use tessl::{Activation, DType, Gemm, GemmBackend, GpuRuntime, Isa, Tensor, bf16, f16};

#[test]
fn sixteen_threads_share_a_runtime() {
    let rt = cpu();
    let shapes = [(3usize, 5usize, 7usize), (16, 16, 16), (1, 33, 9), (20, 3, 40)];
    let want: Vec<Vec<f32>> = shapes.iter().map(|&shape| product(&cpu(), shape)).collect();
    std::thread::scope(|scope| {
        for thread in 0..16usize {
            let (rt, want) = (rt.clone(), &want);
            scope.spawn(move || {
                for round in 0..250 {
                    let which = (thread + round) % shapes.len();
                    if round % 2 == 0 {
                        assert_eq!(product(&rt, shapes[which]), want[which]);
                        continue;
                    }
                    let mut stream = rt.stream().unwrap();
                    let x = rt.from_slice(&numbers(64, 3), &[4, 16]).unwrap();
                    let w = rt.from_slice(&[1.0f32; 16], &[16]).unwrap();
                    RmsNorm::new(&x, &w, &x).run_on(&mut stream).unwrap();
                    assert!(x.read::<f32>().unwrap().iter().all(|v| v.is_finite()));
                }
            });
        }
    });
    rt.synchronize().unwrap();
    assert_eq!(rt.dispatch_count(), 16 * 250);
    let stats = rt.memory_stats();
    rt.trim();
    assert_eq!(rt.memory_stats().live_count, 0, "{stats:?}");
}

fn product(rt: &GpuRuntime, (m, n, k): (usize, usize, usize)) -> Vec<f32> {
    let a = rt.from_slice(&numbers(m * k, 1), &[m, k]).unwrap();
    let b = rt.from_slice(&numbers(k * n, 2), &[k, n]).unwrap();
    let c = rt.alloc_tensor_f32(&[m, n]).unwrap();
    Gemm::new(&a, &b, &c).activation(Activation::Gelu).run().unwrap();
    c.read().unwrap()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let isas = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx];
    for isa in isas {
        let options = |threads| tessl::RuntimeOptions::new().device(tessl::Device::cpu()).isa(isa).threads(threads);
        let Ok(one) = GpuRuntime::with_options(&options(1)) else { continue };
        let want = everything(&one);
        for threads in [2, 3, 5] {
            let rt = GpuRuntime::with_options(&options(threads)).unwrap();
            assert!(everything(&rt) == want, "{isa:?} with {threads} threads");
        }
    }
}

/// Outputs of products and normalisations of several sizes and types, as bits.
fn everything(rt: &GpuRuntime) -> Vec<u32> {
    let mut bits = Vec::new();
    for (m, n, k) in [(1usize, 300usize, 200usize), (7, 65, 129), (130, 270, 300), (257, 64, 1000)] {
        let (a, b) = (numbers(m * k, 11), numbers(k * n, 12));
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let (ta, tb) = (convert(rt, &a, &[m, k], dtype), convert(rt, &b, &[k, n], dtype));
            for backend in [GemmBackend::TensorOps, GemmBackend::Simdgroup] {
                let c = rt.from_slice(&numbers(m * n, 13), &[m, n]).unwrap();
                Gemm::new(&ta, &tb, &c).backend(backend).alpha(0.3).beta(0.6).run().unwrap();
                bits.extend(c.read::<f32>().unwrap().iter().map(|v| v.to_bits()));
            }
            let w = rt.from_slice(&numbers(k, 14), &[k]).unwrap();
            let y = rt.zeros(dtype, &[m, k], tessl::BufferKind::Cold).unwrap();
            RmsNorm::new(&ta, &w, &y).run().unwrap();
            let bytes = y.bitcast(DType::U8).unwrap().read::<u8>().unwrap();
            bits.extend(bytes.into_iter().map(u32::from));
        }
    }
    bits
}

fn convert(rt: &GpuRuntime, data: &[f32], shape: &[usize], dtype: DType) -> Tensor {
    match dtype {
        DType::Bf16 => rt.from_slice(&data.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>(), shape),
        DType::F16 => rt.from_slice(&data.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>(), shape),
        _ => rt.from_slice(data, shape),
    }
    .unwrap()
}

/// Kernels are compiled per variant, plans are kept up to a bound.
#[test]
fn pipelines_do_not_grow_with_shapes() {
    let rt = null();
    let b = rt.alloc_tensor_bf16(&[512, 512]).unwrap();
    let (a, c) = (rt.alloc_tensor_bf16(&[1024, 512]).unwrap(), rt.alloc_tensor_bf16(&[1024, 512]).unwrap());
    let run = |m: usize| {
        let (a, c) = (a.narrow(0, 0, m).unwrap(), c.narrow(0, 0, m).unwrap());
        Gemm::new(&a, &b, &c).run().unwrap();
    };
    (1..=1024).for_each(run);
    let count = rt.pipeline_count();
    assert!(count <= 8, "{count} kernels for 1024 sizes of one product");
    (1..=1024).for_each(run);
    assert_eq!(rt.pipeline_count(), count);
}
