//! The whole library over the mock: API, plans, hazards, the Metal device, the driver's checks, the kernels.

mod common;

use common::{SCHEDULES, mock};
use tessl::nn::RmsNorm;
use tessl::{Activation, Gemm, RuntimeOptions};

#[test]
fn a_chain_of_dependent_ops_is_right_in_every_order() {
    let mut results = Vec::new();
    for schedule in SCHEDULES {
        let mock = mock(schedule);
        let run = mock.open(&RuntimeOptions::new()).unwrap();
        let rt = &run.rt;
        let n = 65;
        let x: Vec<f32> = (0..n * n).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
        let a = rt.from_slice(&x, &[n, n]).unwrap();
        let w = rt.from_slice(&vec![1.0f32; n], &[n]).unwrap();
        let (b, c) = (rt.alloc_tensor_f32(&[n, n]).unwrap(), rt.alloc_tensor_f32(&[n, n]).unwrap());
        RmsNorm::new(&a, &w, &b).run().unwrap();
        Gemm::new(&b, &a.t().unwrap(), &c).activation(Activation::Silu).run().unwrap();
        RmsNorm::new(&c, &w, &c).run().unwrap();
        Gemm::new(&c, &a, &b).beta(1.0).alpha(0.5).run().unwrap();
        results.push(b.read::<f32>().unwrap());
        assert_eq!(mock.findings(), Vec::<String>::new());
        let counts = mock.counts();
        assert_eq!((counts.dispatches, counts.commits), (4, 1));
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
    assert!(results[0].iter().all(|v| v.is_finite()));
}
