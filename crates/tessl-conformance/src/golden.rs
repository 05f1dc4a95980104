//! Plans as text: what each profile chooses for a list of problems, compared byte for byte with checked-in files.

use crate::rows::plain_gemm;
use serde::Serialize;
use std::path::PathBuf;
use tessl::device::PROFILES;
use tessl::nn::{
    AttentionDesc, CacheDesc, CacheOp, CombineDesc, ElementwiseDesc, ElementwiseOp, EmbedDesc, ExpertsDesc, ExpertsOp,
    LayerNormDesc, MlpDesc, MlpOp, MovementDesc, MovementOp, NormQkvRopeDesc, NormResidual, QkNormDesc, QuantDesc,
    QuantEmbedDesc, QuantOp, ReduceDesc, ReduceOp, RmsNormDesc, RopeDesc, RopeStyle, SampleDesc, TopKDesc, WeightsDesc,
};
use tessl::plan::{Desc, Plan, plan};
use tessl::{
    Activation, Bias, DType, DeviceProfile, Factor, GemmBackend, GemmDesc, GemmExtras, Layout, PackDesc, Precision,
    QFormat, QLayout,
};

#[derive(Serialize)]
struct Golden {
    problem: &'static str,
    desc: Desc,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The problems: the benchmark ladder, decode shapes, every dtype, layout and epilogue class, edges.
pub fn problems() -> Vec<(&'static str, Desc)> {
    const T: GemmBackend = GemmBackend::TensorOps;
    let f32s = |m, n, k| plain_gemm(m, n, k, DType::F32, DType::F32, T);
    let bf16s = |m, n, k| plain_gemm(m, n, k, DType::Bf16, DType::F32, T);
    let col = Layout::ColMajor;
    let plain = GemmExtras::default();
    let packed = GemmExtras { packed: true, ..plain };
    let mixed = GemmExtras { other_b: Some(DType::I8), ..plain };
    let scaled = GemmExtras { row_scale: Some(DType::F32), col_scale: Some(DType::F32), ..plain };
    let with = |d: GemmDesc, extras| GemmDesc { extras, ..d };
    let gemms: Vec<(&'static str, GemmDesc)> = vec![
        ("f32 512^3", f32s(512, 512, 512)),
        ("f32 4096^3", f32s(4096, 4096, 4096)),
        ("f32 odd", f32s(101, 203, 307)),
        ("f32 1x1x1", f32s(1, 1, 1)),
        ("f32 split", GemmDesc { precision: Precision::Split, ..f32s(1024, 1024, 1024) }),
        ("f32 relaxed", GemmDesc { precision: Precision::Relaxed, ..f32s(1024, 1024, 1024) }),
        ("bf16 1024^3", bf16s(1024, 1024, 1024)),
        ("bf16 4096^3", bf16s(4096, 4096, 4096)),
        ("bf16 to bf16", plain_gemm(2048, 768, 768, DType::Bf16, DType::Bf16, T)),
        ("bf16 mlp_up", bf16s(8192, 3072, 768)),
        ("bf16 mlp_down", bf16s(8192, 768, 3072)),
        ("bf16 tall_k1024", bf16s(4096, 4096, 1024)),
        ("bf16 decode 1", bf16s(1, 4096, 4096)),
        ("bf16 decode 8", bf16s(8, 4096, 4096)),
        ("bf16 decode 16", bf16s(16, 28672, 4096)),
        ("bf16 long k", bf16s(128, 128, 8192)),
        ("bf16 portable", GemmDesc { backend: GemmBackend::Simdgroup, ..bf16s(1024, 1024, 1024) }),
        ("f16 to f16", plain_gemm(1024, 1024, 1024, DType::F16, DType::F16, T)),
        ("f16 to f32", plain_gemm(64, 64, 64, DType::F16, DType::F32, T)),
        ("NT", GemmDesc { b: col, ..bf16s(1024, 1024, 1024) }),
        ("TN", GemmDesc { a: col, ..bf16s(1024, 1024, 1024) }),
        ("TT", GemmDesc { a: col, b: col, ..f32s(333, 444, 555) }),
        ("unaligned", GemmDesc { a_align: 1, b_align: 1, c_align: 2, ..bf16s(1024, 1024, 1024) }),
        ("batch of 64", GemmDesc { batch: 64, b_shared: false, ..bf16s(128, 128, 64) }),
        ("batch past 2^16", GemmDesc { batch: 65_537, ..f32s(1, 8, 4) }),
        (
            "full epilogue",
            GemmDesc {
                alpha: Factor::Any,
                beta: Factor::One,
                bias: Bias::Column(DType::F32),
                activation: Activation::GeluTanh,
                ..bf16s(512, 512, 512)
            },
        ),
        (
            "row bias",
            GemmDesc { bias: Bias::Row(DType::Bf16), ..plain_gemm(512, 512, 512, DType::Bf16, DType::Bf16, T) },
        ),
        ("k = 0", f32s(64, 64, 0)),
        ("too many tiles", GemmDesc { batch: 1 << 30, ..f32s(1 << 20, 1 << 20, 8) }),
        ("integers", plain_gemm(64, 64, 64, DType::I8, DType::I32, T)),
        ("integers to bf16, scaled", with(plain_gemm(512, 512, 512, DType::I8, DType::Bf16, T), scaled)),
        ("u8 x i8", with(plain_gemm(512, 512, 512, DType::U8, DType::I32, T), mixed)),
        ("fp8", plain_gemm(512, 512, 512, DType::F8E4M3, DType::Bf16, T)),
        ("packed bf16", with(bf16s(2048, 768, 768), packed)),
        ("packed bf16 decode 1", with(bf16s(1, 4096, 4096), packed)),
        ("packed f32", with(f32s(512, 512, 512), packed)),
        ("gated bf16", with(bf16s(512, 512, 512), GemmExtras { gated: true, ..plain })),
        ("groups of rows", with(bf16s(512, 512, 512), GemmExtras { groups: 8, ..plain })),
        ("residual", with(bf16s(512, 512, 512), GemmExtras { residual: true, ..plain })),
    ];
    let sum_and_norm = |rows, n, dtype, weight, residual, align| {
        Desc::RmsNorm(RmsNormDesc { rows, n, dtype, weight, residual, align })
    };
    let norm = |rows, n, dtype, weight, align| sum_and_norm(rows, n, dtype, weight, NormResidual::None, align);
    let layer_norm = |rows, n, dtype, weight, align| Desc::LayerNorm(LayerNormDesc { rows, n, dtype, weight, align });
    let qk_norm = |rows, n, dtype, weight, align| Desc::QkNorm(QkNormDesc { rows, n, dtype, weight, align });
    let mut all: Vec<(&'static str, Desc)> = gemms.into_iter().map(|(name, d)| (name, Desc::Gemm(d))).collect();
    let (dtype, backend) = (DType::Bf16, T);
    all.push(("weights", Desc::Pack(PackDesc { n: 4096, k: 4096, batch: 1, dtype, gated: false, backend })));
    all.extend([
        ("norm f32", norm(2048, 768, DType::F32, DType::F32, 7)),
        ("norm bf16, f32 weight", norm(1, 4096, DType::Bf16, DType::F32, 7)),
        ("norm f16 unaligned", norm(7, 1001, DType::F16, DType::F16, 1)),
        ("norm many rows", norm(1 << 33, 64, DType::Bf16, DType::Bf16, 7)),
        ("sum and norm", sum_and_norm(1, 4096, DType::Bf16, DType::Bf16, NormResidual::Before, 7)),
        ("norm and sum", sum_and_norm(512, 2304, DType::Bf16, DType::F32, NormResidual::After, 7)),
        ("norm of integers", norm(1, 8, DType::I32, DType::I32, 7)),
        ("layer norm", layer_norm(1024, 768, DType::F32, DType::F32, 7)),
        ("layer norm unaligned", layer_norm(7, 1001, DType::Bf16, DType::F32, 1)),
        ("qk norm prefill", qk_norm(2048 * 40, 128, DType::Bf16, DType::Bf16, 7)),
        ("qk norm decode", qk_norm(20, 80, DType::F16, DType::F16, 4)),
    ]);
    let mlp =
        |op, rows, n, dtype, align| Desc::Mlp(MlpDesc { op, rows, n, dtype, activation: Activation::Silu, align });
    all.extend([
        ("glu prefill", mlp(MlpOp::Glu, 2048, 14336, DType::Bf16, 7)),
        ("glu decode", mlp(MlpOp::Glu, 1, 14336, DType::Bf16, 7)),
        ("activate f32", mlp(MlpOp::Activate, 1, 1 << 24, DType::F32, 7)),
        ("activate f16 unaligned", mlp(MlpOp::Activate, 7, 1001, DType::F16, 1)),
    ]);
    let map =
        |op, rows, n, (input, output), align| Desc::Elementwise(ElementwiseDesc { op, rows, n, input, output, align });
    let (f32s, bf16s) = ((DType::F32, DType::F32), (DType::Bf16, DType::Bf16));
    all.extend([
        ("residual", map(ElementwiseOp::Add, 1, 2048 * 4096, bf16s, 7)),
        ("product unaligned", map(ElementwiseOp::Mul, 33, 1001, f32s, 2)),
        ("scale", map(ElementwiseOp::Scale, 1, 4096, bf16s, 7)),
        ("cast", map(ElementwiseOp::Cast, 64, 4096, (DType::F32, DType::Bf16), 7)),
        ("copy", map(ElementwiseOp::Cast, 64, 4096, (DType::U8, DType::U8), 4)),
        ("integers to floats", map(ElementwiseOp::Cast, 1, 8, (DType::I32, DType::F32), 7)),
    ]);
    let rows = |op, rows, n, (input, output), mask, align| {
        Desc::Reduce(ReduceDesc { op, rows, n, input, output, mask, align })
    };
    let rope = |style, rows, n, dims, dtype, align| Desc::Rope(RopeDesc { rows, n, dims, style, dtype, align });
    let moved = |op, rows, m, n, dtype, align| Desc::Movement(MovementDesc { op, rows, m, n, dtype, align });
    let experts = |op, rows, each, n, dtype| Desc::Experts(ExpertsDesc { op, rows, each, n, dtype, align: 7 });
    let embed = |rows, n, dtype, align| Desc::Embed(EmbedDesc { rows, n, dtype, align });
    all.extend([
        ("softmax masked", rows(ReduceOp::Softmax, 8192, 2048, bf16s, Some(DType::U8), 7)),
        ("log_softmax logits", rows(ReduceOp::LogSoftmax, 1, 128_256, f32s, None, 7)),
        ("row sums", rows(ReduceOp::Sum, 4096, 4096, (DType::Bf16, DType::F32), None, 7)),
        ("argmax unaligned", rows(ReduceOp::ArgMax, 4, 50_257, (DType::F16, DType::U32), None, 1)),
        ("rope prefill", rope(RopeStyle::HalfSplit, 2048 * 32, 128, 128, DType::Bf16, 7)),
        ("rope decode", rope(RopeStyle::Interleaved, 8, 80, 20, DType::F16, 4)),
        ("embedding", embed(2048, 4096, DType::Bf16, 7)),
        ("embedding unaligned", embed(1, 1001, DType::F32, 2)),
        ("copy of rows", moved(MovementOp::CopyRows, 4096, 1, 128, DType::Bf16, 7)),
        ("transpose", moved(MovementOp::Transpose, 8, 4096, 4096, DType::Bf16, 7)),
        ("strided copy", moved(MovementOp::CopyStrided, 100, 1, 7, DType::F32, 2)),
        ("gather", moved(MovementOp::GatherRows, 512, 1, 4096, DType::U8, 7)),
        ("scatter", moved(MovementOp::ScatterRows, 512, 1, 4096, DType::F32, 7)),
        ("scatter sums", moved(MovementOp::ScatterAdd, 4096, 1, 2048, DType::Bf16, 1)),
        ("scatter sums of integers", moved(MovementOp::ScatterAdd, 1, 1, 8, DType::I32, 7)),
        ("sort by expert", experts(ExpertsOp::Sort, 4096, 8, 128, DType::U32)),
        ("sum of experts", experts(ExpertsOp::Combine, 4096, 8, 2880, DType::Bf16)),
        ("sum of experts, integers", experts(ExpertsOp::Combine, 1, 2, 8, DType::I32)),
        ("top_k", Desc::TopK(TopKDesc { rows: 64, n: 128_256, k: 50, dtype: DType::F32 })),
        ("sample", Desc::Sample(SampleDesc { rows: 1, n: 262_144, penalised: false, dtype: DType::Bf16 })),
        ("sample with penalty", Desc::Sample(SampleDesc { rows: 8, n: 32_000, penalised: true, dtype: DType::F32 })),
        ("sample integers", Desc::Sample(SampleDesc { rows: 1, n: 8, penalised: false, dtype: DType::I32 })),
        ("attention prefill", attention(1, 4096, 4096, 32, 8, 128)),
        ("attention prefill, 512", attention(1, 512, 512, 8, 1, 512)),
        ("attention decode", attention(1, 1, 8192, 32, 8, 128)),
        ("attention decode of a batch", attention(64, 1, 8192, 32, 8, 128)),
        (
            "attention packed",
            Desc::Attention(AttentionDesc { packed: true, page: 16, ..plain_attention(16, 900, 4096, 32, 8, 80) }),
        ),
        (
            "attention over codes",
            Desc::Attention(AttentionDesc { coded: true, ..plain_attention(1, 4096, 4096, 32, 8, 128) }),
        ),
        ("attention combine", Desc::Combine(CombineDesc { rows: 32, dim: 128, split: 16, dtype: DType::Bf16 })),
        (
            "attention of integers",
            Desc::Attention(AttentionDesc { dtype: DType::I8, ..plain_attention(1, 1, 1, 1, 1, 8) }),
        ),
        ("kv_store decode", cache(CacheOp::Store, 8, true, 7)),
        ("kv_store of codes", Desc::Cache(CacheDesc { coded: true, ..plain_cache(CacheOp::Store, 4096 * 8, true, 7) })),
        ("ring_densify unaligned", cache(CacheOp::Densify, 8 * 4096, false, 1)),
        ("sum of integers", rows(ReduceOp::Sum, 1, 8, (DType::I32, DType::I32), None, 7)),
    ]);
    all.extend(quantised());
    all
}

fn quantised() -> Vec<(&'static str, Desc)> {
    let product = |op: QuantOp, m, k, format: QFormat, input| {
        let n =
            std::array::from_fn(|i| if i < op.weights() { 4096 >> if op == QuantOp::Qkv { i } else { 0 } } else { 0 });
        Desc::Quant(QuantDesc {
            op,
            m,
            n,
            k,
            format,
            layout: QLayout::Rows,
            factors: (format.factors() > 0).then_some(DType::F16),
            input,
            output: input,
            activation: Activation::None,
            bias: false,
            residual: false,
            align: 7,
        })
    };
    let coded_as = |weights| NormQkvRopeDesc {
        m: 1,
        k: 4096,
        heads: 32,
        kv_heads: 8,
        dim: 128,
        dims: 128,
        style: RopeStyle::HalfSplit,
        weights,
        dtype: DType::Bf16,
        norm: DType::F32,
        align: 7,
    };
    let coded = coded_as(WeightsDesc::Quantized { format: QFormat::Q4K, layout: QLayout::Rows, factors: None });
    let norm_qkv_rope = Desc::NormQkvRope;
    let affine = QFormat::Affine { bits: 4, group: 64 };
    let table = QuantEmbedDesc {
        rows: 2048,
        n: 4096,
        format: QFormat::Q6K,
        layout: QLayout::Rows,
        factors: None,
        output: DType::Bf16,
        align: 7,
    };
    vec![
        ("quantized decode", product(QuantOp::Matmul, 1, 4096, affine, DType::Bf16)),
        ("quantized 16 rows", product(QuantOp::Matmul, 16, 4096, QFormat::Q4_0, DType::F32)),
        ("quantized 17 rows", product(QuantOp::Matmul, 17, 4096, QFormat::Q4_0, DType::F32)),
        ("quantized prefill", product(QuantOp::Matmul, 512, 14336, QFormat::Q4K, DType::Bf16)),
        ("quantized glu", product(QuantOp::Glu, 1, 4096, QFormat::Q4K, DType::Bf16)),
        ("quantized glu prefill", product(QuantOp::Glu, 512, 4096, QFormat::Q8_0, DType::F16)),
        ("quantized qkv", product(QuantOp::Qkv, 1, 4096, QFormat::Q6K, DType::F32)),
        ("quantized embedding", Desc::QuantEmbed(table)),
        ("norm_qkv_rope q4_k", norm_qkv_rope(coded)),
        (
            "norm_qkv_rope dense, 8 rows",
            norm_qkv_rope(NormQkvRopeDesc { m: 8, ..coded_as(WeightsDesc::Dense(DType::Bf16)) }),
        ),
        ("norm_qkv_rope of integers", norm_qkv_rope(coded_as(WeightsDesc::Dense(DType::I8)))),
    ]
}

fn plain_attention(sequences: u32, queries: u32, keys: u32, heads: u32, kv_heads: u32, dim: u32) -> AttentionDesc {
    AttentionDesc {
        sequences,
        queries,
        keys,
        heads,
        kv_heads,
        dim,
        dtype: DType::Bf16,
        coded: false,
        causal: true,
        window: false,
        packed: false,
        page: 0,
        mask: None,
        align: 7,
    }
}

fn attention(sequences: u32, queries: u32, keys: u32, heads: u32, kv_heads: u32, dim: u32) -> Desc {
    Desc::Attention(plain_attention(sequences, queries, keys, heads, kv_heads, dim))
}

fn cache(op: CacheOp, rows: u64, pair: bool, align: u8) -> Desc {
    Desc::Cache(plain_cache(op, rows, pair, align))
}

fn plain_cache(op: CacheOp, rows: u64, pair: bool, align: u8) -> CacheDesc {
    CacheDesc { op, rows, n: 128, dtype: DType::Bf16, coded: false, pair, align }
}

/// The golden text of one profile.
///
/// # Panics
/// Never: every field can be written.
pub fn text(profile: &DeviceProfile) -> String {
    let mut out = String::new();
    for (problem, desc) in problems() {
        let (plan, error) = match plan(&desc, profile) {
            Ok(plan) => (Some(plan), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let line = Golden { problem, desc, plan, error };
        // One problem a line: a change of one rule is a change of the lines it concerns.
        out += &serde_json::to_string(&line).expect("INVARIANT: plain data");
        out.push('\n');
    }
    out
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Compares every profile with its file; `TESSL_BLESS=1` writes the files instead.
///
/// # Errors
/// Lines that differ, missing files, files of profiles that no longer exist.
pub fn check() -> Result<usize, String> {
    let bless = std::env::var_os("TESSL_BLESS").is_some_and(|v| v == "1");
    let mut problems = Vec::new();
    let mut names = Vec::new();
    for profile in PROFILES.iter().copied().flatten() {
        let path = folder().join(format!("{}.jsonl", profile.name));
        names.push(format!("{}.jsonl", profile.name));
        let now = text(profile);
        if bless {
            std::fs::create_dir_all(folder()).and_then(|()| std::fs::write(&path, &now)).map_err(|e| e.to_string())?;
            continue;
        }
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let (mut old, mut new) = (before.lines(), now.lines());
        loop {
            match (old.next(), new.next()) {
                (None, None) => break,
                (a, b) if a == b => {}
                (a, b) => {
                    problems.push(format!("{}:\n  - {}\n  + {}", profile.name, a.unwrap_or(""), b.unwrap_or("")));
                }
            }
        }
    }
    for entry in std::fs::read_dir(folder()).map_err(|e| format!("{}: {e}", folder().display()))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !names.contains(&name) {
            problems.push(format!("golden/{name} belongs to no profile"));
        }
    }
    if problems.is_empty() {
        return Ok(names.len());
    }
    Err(format!("{}\nIf this is meant, run again with TESSL_BLESS=1 and review the change.", problems.join("\n")))
}
