//! Models of random weights: dense ones of either type, and quantised ones.

use tessl::{DType, Device, GpuRuntime, QFormat};
use tessl_llm::{Architecture, Model, Sampling, Session, Shape};

const SMALL: Shape = Shape {
    layers: 3,
    width: 64,
    feed_forward: 96,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    vocabulary: 300,
    dtype: DType::F32,
    ..Shape::LLAMA_1B
};

fn logits(shape: &Shape, format: Option<QFormat>) -> Vec<f32> {
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    let model = Model::random(&rt, shape, format).unwrap();
    let mut session = Session::new(&model, 80).unwrap();
    session.extend(&(0..70).map(|i| i * 7 % 300).collect::<Vec<_>>()).unwrap();
    // Part of them by replayed steps.
    (0..5).for_each(|_| assert!(session.generate(&Sampling::GREEDY).unwrap() < 300));
    session.clear().unwrap();
    session.extend(&(0..70).map(|i| i * 7 % 300).collect::<Vec<_>>()).unwrap();
    session.logits().unwrap()
}

/// bf16 and 8-bit weights are the f32 ones, rounded: so are the logits.
#[test]
fn forms_of_weights_agree() {
    let gemma = Shape { architecture: Architecture::Gemma3, window: 16, layers: 7, ..SMALL };
    for shape in [SMALL, Shape { architecture: Architecture::Qwen3, ..SMALL }, Shape { tied: false, ..SMALL }, gemma] {
        let exact = logits(&shape, None);
        let size = exact.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        assert!(size.is_finite() && size > 0.5, "{size}");
        let bf16 = logits(&Shape { dtype: DType::Bf16, ..shape.clone() }, None);
        let coded = logits(&shape, Some(QFormat::Q8_0));
        for (what, other, part) in [("bf16", bf16, 0.06), ("q8_0", coded, 0.06)] {
            let most = exact.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most > 0.0 && most < part * size, "{:?} {what}: {most} of {size}", shape.architecture);
        }
    }
}

#[test]
fn known_sizes_fit_together_and_others_do_not() {
    let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
    for bad in [Shape { heads: 3, ..SMALL }, Shape { layers: 0, ..SMALL }, Shape { head_dim: 0, ..SMALL }] {
        assert!(Model::random(&rt, &bad, None).is_err());
    }
    let model = Model::random(&rt, &SMALL, None).unwrap();
    // Three layers, the table, and keys and values of nine positions.
    let layer = 64 * (128 + 64 + 64 + 128) + 3 * 64 * 96;
    assert_eq!(model.bytes_per_token(9), 4 * (3 * layer + 300 * 64 + 2 * 64 * 3 * 9));
    assert!(model.tokenizer().encode("text").unwrap().is_empty());
}
