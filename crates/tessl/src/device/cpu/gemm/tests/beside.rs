//! Activations that run beside the products of the next panel: the same bits as apart from the product.

use super::super::activation::activate;
use super::harness::profiles;
use crate::dtype::Element;
use crate::{Activation, BufferKind, Device, Gemm, GpuRuntime, RuntimeOptions};
use half::{bf16, f16};

fn check<T: Element + Copy>(
    rt: &GpuRuntime,
    [m, n, k]: [usize; 3],
    activation: Activation,
    biased: bool,
    narrow: fn(f32) -> T,
) {
    let values = |count: usize, seed: usize| -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32(((i * 2_654_435_761 + seed) % 1013) as f32 / 506.0 - 1.0)).collect()
    };
    let a = rt.from_slice(&values(m * k, 1), &[m, k]).unwrap();
    let b = rt.from_slice(&values(k * n, 5), &[k, n]).unwrap();
    let of_column: Vec<f32> = (0..n).map(|j| (j % 7) as f32 / 2.0 - 1.5).collect();
    let bias = rt.from_slice(&of_column, &[n]).unwrap();
    let sums = rt.uninit(crate::DType::F32, &[m, n], BufferKind::Hot).unwrap();
    Gemm::new(&a, &b, &sums).run().unwrap();
    let mut want = sums.read::<f32>().unwrap();
    if biased {
        for (x, b) in want.iter_mut().zip(of_column.iter().cycle()) {
            *x += b;
        }
    }
    activate(&mut want, activation);

    // Rows above and below must stay as they were.
    let whole = rt.uninit(T::DTYPE, &[m + 2, n], BufferKind::Hot).unwrap();
    whole.write(&vec![narrow(f32::NAN); (m + 2) * n]).unwrap();
    let c = whole.narrow(0, 1, m).unwrap();
    let op = Gemm::new(&a, &b, &c).activation(activation);
    if biased { op.bias(&bias) } else { op }.run().unwrap();
    let want: Vec<T> = want.into_iter().map(narrow).collect();
    let bytes = bytemuck::cast_slice::<T, u8>;
    let got = whole.read::<T>().unwrap();
    assert!(bytes(&got[n..n * (m + 1)]) == bytes(&want), "{activation:?} {} {m}x{n}x{k}", T::DTYPE);
    let poison = vec![narrow(f32::NAN); n];
    assert!(bytes(&got[..n]) == bytes(&poison) && bytes(&got[n * (m + 1)..]) == bytes(&poison), "{m}x{n}x{k}");
}

/// Whole and ragged panels, strips of all heights, one and several pieces of k, and more of it than is packed at once.
#[test]
fn a_fused_activation_has_the_bits_of_one_apart() {
    const SIZES: [[usize; 3]; 9] = [
        [1, 96, 64],
        [16, 64, 40],
        [33, 65, 300],
        [48, 160, 1],
        [70, 96, 513],
        [300, 80, 256],
        [513, 520, 96],
        [290, 96, 4200],
        [40, 31, 70],
    ];
    for profile in profiles() {
        for threads in [1, 3] {
            let options = RuntimeOptions::new().device(Device::cpu()).isa(profile.isa).threads(threads);
            let rt = GpuRuntime::with_options(&options).unwrap();
            for (i, size) in SIZES.into_iter().enumerate() {
                let all = [Activation::Gelu, Activation::Relu, Activation::Silu, Activation::GeluTanh];
                check(&rt, size, all[i % 4], true, bf16::from_f32);
                check(&rt, size, all[(i + 1) % 4], true, |x| x);
                check(&rt, size, all[(i + 2) % 4], false, f16::from_f32);
            }
        }
    }
}
