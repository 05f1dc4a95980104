//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part")]

use tessl::device::metal::Options;
use tessl::nn::RmsNorm;
use tessl::{Activation, BufferKind, DType, Gemm, GpuRuntime, GraphOptions, Result};
use tessl_metal_mock::{Config, Mock};
use tessl_sim::Schedule;

pub const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Backward, Schedule::Random(7)];

/// Every way to keep a graph in an indirect command buffer.
pub fn indirect() -> [Options; 3] {
    let on = GraphOptions::new().indirect(true);
    [on, on.freeze_binds(true), on.freeze_binds(true).range_batch(true)]
        .map(|graphs| Options { graphs, ..Options::default() })
}

pub fn mock(schedule: Schedule) -> Mock {
    tessl_sim::available().unwrap_or_else(|reason| panic!("{reason}"));
    Mock::new(Config { schedule, ..Config::default() })
}

/// What a scenario came to.
pub struct Done {
    pub numbers: Vec<f32>,
    /// Commands of its graph that a replay did not encode.
    pub prebuilt: usize,
}

/// A bit of everything that the host code does: copies and fills of every kind, chains, several submissions in flight,
/// two streams, a graph replayed twice.
pub fn scenario(rt: &GpuRuntime) -> Result<Done> {
    let n = 65;
    let x: Vec<f32> = (0..n * n).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
    let a = rt.from_slice(&x, &[n, n])?;
    let w = rt.from_slice(&vec![0.5f32; n], &[n])?;
    let zeros = rt.zeros(DType::F32, &[n, n], BufferKind::Cold)?;
    let [b, c, d, e, f] = std::array::from_fn(|_| rt.alloc_tensor_f32(&[n, n]).expect("room"));
    // One submission: copies, then a chain.
    RmsNorm::new(&a, &w, &b).run()?;
    Gemm::new(&b, &a.t()?, &c).activation(Activation::Silu).run()?;
    let odd = rt.from_slice(&[1u8, 2, 3, 4, 5, 6, 7], &[7])?;
    let mut out = c.read::<f32>()?;
    out.extend(odd.read::<u8>()?.into_iter().map(f32::from));
    // Several submissions in flight, and a stream that needs another's results.
    let (mut s, mut t) = (rt.stream()?, rt.stream()?);
    RmsNorm::new(&c, &w, &d).run_on(&mut s)?;
    s.commit()?;
    Gemm::new(&d, &a, &e).run_on(&mut s)?;
    s.commit()?;
    Gemm::new(&e, &a, &f).alpha(0.25).run_on(&mut t)?;
    RmsNorm::new(&f, &w, &f).run_on(&mut t)?;
    out.extend(f.read::<f32>()?);
    // A graph in which each step needs the one before, with a copy and two steps side by side.
    let graph = s.capture(|s| {
        Gemm::new(&d, &a, &b).alpha(0.125).run_on(s)?;
        RmsNorm::new(&b, &w, &d).run_on(s)?;
        e.write_on(&[0.5f32; 65 * 65], s)?;
        Gemm::new(&b, &a, &f).run_on(s)
    })?;
    graph.replay(&mut s)?;
    graph.replay(&mut s)?;
    for tensor in [&d, &e, &f] {
        out.extend(tensor.read::<f32>()?);
    }
    out.extend(zeros.read::<f32>()?);
    s.synchronize()?;
    t.synchronize()?;
    rt.synchronize()?;
    Ok(Done { numbers: out, prebuilt: graph.prebuilt() })
}
