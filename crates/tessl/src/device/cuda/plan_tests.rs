//! Tests of plans: every row is reached, thresholds hold at t - 1, t and t + 1, limits are kept.

use super::attention::{self, MIN_QUERIES};
use super::plan::plan;
use super::profiles::PROFILES;
use super::tables::{GemmKernel, GemmRow, access_rows, attention_tiles, gemm_rows, wgmma_rows};
use super::wgmma::NEEDS;
use crate::device::DeviceProfile;
use crate::dtype::DType;
use crate::error::Error;
use crate::gemm::{Activation, Bias, Factor, GemmBackend, GemmDesc, GemmExtras, Layout, Precision};
use crate::nn::{AttentionDesc, MlpDesc, MlpOp, NormResidual, RmsNormDesc};
use crate::plan::{Desc, Plan, candidates};

fn profile(name: &str) -> &'static DeviceProfile {
    PROFILES.iter().find(|p| p.name == name).unwrap()
}

fn gemm(m: u32, n: u32, input: DType) -> GemmDesc {
    GemmDesc {
        m,
        n,
        k: 256,
        batch: 1,
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

/// The same on the portable path, which mma.sync serves.
fn portable(m: u32, n: u32, input: DType) -> GemmDesc {
    GemmDesc { backend: GemmBackend::Simdgroup, ..gemm(m, n, input) }
}

fn of(desc: GemmDesc, profile: &DeviceProfile) -> Plan {
    plan(&Desc::Gemm(desc), profile).unwrap()
}

#[test]
fn portable_ladder_on_h200() {
    let tile = |m, n| of(portable(m, n, DType::Bf16), profile("h200")).tile;
    assert_eq!(tile(4096, 4096), [128, 256, 64]);
    assert_eq!(tile(2048, 2048), [128, 256, 64]);
    assert_eq!(tile(2048, 768), [128, 128, 64]);
    assert_eq!(tile(1024, 1024), [64, 64, 64]);
    assert_eq!(tile(256, 256), [32, 32, 64]);
    assert_eq!(tile(8, 100_000), [32, 32, 64], "tiles that would be mostly empty are not used");
}

#[test]
fn ladder_on_h200() {
    let chosen = |m, n, k| {
        let p = of(GemmDesc { k, ..gemm(m, n, DType::Bf16) }, profile("h200"));
        (p.tile[0], p.tile[1], p.split, p.grid[0])
    };
    assert_eq!(chosen(512, 512, 512), (64, 64, 1, 64));
    assert_eq!(chosen(1024, 1024, 1024), (64, 128, 1, 128));
    assert_eq!(chosen(2048, 2048, 2048), (128, 256, 1, 128));
    assert_eq!(chosen(4096, 4096, 4096), (128, 256, 1, 132));
    assert_eq!(chosen(2048, 768, 768), (128, 128, 1, 96));
    assert_eq!(chosen(8192, 3072, 768), (128, 256, 1, 132));
    assert_eq!(chosen(8192, 768, 3072), (128, 192, 1, 132));
    assert_eq!(chosen(4096, 4096, 1024), (128, 256, 1, 132));
    assert_eq!(chosen(1, 4096, 4096), (64, 64, 2, 128));
    assert_eq!(chosen(64, 28672, 4096), (64, 128, 1, 224));
    assert_eq!(chosen(128, 128, 8192), (64, 64, 8, 32));
    assert_eq!(chosen(768, 768, 8192), (128, 128, 3, 108));
}

#[test]
fn wgmma_is_left_for_a_reason_that_the_plan_tells() {
    let good = GemmDesc { k: 64, ..gemm(256, 256, DType::F16) };
    let h200 = profile("h200");
    let small = DeviceProfile { shared_bytes: 64 << 10, ..h200.clone() };
    let failing: [(GemmDesc, &DeviceProfile); 6] = [
        (good.clone(), profile("a100")),
        (GemmDesc { backend: GemmBackend::Simdgroup, ..good.clone() }, h200),
        (GemmDesc { k: 0, ..good.clone() }, h200),
        (GemmDesc { a_align: 3, ..good.clone() }, h200),
        (GemmDesc { b_align: 3, ..good.clone() }, h200),
        (good.clone(), &small),
    ];
    assert_eq!(failing.len(), NEEDS.len());
    for ((desc, device), (_, why)) in failing.into_iter().zip(NEEDS) {
        let p = of(desc, device);
        assert_eq!((&*p.kernel.module, p.note), ("gemm_mma", Some(*why)));
    }
    for (a_align, b_align, c_align) in [(4, 4, 0), (4, 7, 3), (7, 4, 4)] {
        let p = of(GemmDesc { a_align, b_align, c_align, ..good.clone() }, h200);
        assert_eq!((&*p.kernel.module, p.note), ("gemm_wgmma", None));
        assert!(p.kernel.constants.contains(&("C_WIDE", u32::from(c_align >= 4))));
    }
    // Rows of C that end inside a 16-byte chunk.
    let (f16, f32) = (DType::F16, DType::F32);
    for (n, output, wide) in [(512, f16, 1), (511, f16, 0), (504, f16, 1), (500, f16, 0), (500, f32, 1), (502, f32, 0)]
    {
        let p = of(GemmDesc { n, output, ..good.clone() }, h200);
        assert!(p.kernel.constants.contains(&("C_WIDE", wide)), "{n}: {p:?}");
    }
}

#[test]
fn every_wgmma_row_is_the_cheapest_somewhere_and_keeps_to_the_limits() {
    let h200 = profile("h200");
    let mut seen = vec![false; wgmma_rows().len()];
    let sizes = [1, 64, 65, 128, 192, 320, 500, 768, 1024, 2000, 4096, 8192];
    for (m, n) in sizes.into_iter().flat_map(|m| sizes.into_iter().map(move |n| (m, n))) {
        for (k, batch) in [(1, 1), (64, 7), (511, 1), (512, 64), (1024, 1), (4096, 1), (16384, 1)] {
            let desc = GemmDesc { k, batch, ..gemm(m, n, DType::Bf16) };
            let p = of(desc.clone(), h200);
            let tiles: u64 = p.tiles.iter().map(|t| u64::from(*t)).product();
            let row = wgmma_rows().iter().position(|r| r.reason == p.reason).unwrap();
            seen[row] = true;
            let least = wgmma_rows().iter().filter_map(|r| {
                let tiles = u64::from(m.div_ceil(r.tile[0])) * u64::from(n.div_ceil(r.tile[1])) * u64::from(batch);
                r.clocks(tiles, k, h200.cores)
            });
            assert_eq!(wgmma_rows()[row].clocks(tiles, k, h200.cores), least.min());
            assert!(p.shared_bytes <= h200.shared_bytes);
            assert_eq!(p.grid[0] % p.split, 0);
            assert!(u64::from(p.grid[0]) <= tiles * u64::from(p.split));
        }
    }
    let missing: Vec<_> = wgmma_rows().iter().zip(&seen).filter(|(_, s)| !**s).map(|(r, _)| r.reason).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for row in wgmma_rows() {
        // An SM has 228 KiB, of which each block costs one beside its own.
        assert!(row.resident * (row.shared_bytes() + 1024) <= 228 << 10, "{row:?}");
        let sums = row.tile[0] * row.tile[1] * 4;
        assert!(row.split == 1 || sums <= row.shared_bytes(), "{row:?}");
        assert!(row.split <= 8, "larger clusters are not portable: {row:?}");
    }
}

#[test]
fn a_split_begins_at_four_steps_a_block() {
    for row in wgmma_rows().iter().filter(|r| r.split > 1) {
        let least = row.split * 4 * 64 - 63;
        for (k, taken) in [(least - 1, false), (least, true), (least + 1, true)] {
            assert_eq!(row.clocks(1, k, 132).is_some(), taken, "k = {k}: {row:?}");
        }
    }
}

#[test]
fn candidates_hold_the_choice_and_every_row_that_could_run() {
    let desc = Desc::Gemm(GemmDesc { k: 4096, ..gemm(300, 300, DType::Bf16) });
    let all = candidates(&desc, profile("h200")).unwrap();
    assert!(all.contains(&plan(&desc, profile("h200")).unwrap()));
    let mma = gemm_rows().iter().filter(|r| r.kernel == GemmKernel::Mma).count();
    assert_eq!(all.len(), wgmma_rows().len() + mma);
    assert_eq!(candidates(&desc, profile("a100")).unwrap().len(), mma - 1, "one tile is too large there");
}

#[test]
fn thresholds_hold_one_below_at_and_one_above() {
    let h200 = profile("h200");
    for (i, row) in gemm_rows().iter().enumerate().filter(|(_, r)| r.fill > 0) {
        let input = if row.kernel == GemmKernel::Mma { DType::Bf16 } else { DType::F32 };
        // A column of tiles, as many as the row asks for, on a device where this row is the first that fits.
        let wanted = (h200.cores * row.fill).div_ceil(100);
        let device = DeviceProfile { shared_bytes: row.shared_bytes(), ..h200.clone() };
        let fits = |r: &&GemmRow| r.kernel == row.kernel && r.shared_bytes() <= device.shared_bytes;
        assert_eq!(gemm_rows()[..i].iter().filter(fits).count(), 0, "rows are ordered by size: {row:?}");
        for (tiles, taken) in [(wanted - 1, false), (wanted, true), (wanted + 1, true)] {
            let chosen = of(portable(tiles * row.tile[0], row.tile[1], input), &device);
            assert_eq!(chosen.reason == row.reason, taken, "{tiles} tiles: {}", chosen.reason);
        }
        for (below, taken) in [(1, false), (0, true)] {
            let narrow = of(portable(row.tile[0] * 400, row.min[1] - below, input), &device);
            let flat = of(portable(row.min[0] - below, row.tile[1] * 400, input), &device);
            assert_eq!((narrow.reason == row.reason, flat.reason == row.reason), (taken, taken), "{row:?}");
        }
    }
}

#[test]
fn every_row_is_chosen_somewhere_and_plans_keep_to_the_limits() {
    let mut seen = vec![false; gemm_rows().len()];
    let middle = DeviceProfile { shared_bytes: 48 << 10, ..profile("rtx4090").clone() };
    for device in PROFILES.iter().chain([&middle]) {
        for size in [1u32, 31, 33, 64, 65, 128, 500, 1000, 2000, 4096, 8192] {
            for input in [DType::Bf16, DType::F16, DType::F32] {
                let p = of(portable(size, size, input), device);
                assert!(p.shared_bytes <= device.shared_bytes && p.threads <= device.max_threads, "{p:?}");
                assert_eq!(p.grid[0], p.tiles.iter().product::<u32>());
                let row = gemm_rows().iter().position(|r| r.reason == p.reason).unwrap();
                seen[row] = true;
            }
        }
    }
    let missing: Vec<_> = gemm_rows().iter().zip(&seen).filter(|(_, s)| !**s).map(|(r, _)| r.reason).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn kernel_constants_follow_layout_and_alignment() {
    let constants = |desc: GemmDesc| of(desc, profile("a100")).kernel.constants.to_vec();
    let value = |all: &[(&str, u32)], name: &str| all.iter().find(|c| c.0 == name).unwrap().1;
    for (align, bytes) in [(0, 2), (1, 2), (2, 4), (3, 8), (4, 16), (7, 16)] {
        let all = constants(GemmDesc { a_align: align, ..gemm(64, 64, DType::F16) });
        assert_eq!((value(&all, "VEC_A"), value(&all, "VEC_B")), (bytes, 16));
    }
    let all = constants(GemmDesc { b_align: 3, b: Layout::ColMajor, ..gemm(64, 64, DType::F32) });
    assert_eq!((value(&all, "VEC_B"), value(&all, "A_ROWS"), value(&all, "B_ROWS")), (4, 1, 0));
}

#[test]
fn what_does_not_fit_is_an_error_with_the_numbers() {
    let small = DeviceProfile { shared_bytes: 8 << 10, ..profile("tiny-16k").clone() };
    let error = plan(&Desc::Gemm(gemm(64, 64, DType::Bf16)), &small).unwrap_err();
    assert!(matches!(error, Error::TooLarge { value: 16384, limit: 8192, .. }), "{error}");
    let few = DeviceProfile { max_threads: 32, ..profile("h200").clone() };
    let error = plan(&Desc::Gemm(gemm(64, 64, DType::Bf16)), &few).unwrap_err();
    assert!(matches!(error, Error::TooLarge { value: 128, limit: 32, .. }), "{error}");
    let many = GemmDesc { batch: u32::MAX, ..gemm(4096, 4096, DType::Bf16) };
    assert!(matches!(plan(&Desc::Gemm(many), profile("h200")), Err(Error::TooLarge { .. })));
    assert!(matches!(plan(&Desc::Gemm(gemm(u32::MAX, 1, DType::F32)), profile("h200")), Err(Error::TooLarge { .. })));
}

#[test]
fn problems_without_a_kernel_are_refused() {
    let refused = |desc: GemmDesc, device: &DeviceProfile| {
        matches!(plan(&Desc::Gemm(desc), device), Err(Error::Unsupported { device: "cuda", .. }))
    };
    let h200 = profile("h200");
    let split = plan(&Desc::Gemm(GemmDesc { precision: Precision::Split, ..gemm(64, 64, DType::F32) }), h200).unwrap();
    assert_eq!(split.precision, Precision::Exact);
    let whole = gemm(64, 64, DType::I8);
    assert!(refused(GemmDesc { output: DType::U8, ..whole.clone() }, h200));
    assert!(refused(GemmDesc { output: DType::I32, ..gemm(64, 64, DType::F8E4M3) }, h200));
    assert_eq!(plan(&Desc::Gemm(whole), h200).unwrap().kernel.module, "gemm_fused");
    assert!(refused(GemmDesc { bias: Bias::Column(DType::F16), ..gemm(64, 64, DType::F32) }, h200));
    let turing = DeviceProfile { compute_capability: 75, ..h200.clone() };
    assert!(refused(gemm(64, 64, DType::F16), &turing) && !refused(gemm(64, 64, DType::F32), &turing));
}

#[test]
fn norm_rows_follow_alignment() {
    let norm = |rows, align| {
        let desc =
            RmsNormDesc { rows, n: 4096, dtype: DType::Bf16, weight: DType::F32, residual: NormResidual::None, align };
        plan(&Desc::RmsNorm(desc), profile("h200"))
    };
    for row in access_rows() {
        let p = norm(5, row.min_align).unwrap();
        assert_eq!((p.reason, p.kernel.constants[0]), (row.reason, ("VEC16", row.vec16)));
    }
    assert_eq!(norm(5, 3).unwrap().kernel.constants[0], ("VEC16", 0));
    assert_eq!(norm(5, 4).unwrap().kernel.name, "rms_norm_bf16_f32");
    assert_eq!((norm(5, 4).unwrap().grid[0], norm(1 << 20, 4).unwrap().grid[0]), (5, 1056));
    assert!(matches!(norm(1 << 32, 4), Err(Error::TooLarge { .. })));
}

/// The numbers of an array in a kernel's text.
fn column(text: &str, name: &str) -> Vec<u32> {
    let list = text.split(&format!("constexpr uint {name}[] = {{")).nth(1).unwrap().split('}').next().unwrap();
    list.split(',').map(|n| n.trim().parse().unwrap()).collect()
}

#[test]
fn element_wise_plans_cover_every_vector_and_number_it_in_32_bits() {
    for device in PROFILES {
        for (rows, n, align) in [(1, 1, 7), (3, 1001, 7), (3, 1001, 1), (u64::from(u32::MAX), 1 << 20, 7)] {
            let desc = MlpDesc { op: MlpOp::Glu, rows, n, dtype: DType::Bf16, activation: Activation::Silu, align };
            let p = plan(&Desc::Mlp(desc), device).unwrap();
            let wide = align >= 4;
            assert_eq!((p.tile[1], p.kernel.constants[0]), (if wide { 8 } else { 1 }, ("VEC16", u32::from(wide))));
            let vectors = rows * u64::from(n.div_ceil(p.tile[1]));
            let threads = u64::from(p.grid[0]) * u64::from(p.threads);
            assert!(threads < 1 << 32 && (threads >= vectors || p.grid[0] == 8 * device.cores), "{p:?}");
        }
    }
}

#[test]
fn tiles_are_those_of_the_kernel_sources() {
    let sources = [
        (GemmKernel::Mma, include_str!("../../../kernels/cuda/gemm_mma.cu")),
        (GemmKernel::Simt, include_str!("../../../kernels/cuda/gemm_simt.cu")),
    ];
    let wgmma = include_str!("../../../kernels/cuda/gemm_wgmma.cu");
    let [m, n, warpgroups] = ["TILES_M", "TILES_N", "WARPGROUPS"].map(|name| column(wgmma, name));
    let resident = column(wgmma, "RESIDENT");
    for row in wgmma_rows() {
        let i = row.index as usize;
        assert_eq!((row.tile, row.threads), ([m[i], n[i], 64], 128 * warpgroups[i]), "{row:?}");
        // Registers allow so many; a row with more stages may take less.
        assert!(row.resident <= resident[i], "{row:?}");
    }
    for (kernel, text) in sources {
        let column = |name: &str| column(text, name);
        let [m, n, k] = ["TILES_M", "TILES_N", "TILES_K"].map(column);
        let [warps_m, warps_n] = ["WARPS_M", "WARPS_N"].map(column);
        let mut used = vec![false; m.len()];
        for row in gemm_rows().iter().filter(|r| r.kernel == kernel) {
            let i = row.index as usize;
            assert_eq!(row.tile, [m[i], n[i], k[i]], "{row:?}");
            assert_eq!(row.threads, 32 * warps_m[i] * warps_n[i], "{row:?}");
            used[i] = true;
        }
        assert!(used.iter().all(|u| *u), "a tile of {} has no row", kernel.stem());
    }
}

fn prefill() -> AttentionDesc {
    AttentionDesc {
        sequences: 2,
        queries: 1024,
        keys: 2048,
        heads: 8,
        kv_heads: 2,
        dim: 128,
        dtype: DType::Bf16,
        coded: false,
        causal: true,
        window: false,
        packed: false,
        page: 0,
        mask: None,
        align: 4,
    }
}

/// The condition that sends an attention to the shared kernels, if any.
fn refused(d: AttentionDesc, profile: &DeviceProfile) -> Option<&'static str> {
    let plan = plan(&Desc::Attention(d), profile).unwrap();
    assert_eq!(plan.note.is_none(), plan.kernel.module == "attention_wgmma", "{plan:?}");
    plan.note
}

#[test]
fn attention_says_why_it_does_not_take_the_matrix_units() {
    let h200 = profile("h200");
    assert_eq!(refused(prefill(), h200), None);
    assert_eq!(refused(AttentionDesc { dtype: DType::F16, packed: true, ..prefill() }, h200), None);
    let small = DeviceProfile { shared_bytes: 99 << 10, ..h200.clone() };
    let wrong = [
        (AttentionDesc { dtype: DType::F32, ..prefill() }, h200),
        (AttentionDesc { coded: true, ..prefill() }, h200),
        (AttentionDesc { queries: MIN_QUERIES - 1, ..prefill() }, h200),
        (AttentionDesc { keys: 0, ..prefill() }, h200),
        (AttentionDesc { page: 64, ..prefill() }, h200),
        (AttentionDesc { mask: Some(DType::U8), ..prefill() }, h200),
        (AttentionDesc { align: 3, ..prefill() }, h200),
        (AttentionDesc { dim: 132, ..prefill() }, h200),
        (AttentionDesc { dim: 264, ..prefill() }, h200),
        (AttentionDesc { dim: 256, ..prefill() }, &small),
        (prefill(), profile("a100")),
    ];
    let mut told: Vec<&str> = wrong.map(|(d, profile)| refused(d, profile).unwrap()).into();
    told.sort_unstable();
    told.dedup();
    assert!(attention::NEEDS.iter().all(|(_, why)| told.contains(why)), "{told:?}");
    for queries in [MIN_QUERIES, MIN_QUERIES + 1] {
        assert_eq!(refused(AttentionDesc { queries, ..prefill() }, h200), None);
    }
}

#[test]
fn every_tile_of_attention_is_a_candidate_of_its_size_and_fits() {
    let h200 = profile("h200");
    for tile in attention_tiles() {
        assert!(tile.shared_bytes() <= h200.shared_bytes, "{tile:?}");
        for dim in [tile.size - 8, tile.size] {
            let all = candidates(&Desc::Attention(AttentionDesc { dim, ..prefill() }), h200).unwrap();
            let plan = all.iter().find(|p| p.reason == tile.reason).unwrap();
            assert_eq!(plan.tiles, [2 * 1024u32.div_ceil(tile.queries()), 8, 1]);
        }
    }
    let first = |dim| plan(&Desc::Attention(AttentionDesc { dim, ..prefill() }), h200).unwrap().tile[2];
    assert_eq!(
        [8, 64, 72, 96, 104, 128, 136, 192, 200, 256].map(first),
        [64, 64, 96, 96, 128, 128, 192, 192, 256, 256]
    );
}
