//! Wrong calls of norms with a residual, layer norms and norms of q and k.

use super::rowwise::{rows, run};
use super::{Bench, Kind, Result, text};
use tessl::nn::{LayerNorm, QkNorm, RmsNorm};
use tessl::{BufferKind, DType, Scalar, Tensor};

/// A weight for the rows of `x`.
fn weight(x: &Tensor) -> tessl::Result<Tensor> {
    let n = x.shape().last().copied().unwrap_or(0);
    x.runtime().uninit(DType::F32, &[n], BufferKind::Cold)
}

/// Another tensor of x's type and shape, empty where x only seems to be large.
fn like(x: &Tensor) -> tessl::Result<Tensor> {
    let shape: Vec<usize> = x.shape().iter().map(|&d| if d > 1 << 20 { 0 } else { d }).collect();
    x.runtime().uninit(x.dtype(), &shape, BufferKind::Cold)
}

/// Everything that can be wrong about operands of x's shape.
pub(super) fn norms(bench: &mut Bench<'_>) -> Result {
    rows(bench, "layer_norm", &["x", "y"], &|t, s| {
        let w = weight(&t[0])?;
        run!(LayerNorm::new(&t[0], &w, &t[1]).bias(&w), s)
    })?;
    rows(bench, "rms_norm", &["x", "residual", "y"], &|t, s| {
        let w = weight(&t[0])?;
        run!(RmsNorm::new(&t[0], &w, &t[2]).then_add(&t[1]), s)
    })?;
    rows(bench, "rms_norm", &["x", "residual", "z"], &|t, s| {
        let w = weight(&t[0])?;
        let y = like(&t[0])?;
        run!(RmsNorm::new(&t[0], &w, &y).then_add(&t[1]).then_norm(&w, &t[2]), s)
    })?;
    rows(bench, "rms_norm", &["x", "residual", "h"], &|t, s| {
        let w = weight(&t[0])?;
        let y = like(&t[0])?;
        run!(RmsNorm::new(&t[0], &w, &y).residual(&t[1], &t[2]), s)
    })
}

/// Weights, scales, outputs that meet, and q and k.
pub(super) fn options(bench: &mut Bench<'_>) -> Result {
    let (x, y, h) =
        (bench.zeros(DType::F32, &[2, 4])?, bench.zeros(DType::F32, &[2, 4])?, bench.zeros(DType::F32, &[2, 4])?);
    let w = bench.zeros(DType::F32, &[4])?;
    bench.reject("y is h", Kind::Overlap, &["rms_norm", "`y`", "`h`"], || {
        RmsNorm::new(&x, &w, &y).residual(&h, &y).run()
    });
    bench.accept("all in place", || RmsNorm::new(&x, &w, &x).residual(&h, &h).run());
    bench.reject("scale alone", Kind::Shape, &["rms_norm", "`layer_scale`", "residual()"], || {
        RmsNorm::new(&x, &w, &y).layer_scale(2.0).run()
    });
    bench.reject("z is y", Kind::Overlap, &["rms_norm", "`z`", "`y`"], || {
        RmsNorm::new(&x, &w, &y).then_add(&h).then_norm(&w, &y).run()
    });
    bench.accept("z in place", || RmsNorm::new(&x, &w, &h).then_add(&h).then_norm(&w, &x).run());
    for (what, op) in [
        ("no sum", RmsNorm::new(&x, &w, &y).then_norm(&w, &h)),
        ("the other sum", RmsNorm::new(&x, &w, &y).residual(&h, &h).then_norm(&w, &x)),
    ] {
        bench.reject(what, Kind::Shape, &["rms_norm", "`next_weight`", "then_add()"], || op.run());
    }
    let (short, other) = (bench.zeros(DType::F32, &[3])?, bench.zeros(DType::F16, &[4])?);
    bench.reject("next_weight", Kind::Shape, &["rms_norm", "`next_weight`", "[4]"], || {
        RmsNorm::new(&x, &w, &y).then_add(&h).then_norm(&short, &h).run()
    });
    bench.reject("next_weight", Kind::DType, &["rms_norm", "`next_weight`", "f16"], || {
        RmsNorm::new(&x, &w, &y).then_add(&h).then_norm(&other, &h).run()
    });
    for bad in [f32::NAN, f32::INFINITY] {
        bench.reject("scale", Kind::Scalar, &["rms_norm", "`layer_scale`", "finite"], || {
            RmsNorm::new(&x, &w, &y).then_add(&h).layer_scale(bad).run()
        });
        bench.reject("eps", Kind::Scalar, &["layer_norm", "`eps`"], || LayerNorm::new(&x, &w, &y).eps(bad).run());
        bench.reject("offset", Kind::Scalar, &["qk_norm", "`weight_offset`"], || {
            QkNorm::new(&x, &y, &w, &w).weight_offset(bad).run()
        });
    }
    bench.reject("eps", Kind::Scalar, &["qk_norm", "`eps`"], || QkNorm::new(&x, &y, &w, &w).eps(-1.0).run());
    let scaled =
        |scale: &Tensor, y: &Tensor| RmsNorm::new(&x, &w, y).then_add(&h).layer_scale(Scalar::Device(scale)).run();
    let (two, half) = (bench.zeros(DType::F32, &[2])?, bench.zeros(DType::F16, &[1])?);
    bench.reject("two scales", Kind::Shape, &["rms_norm", "`layer_scale`", "one element"], || scaled(&two, &y));
    bench.reject("scale", Kind::DType, &["rms_norm", "`layer_scale`", "f16"], || scaled(&half, &y));
    let inside = y.view(&[1], &[1], 3).map_err(text)?;
    bench.reject("scale in y", Kind::Overlap, &["rms_norm", "`y`", "`layer_scale`"], || scaled(&inside, &y));
    for shape in [&[3usize][..], &[5], &[1, 4], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench
            .reject("weight", Kind::Shape, &["layer_norm", "`weight`", "[4]"], || LayerNorm::new(&x, &wrong, &y).run());
        bench.reject("bias", Kind::Shape, &["layer_norm", "`bias`", "[4]"], || {
            LayerNorm::new(&x, &w, &y).bias(&wrong).run()
        });
        bench.reject("q_weight", Kind::Shape, &["qk_norm", "`q_weight`"], || QkNorm::new(&x, &y, &wrong, &w).run());
        bench.reject("k_weight", Kind::Shape, &["qk_norm", "`k_weight`"], || QkNorm::new(&x, &y, &w, &wrong).run());
    }
    for dtype in [DType::F16, DType::Bf16, DType::I32] {
        let other = bench.zeros(dtype, &[4])?;
        let many = bench.zeros(dtype, &[2, 4])?;
        bench.reject("weight", Kind::DType, &["layer_norm", "`weight`", dtype.name()], || {
            LayerNorm::new(&x, &other, &y).run()
        });
        bench.reject("bias", Kind::DType, &["layer_norm", "`bias`", dtype.name()], || {
            LayerNorm::new(&x, &w, &y).bias(&other).run()
        });
        bench.reject("k", Kind::DType, &["qk_norm", "`k`", dtype.name()], || QkNorm::new(&x, &many, &w, &w).run());
        bench.reject("k_weight", Kind::DType, &["qk_norm", "`k_weight`"], || QkNorm::new(&x, &y, &w, &other).run());
    }
    bench.reject("y over bias", Kind::Overlap, &["layer_norm", "`y`", "`bias`"], || {
        LayerNorm::new(&x, &w, &y).bias(&y.select(0, 1)?).run()
    });
    let wide = bench.zeros(DType::F32, &[2, 5])?;
    bench.reject("heads of k", Kind::Shape, &["qk_norm", "`k`", "4"], || QkNorm::new(&x, &wide, &w, &w).run());
    bench.reject("q is k", Kind::Overlap, &["qk_norm", "`q_out`", "`k`"], || QkNorm::new(&x, &x, &w, &w).run());
    bench.reject("outputs meet", Kind::Overlap, &["qk_norm", "`q_out`", "`k_out`"], || {
        QkNorm::new(&x, &y, &w, &w).into(&h, &h).run()
    });
    let empty = bench.zeros(DType::F32, &[0, 4])?;
    bench.accept("no keys", || QkNorm::new(&x, &empty, &w, &w).run());
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["qk_norm", "`stream`"], || {
        QkNorm::new(&x, &y, &w, &w).run_on(&mut stream)
    });
    Ok(())
}
