//! What plans promise, on every profile.

use super::*;
use crate::device::cpu::registry::builtins;
use crate::device::cpu::tables::{Axis, PROFILES, Threshold};
use crate::dtype::DType;
use crate::gemm::{Activation, Bias, Factor, GemmExtras, Layout};
use crate::nn::{
    AttentionDesc, CacheDesc, CacheOp, ElementwiseDesc, ElementwiseOp, EmbedDesc, LayerNormDesc, MlpDesc, MlpOp,
    MovementDesc, MovementOp, NormResidual, QkNormDesc, ReduceDesc, ReduceOp, RmsNormDesc, RopeDesc, RopeStyle,
    SampleDesc, TopKDesc,
};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

fn desc(m: u32, n: u32, k: u32, batch: u32, input: DType) -> GemmDesc {
    GemmDesc {
        m,
        n,
        k,
        batch,
        input,
        output: DType::F32,
        a: Layout::RowMajor,
        b: Layout::RowMajor,
        b_shared: false,
        a_align: 7,
        b_align: 7,
        c_align: 7,
        alpha: Factor::One,
        beta: Factor::Zero,
        bias: Bias::None,
        activation: Activation::None,
        precision: Precision::Exact,
        backend: GemmBackend::TensorOps,
        extras: GemmExtras::default(),
    }
}

const PLAIN: GemmExtras = GemmExtras {
    other_b: None,
    packed: false,
    gated: false,
    residual: false,
    row_scale: None,
    col_scale: None,
    block_scales: false,
    groups: 0,
};
const FORMS: [GemmExtras; 6] = [
    PLAIN,
    GemmExtras { gated: true, ..PLAIN },
    GemmExtras { packed: true, ..PLAIN },
    GemmExtras { packed: true, gated: true, ..PLAIN },
    GemmExtras { groups: 5, ..PLAIN },
    PLAIN,
];

/// What the kernels assert about their tiles, for many shapes on every profile.
#[test]
fn tiles_fit_the_workspace() {
    let sizes = [0u32, 1, 16, 17, 31, 32, 33, 100, 1023, 1024, 1025, 5000, 70_000, 4_000_000_000];
    for profile in PROFILES {
        for i in 0..sizes.len().pow(3) {
            let [m, n, k] = [1, sizes.len(), sizes.len().pow(2)].map(|d| sizes[i / d % sizes.len()]);
            for (at, input) in [DType::F32, DType::F16, DType::Bf16, DType::I8, DType::F8E4M3].into_iter().enumerate() {
                // Every form meets every size within a few types.
                let extras = FORMS[(i + at) % FORMS.len()];
                for batch in [1, 7, 8, 100_000] {
                    let d = GemmDesc { extras, ..desc(m, n, k, batch, input) };
                    let plan = gemm(&d, profile.isa).expect("supported");
                    let row = ROWS.iter().find(|r| r.fits(&d, profile.isa)).expect("planned");
                    let [tile_m, tile_n, tile_k] = plan.tile.map(u64::from);
                    assert_eq!(plan.reason, row.name);
                    if row.kernel == Kernel::FewRows {
                        assert!(2 * tile_m * tile_n * 4 <= ACC_BYTES as u64 && tile_m * tile_k * 4 <= A_BYTES as u64);
                        continue;
                    }
                    let g = geometry(row.isa, input);
                    let (rows, wide, step, bytes) =
                        (u64::from(g.rows), u64::from(g.cols), g.step.into(), u64::from(g.bytes));
                    let cols = if extras.gated { wide / 2 } else { wide };
                    assert!(tile_n % cols == 0 && tile_k % step == 0 && tile_n * tile_k > 0, "{d:?} {plan:?}");
                    let padded_m = tile_m.next_multiple_of(rows);
                    let depth = A_BYTES as u64 / (padded_m * bytes) / tile_k * tile_k;
                    assert!(depth >= tile_k, "{d:?} {plan:?}");
                    let padded_k = u64::from(k).next_multiple_of(step);
                    if row.kernel == Kernel::Piecewise {
                        let panels = tile_n / cols;
                        assert!(m <= g.rows && panels * rows * wide * 4 <= ACC_BYTES as u64);
                        assert!(panels * wide * tile_k * bytes <= B_BYTES as u64);
                        continue;
                    }
                    let kept = if padded_k > depth { tile_n / cols * wide } else { wide };
                    assert!(padded_m * kept * 4 <= ACC_BYTES as u64, "{d:?} {plan:?}");
                    if row.kernel == Kernel::PackedLocal {
                        assert!(u64::from(n).next_multiple_of(cols) * padded_k * bytes <= B_BYTES as u64);
                        assert_eq!(plan.scratch_bytes, 0);
                    } else if extras.packed {
                        assert_eq!(plan.scratch_bytes, 0);
                    } else {
                        let columns = tile_n.min(u64::from(n).next_multiple_of(cols)) / cols * wide;
                        assert!(plan.scratch_bytes >= columns * padded_k * bytes && plan.scratch_bytes > 0);
                        assert!(plan.scratch_bytes <= SCRATCH.max(wide * padded_k * bytes));
                    }
                }
            }
        }
    }
}

/// Each side of every threshold, by the rows' own word.
#[test]
fn rows_change_exactly_at_their_thresholds() {
    let mut seen = std::collections::HashSet::new();
    for row in gemm_rows() {
        for &Threshold { axis, value } in row.when {
            let g = geometry(row.isa, row.inputs[0]);
            // One column, so that packed bytes come in these units.
            let unit = if axis == Axis::PackedB { u64::from(g.cols * g.bytes * g.step) } else { 1 };
            for x in [value - unit, value, value + unit] {
                let x = u32::try_from(x).expect("thresholds are small");
                let d = match axis {
                    Axis::M | Axis::ManyRows => desc(x, 100, 100, 1, row.inputs[0]),
                    Axis::Volume => desc(x, 1, 1, 8, row.inputs[0]),
                    Axis::PackedB => desc(100, 1, x / (g.cols * g.bytes), 8, row.inputs[0]),
                    Axis::Batch => desc(170, 100, 100, x, row.inputs[0]),
                };
                for &isa in row.isas {
                    let plan = gemm(&d, isa).expect("supported");
                    let first = gemm_rows().iter().find(|r| r.fits(&d, isa)).expect("a row");
                    assert_eq!(plan.reason, first.name);
                    let holds = Threshold { axis, value }.holds(&d, row.isa);
                    let quantity = Threshold { axis, value }.quantity(&d, row.isa);
                    let at_least = matches!(axis, Axis::Batch | Axis::ManyRows);
                    assert_eq!(holds, if at_least { quantity >= value } else { quantity <= value });
                    seen.insert(first.name);
                }
            }
        }
    }
    for row in gemm_rows() {
        let extras = match row.kernel {
            Kernel::Groups => GemmExtras { groups: 3, ..GemmExtras::default() },
            Kernel::Weights => GemmExtras { packed: true, ..GemmExtras::default() },
            _ => GemmExtras::default(),
        };
        for (m, n, k, batch) in [(100, 100, 100, 1), (100, 100, 100, 8), (1, 1, 1, 1)] {
            for &isa in row.isas {
                let d = GemmDesc { extras, ..desc(m, n, k, batch, row.inputs[0]) };
                let plan = gemm(&d, isa).expect("supported");
                seen.insert(plan.reason);
            }
        }
    }
    assert_eq!(seen.len(), gemm_rows().len(), "rows that no threshold case chose: {seen:?}");
}

#[test]
fn kernels_of_plans_exist_where_their_isa_is_compiled() {
    for profile in PROFILES {
        let compiled = builtins().any(|b| b.isa == profile.isa);
        for (input, output) in FLOATS.iter().flat_map(|&i| FLOATS.iter().map(move |&o| (i, o))) {
            for m in [1, 100] {
                for backend in [GemmBackend::TensorOps, GemmBackend::Simdgroup] {
                    let d = GemmDesc { output, backend, ..desc(m, 100, 100, 1, input) };
                    let plan = gemm(&d, profile.isa).expect("floats are supported");
                    let exists = builtins().any(|b| b.module == "gemm" && b.name == plan.kernel.name);
                    assert!(exists || !compiled, "{}", plan.kernel.name);
                }
            }
        }
        for desc in row_kernels() {
            let plan = plan(&desc, profile).expect("supported");
            let exists = builtins().any(|b| b.module == plan.kernel.module && b.name == plan.kernel.name);
            assert!(exists || !compiled, "{}", plan.kernel.name);
        }
    }
}

/// Each kernel that walks rows, once.
fn row_kernels() -> Vec<Desc> {
    let mut all = Vec::new();
    for dtype in FLOATS {
        for op in MlpOp::ALL {
            all.push(Desc::Mlp(MlpDesc { op, rows: 3, n: 5, dtype, activation: Activation::Silu, align: 7 }));
        }
        for style in RopeStyle::ALL {
            all.push(Desc::Rope(RopeDesc { rows: 3, n: 64, dims: 64, style, dtype, align: 7 }));
        }
        all.push(Desc::Embed(EmbedDesc { rows: 3, n: 5, dtype, align: 7 }));
        all.push(Desc::TopK(TopKDesc { rows: 3, n: 50, k: 5, dtype }));
        all.push(Desc::Sample(SampleDesc { rows: 3, n: 50, penalised: true, dtype }));
        for weight in [dtype, DType::F32] {
            let (rows, n, align) = (3, 5, 7);
            for residual in NormResidual::ALL {
                all.push(Desc::RmsNorm(RmsNormDesc { rows, n, dtype, weight, residual, align }));
            }
            all.push(Desc::LayerNorm(LayerNormDesc { rows, n, dtype, weight, align }));
            all.push(Desc::QkNorm(QkNormDesc { rows, n, dtype, weight, align }));
        }
        for op in CacheOp::ALL {
            for coded in [false, true] {
                all.push(Desc::Cache(CacheDesc { op, rows: 3, n: 5, dtype, coded, pair: false, align: 7 }));
            }
        }
        for queries in [1, 64] {
            let d = AttentionDesc { dtype, ..attention_of(queries, 4096) };
            all.extend([Desc::Combine(d.combine(2)), Desc::Attention(d)]);
        }
    }
    for (op, dtype) in MovementOp::ALL.into_iter().flat_map(|op| DType::ALL.map(|dtype| (op, dtype))) {
        let desc = MovementDesc { op, rows: 3, m: 9, n: 8, dtype, align: 7 };
        if desc.kernel().is_some() {
            all.push(Desc::Movement(desc));
        }
    }
    for (op, (input, output)) in ElementwiseOp::ALL
        .into_iter()
        .flat_map(|op| DType::ALL.into_iter().flat_map(move |i| DType::ALL.map(|o| (op, (i, o)))))
    {
        let desc = ElementwiseDesc { op, rows: 3, n: 5, input, output, align: 7 };
        if desc.kernel().is_some() {
            all.push(Desc::Elementwise(desc));
        }
    }
    for (op, (input, output)) in
        ReduceOp::ALL.into_iter().flat_map(|op| FLOATS.into_iter().flat_map(move |i| DType::ALL.map(|o| (op, (i, o)))))
    {
        let desc = ReduceDesc { op, rows: 3, n: 5, input, output, mask: None, align: 7 };
        if desc.kernel().is_some() {
            all.push(Desc::Reduce(desc));
        }
    }
    all
}

fn attention_of(queries: u32, keys: u32) -> AttentionDesc {
    AttentionDesc {
        sequences: 1,
        queries,
        keys,
        heads: 8,
        kv_heads: 2,
        dim: 64,
        dtype: DType::F32,
        coded: false,
        causal: true,
        window: false,
        packed: false,
        page: 0,
        mask: None,
        align: 7,
    }
}

#[test]
fn attention_takes_its_rows_at_their_thresholds_and_splits_long_keys() {
    use crate::device::cpu::tables::{AttentionRow, attention_rows};
    for profile in PROFILES {
        let of = |queries, keys| plan(&Desc::Attention(attention_of(queries, keys)), profile).expect("supported");
        let mine = |r: &&AttentionRow| r.only.is_none_or(|(isa, _)| isa == profile.isa);
        for row in attention_rows().iter().filter(|r| r.min_queries > 0).filter(mine) {
            let (t, dtype) = (row.min_queries, row.only.map_or(DType::F32, |only| only.1));
            let d = |queries| Desc::Attention(AttentionDesc { dtype, ..attention_of(queries, 64) });
            let taken = [t - 1, t, t + 1].map(|q| plan(&d(q), profile).expect("supported").reason == row.reason);
            assert_eq!(taken, [false, true, true], "{}", profile.name);
        }
        assert_eq!([0, 255, 511, 512, 1 << 20].map(|keys| of(1, keys).split), [1, 1, 1, 2, 8]);
        assert_eq!(of(64, 1 << 20).split, 1);
        let packed = AttentionDesc { packed: true, ..attention_of(1, 1 << 20) };
        assert_eq!(plan(&Desc::Attention(packed), profile).expect("supported").split, 1);
    }
}

#[test]
fn unsupported_types_are_typed_errors() {
    let d = desc(4, 4, 4, 1, DType::I32);
    assert_eq!(gemm(&d, Isa::Amx).unwrap_err().to_string(), "gemm: i32 x i32 -> f32 is not supported on device `cpu`");
    let d = GemmDesc { output: DType::I8, ..desc(4, 4, 4, 1, DType::I8) };
    assert!(gemm(&d, Isa::Amx).is_err());
    let d = GemmDesc { output: DType::I32, ..desc(4, 4, 4, 1, DType::F32) };
    assert!(gemm(&d, Isa::Amx).is_err());
    let d = LayerNormDesc { rows: 1, n: 1, dtype: DType::F32, weight: DType::F16, align: 2 };
    assert!(nn::layer_norm(&d, Isa::Avx2).is_err());
}

#[test]
fn products_are_exact_at_every_precision_and_the_plan_says_so() {
    let d = GemmDesc { precision: Precision::Relaxed, ..desc(100, 100, 100, 1, DType::F32) };
    assert!(gemm(&d, Isa::Avx2).expect("supported").precision == Precision::Exact);
}

#[test]
fn plans_do_not_depend_on_cores() {
    let d = Desc::Gemm(desc(1024, 1024, 1024, 1, DType::F32));
    for profile in PROFILES {
        let other = DeviceProfile { cores: 1, ..profile.clone() };
        assert_eq!(plan(&d, profile).expect("supported"), plan(&d, &other).expect("supported"));
    }
}
