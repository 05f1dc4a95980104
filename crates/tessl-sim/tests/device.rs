//! The whole library on the simulated device: API, plans, hazards and kernels.

use tessl::nn::RmsNorm;
use tessl::{Activation, Gemm, GpuRuntime, RuntimeOptions};
use tessl_sim::Schedule;

const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Backward, Schedule::Random(7)];

fn open(schedule: Schedule) -> Option<GpuRuntime> {
    match tessl_sim::open("m2", schedule, &RuntimeOptions::new()) {
        Ok(rt) => Some(rt),
        Err(error) => {
            println!("skipped: sim_device: {error}");
            None
        }
    }
}

#[test]
fn a_chain_of_dependent_ops_is_right_in_every_order() {
    let mut results = Vec::new();
    for schedule in SCHEDULES {
        let Some(rt) = open(schedule) else { return };
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
        assert_eq!(rt.dispatch_count(), 4);
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
    assert!(results[0].iter().all(|v| v.is_finite()));
}

#[test]
fn integer_products_are_exact() {
    for schedule in SCHEDULES {
        let Some(rt) = open(schedule) else { return };
        let (m, n, k) = (3, 4, 5);
        let pa = |i: usize, k: usize| ((131 * i + 71 * k + i * k) % 7) as f32 - 1.0;
        let pb = |k: usize, j: usize| ((57 * k + 101 * j + k * j) % 5) as f32 - 1.0;
        let a: Vec<f32> = (0..m * k).map(|i| pa(i / k, i % k)).collect();
        let b: Vec<f32> = (0..k * n).map(|i| pb(i / n, i % n)).collect();
        let (a, b) = (rt.from_slice(&a, &[m, k]).unwrap(), rt.from_slice(&b, &[k, n]).unwrap());
        let c = rt.alloc_tensor_f32(&[m, n]).unwrap();
        Gemm::new(&a, &b, &c).run().unwrap();
        let want = [10., 5., 10., 10., 8., 5., 22., 24., 6., 12., 13., 24.];
        assert_eq!(c.read::<f32>().unwrap(), want);
        // The same product written to a transposed view.
        let t = rt.alloc_tensor_f32(&[n, m]).unwrap();
        Gemm::new(&a, &b, &t.t().unwrap()).run().unwrap();
        assert_eq!(t.t().unwrap().read::<f32>().unwrap(), want);
    }
}
