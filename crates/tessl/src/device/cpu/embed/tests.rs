//! Rows of a strided table, the factor, and ids outside.

use super::super::rows::harness::{bound, kernels};
use super::BUILTINS;
use crate::args::EmbedArgs;
use crate::device::cpu::{FaultCell, KernelCall, Pool};
use crate::error::FaultKind;

#[test]
fn rows_are_copied_or_scaled_and_bad_ids_are_told() {
    let n = 20u16;
    let args = EmbedArgs {
        y_s2: 21,
        i_s2: 2,
        t_s: 25,
        rows: 4,
        r1: 1,
        r2: u32::MAX,
        n: n.into(),
        vocabulary: 10,
        is_signed: 1,
        scale: 2.0,
        ..Default::default()
    };
    for kernel in kernels(BUILTINS, "embedding_f32".into()) {
        for scaled in [0, 1] {
            let mut table: Vec<f32> = (0..250u16).map(f32::from).collect();
            let mut ids = [9u32, 77, 0, 77, (-3i32).cast_unsigned(), 77, 10];
            let mut y = vec![-1.0f32; 4 * 21];
            let args = EmbedArgs { scaled, ..args };
            let (pool, fault) = (Pool::new(2), FaultCell::default());
            let bindings = [bound(&mut table), bound(&mut ids), bound(&mut y)];
            let call = KernelCall { args: bytemuck::bytes_of(&args), bindings: &bindings, pool: &pool, fault: &fault };
            // SAFETY: the bindings cover what the arguments describe.
            unsafe { (kernel.function)(&call) };
            assert_eq!(fault.take(), Some((FaultKind::IndexOutOfRange, 2, -3)), "{}", kernel.name);
            for (row, id) in [(0, Some(9)), (1, Some(0)), (2, None), (3, None)] {
                for i in 0..21u16 {
                    let want = id
                        .filter(|_| i < n)
                        .map_or(-1.0, |id| f32::from(id * 25 + i) * f32::from(1 + u8::from(scaled == 1)));
                    assert_eq!(y[row * 21 + usize::from(i)], want, "{} [{row}, {i}]", kernel.name);
                }
            }
        }
    }
}
