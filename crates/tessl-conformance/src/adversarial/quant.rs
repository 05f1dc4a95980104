//! Wrong calls of products with quantised weights, and of lookups in quantised tables.

use super::{Bench, Kind, Result, text};
use tessl::nn::{QuantizedEmbedding, QuantizedGlu, QuantizedMatmul, QuantizedQkv};
use tessl::{Activation, DType, GpuRuntime, QFormat, QTensor, Tensor};

fn quantised(rt: &GpuRuntime, format: QFormat, shape: &[usize]) -> Result<QTensor> {
    let weights = rt.zeros(DType::F32, shape, tessl::BufferKind::Cold).map_err(text)?;
    // Devices without host memory of their own still read zeros.
    QTensor::quantize(&weights, format).map_err(text)
}

pub(super) fn matmul(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let w = quantised(&rt, QFormat::Q4_0, &[4, 64])?;
    let (x, y) = (bench.zeros(DType::F32, &[2, 64])?, bench.zeros(DType::F32, &[2, 4])?);
    let op = "quantized_matmul";
    let run = |x: &Tensor, w: &QTensor, y: &Tensor| QuantizedMatmul::new(x, w, y).run();
    bench.accept("good", || run(&x, &w, &y));
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_float()) {
        let (bad_x, bad_y) = (bench.zeros(dtype, &[2, 64])?, bench.zeros(dtype, &[2, 4])?);
        bench.reject("x type", Kind::DType, &[op, "`x`", dtype.name()], || run(&bad_x, &w, &y));
        bench.reject("y type", Kind::DType, &[op, "`y`", dtype.name()], || run(&x, &w, &bad_y));
    }
    let short = bench.zeros(DType::F32, &[2, 32])?;
    bench.reject("k differs", Kind::Shape, &[op, "`w`", "[4, 64]", "K = 32"], || run(&short, &w, &y));
    let scalar = bench.zeros(DType::F32, &[])?;
    bench.reject("scalar x", Kind::Shape, &[op, "`x`", "[.., K]"], || run(&scalar, &w, &y));
    for shape in [&[2usize, 5][..], &[4], &[3, 4], &[2, 1, 4], &[]] {
        let bad = bench.zeros(DType::F32, shape)?;
        bench.reject("y shape", Kind::Shape, &[op, "`y`", "and then 4"], || run(&x, &w, &bad));
    }
    let stack = quantised(&rt, QFormat::Q4_0, &[3, 4, 64])?;
    bench.reject("a stack", Kind::Shape, &[op, "`w`", "w.select(index)"], || run(&x, &stack, &y));
    let flat = bench.zeros(DType::F32, &[1024])?;
    let view = |shape: &[usize], strides: &[usize]| flat.view(shape, strides, 0).map_err(text);
    let wide = view(&[2, 64], &[256, 2])?;
    bench.reject("x stride", Kind::Layout, &[op, "`x`", "stride"], || run(&wide, &w, &y));
    let uneven = view(&[2, 2, 64], &[300, 64, 1])?;
    let y3 = bench.zeros(DType::F32, &[2, 2, 4])?;
    bench.reject("uneven rows", Kind::Layout, &[op, "`x`", "evenly"], || run(&uneven, &w, &y3));
    let repeated = view(&[2, 4], &[0, 1])?;
    bench.reject("y repeats", Kind::Layout, &[op, "`y`", "repeat"], || run(&x, &w, &repeated));
    let (x_over, y_over) = (view(&[2, 64], &[64, 1])?, view(&[2, 4], &[4, 1])?);
    bench.reject("y over x", Kind::Overlap, &[op, "`y`", "`x`"], || run(&x_over, &w, &y_over));
    let bytes = rt.zeros(DType::U8, &[8, 36], tessl::BufferKind::Cold).map_err(text)?;
    let over = QTensor::from_parts(QFormat::Q4_0, &bytes, &[]).map_err(text)?;
    let inside = bytes.bitcast(DType::F32).and_then(|t| t.view(&[2, 8], &[8, 1], 0)).map_err(text)?;
    bench.reject("y over w", Kind::Overlap, &[op, "`y`", "`w`"], || run(&x, &over, &inside));
    let tall = view(&[1, 64], &[64, 1])?.broadcast_to(&[1 << 33, 64]).map_err(text)?;
    let none = bench.zeros(DType::F32, &[0])?.view(&[1 << 33, 4], &[0, 0], 0);
    if let Ok(none) = none {
        bench.reject("too many rows", Kind::TooLarge, &[op, "8589934592"], || run(&tall, &w, &none));
    }
    for shape in [&[3usize][..], &[4, 1], &[]] {
        let bias = bench.zeros(DType::F32, shape)?;
        let call = || QuantizedMatmul::new(&x, &w, &y).bias(&bias).run();
        bench.reject("bias shape", Kind::Shape, &[op, "`bias`", "[4]"], call);
        let call = || QuantizedMatmul::new(&x, &w, &y).residual(&bias).run();
        bench.reject("residual shape", Kind::Shape, &[op, "`residual`", "[2, 4]"], call);
    }
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::F32) {
        let (bias, residual) = (bench.zeros(dtype, &[4])?, bench.zeros(dtype, &[2, 4])?);
        let call = || QuantizedMatmul::new(&x, &w, &y).bias(&bias).run();
        bench.reject("bias type", Kind::DType, &[op, "`bias`", dtype.name()], call);
        let call = || QuantizedMatmul::new(&x, &w, &y).residual(&residual).run();
        bench.reject("residual type", Kind::DType, &[op, "`residual`", dtype.name()], call);
    }
    bench.accept("residual in place", || QuantizedMatmul::new(&x, &w, &y).residual(&y).run());
    let shifted = view(&[2, 4], &[4, 1])?;
    let across = flat.view(&[2, 4], &[4, 1], 2).map_err(text)?;
    let call = || QuantizedMatmul::new(&x, &w, &shifted).residual(&across).run();
    bench.reject("residual across y", Kind::Overlap, &[op, "`y`", "`residual`"], call);
    let foreign = quantised(&bench.other.clone(), QFormat::Q4_0, &[4, 64])?;
    bench.reject("foreign w", Kind::WrongRuntime, &[op, "`w`"], || run(&x, &foreign, &y));
    let foreign = bench.other.zeros(DType::F32, &[2, 4], tessl::BufferKind::Cold).map_err(text)?;
    bench.reject("foreign y", Kind::WrongRuntime, &[op, "`y`"], || run(&x, &w, &foreign));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("foreign stream", Kind::WrongRuntime, &[op, "`stream`"], || {
        QuantizedMatmul::new(&x, &w, &y).run_on(&mut stream)
    });
    let before = rt.dispatch_count();
    let (x0, y0) = (bench.zeros(DType::F32, &[0, 64])?, bench.zeros(DType::F32, &[0, 4])?);
    bench.accept("no rows", || run(&x0, &w, &y0));
    let (w0, y0) = (w.narrow(0, 0, 0).map_err(text)?, bench.zeros(DType::F32, &[2, 0])?);
    bench.accept("no columns", || run(&x, &w0, &y0));
    if rt.dispatch_count() != before {
        return Err("nothing was launched".into());
    }
    Ok(())
}

/// What only calls with several matrices can get wrong.
pub(super) fn glu_and_qkv(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let w = quantised(&rt, QFormat::Q8_0, &[4, 64])?;
    let (x, y) = (bench.zeros(DType::F32, &[2, 64])?, bench.zeros(DType::F32, &[2, 4])?);
    let others = [quantised(&rt, QFormat::Q4_0, &[4, 64])?, quantised(&rt, QFormat::Q8 { group: 32 }, &[4, 64])?];
    let glu = |gate: &QTensor, up: &QTensor| QuantizedGlu::new(&x, gate, up, &y, Activation::Silu).run();
    bench.accept("good", || glu(&w, &w));
    for other in &others {
        bench.reject("formats differ", Kind::Layout, &["quantized_glu", "`up`", "one format"], || glu(&w, other));
    }
    let narrow = quantised(&rt, QFormat::Q8_0, &[3, 64])?;
    bench.reject("rows differ", Kind::Shape, &["quantized_glu", "`up`", "[4, 64]"], || glu(&w, &narrow));
    let short = quantised(&rt, QFormat::Q8_0, &[4, 32])?;
    bench.reject("k differs", Kind::Shape, &["quantized_glu", "`up`", "K = 64"], || glu(&w, &short));
    let (full, short, half) =
        (bench.zeros(DType::F32, &[4])?, bench.zeros(DType::F32, &[3])?, bench.zeros(DType::F16, &[4])?);
    let biased = |b: [&Tensor; 2]| QuantizedGlu::new(&x, &w, &w, &y, Activation::Silu).biases(b).run();
    bench.accept("biases", || biased([&full, &full]));
    bench.reject("bias", Kind::Shape, &["quantized_glu", "`bias of up`", "[4]"], || biased([&full, &short]));
    bench.reject("bias type", Kind::DType, &["quantized_glu", "`bias of gate`", "f16"], || biased([&half, &half]));
    let (k, v) = (bench.zeros(DType::F32, &[2, 4])?, bench.zeros(DType::F32, &[2, 4])?);
    let qkv = |ws: [&QTensor; 3], ys: [&Tensor; 3]| QuantizedQkv::new(&x, ws, ys).run();
    bench.accept("good", || qkv([&w, &w, &w], [&y, &k, &v]));
    bench.reject("one output twice", Kind::Overlap, &["quantized_qkv", "`q`", "`v`"], || {
        qkv([&w, &w, &w], [&y, &k, &y])
    });
    let half = bench.zeros(DType::F16, &[2, 4])?;
    bench.reject("types differ", Kind::DType, &["quantized_qkv", "`k`", "f16"], || qkv([&w, &w, &w], [&y, &half, &v]));
    bench
        .reject("formats differ", Kind::Layout, &["quantized_qkv", "`wv`"], || qkv([&w, &w, &others[0]], [&y, &k, &v]));
    bench.reject("rows", Kind::Shape, &["quantized_qkv", "`k`", "3"], || qkv([&w, &narrow, &w], [&y, &k, &v]));
    let (full, other) = (bench.zeros(DType::F32, &[4])?, bench.zeros(DType::F32, &[3])?);
    let call = || QuantizedQkv::new(&x, [&w, &w, &w], [&y, &k, &v]).biases([&full, &full, &other]).run();
    bench.reject("bias", Kind::Shape, &["quantized_qkv", "`bias of v`", "[4]"], call);
    Ok(())
}

pub(super) fn embedding(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let op = "quantized_embedding";
    let table = quantised(&rt, QFormat::Q4_1, &[5, 64])?;
    let (ids, out) = (bench.zeros(DType::U32, &[3])?, bench.zeros(DType::F32, &[3, 64])?);
    let run = |t: &QTensor, i: &Tensor, y: &Tensor| QuantizedEmbedding::new(t, i, y).run();
    bench.accept("good", || run(&table, &ids, &out));
    for dtype in DType::ALL {
        let (bad_ids, bad_out) = (bench.zeros(dtype, &[3])?, bench.zeros(dtype, &[3, 64])?);
        if dtype != DType::U32 && dtype != DType::I32 {
            bench.reject("ids", Kind::DType, &[op, "`ids`", dtype.name()], || run(&table, &bad_ids, &out));
        }
        if !dtype.is_float() {
            bench.reject("out", Kind::DType, &[op, "`out`", dtype.name()], || run(&table, &ids, &bad_out));
        }
    }
    let stack = quantised(&rt, QFormat::Q4_1, &[2, 5, 64])?;
    bench.reject("a stack", Kind::Shape, &[op, "`table`", "[vocabulary, n]"], || run(&stack, &ids, &out));
    for shape in [&[3usize, 32][..], &[2, 64], &[64], &[1, 3, 64]] {
        let bad = bench.zeros(DType::F32, shape)?;
        bench.reject("out shape", Kind::Shape, &[op, "`out`", "and then 64"], || run(&table, &ids, &bad));
    }
    for scale in [f32::NAN, f32::INFINITY] {
        let call = || QuantizedEmbedding::new(&table, &ids, &out).scale(scale).run();
        bench.reject("scale", Kind::Scalar, &[op, "`scale`", "finite"], call);
    }
    let foreign = quantised(&bench.other.clone(), QFormat::Q4_1, &[5, 64])?;
    bench.reject("foreign table", Kind::WrongRuntime, &[op, "`table`"], || run(&foreign, &ids, &out));
    let repeated = out.view(&[3, 64], &[0, 1], 0).map_err(text)?;
    bench.reject("out repeats", Kind::Layout, &[op, "`out`", "repeat"], || run(&table, &ids, &repeated));
    Ok(())
}
