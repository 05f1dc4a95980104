//! Plan rows: which (kernel, reason) pairs a profile can choose, found by planning, never by a list kept by hand.

use crate::env::{FP8_PAIRS, GEMM_PAIRS, INT8_PAIRS, NORM_PAIRS};
use serde::Serialize;
use std::collections::BTreeMap;
use tessl::nn::{NormResidual, RmsNormDesc};
use tessl::plan::{Desc, plan};
use tessl::{
    Activation, Bias, DType, DeviceProfile, Factor, GemmBackend, GemmDesc, GemmExtras, Layout, PackDesc, Precision,
};

/// A kernel variant and the rule that chose it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Row {
    /// Operation.
    pub op: &'static str,
    /// Device family.
    pub device: &'static str,
    /// Kernel with its constants.
    pub kernel: String,
    /// The rule.
    pub reason: String,
}

impl Row {
    /// The row that `desc` takes on `profile`.
    ///
    /// # Errors
    /// The planning error.
    pub fn of(desc: &Desc, profile: &DeviceProfile) -> tessl::Result<Row> {
        let plan = plan(desc, profile)?;
        let constants: Vec<String> =
            plan.kernel.constants.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let constants = if constants.is_empty() { String::new() } else { format!("[{}]", constants.join(",")) };
        let op = match desc {
            Desc::Gemm(_) => "gemm",
            Desc::Pack(_) => "pack_weights",
            Desc::RmsNorm(_) => "rms_norm",
            Desc::LayerNorm(_) => "layer_norm",
            Desc::QkNorm(_) => "qk_norm",
            Desc::Mlp(d) => d.op.name(),
            Desc::Elementwise(d) => d.op.name(),
            Desc::Reduce(d) => d.op.name(),
            Desc::Rope(_) => "rope",
            Desc::Embed(_) => "embedding",
            Desc::Movement(d) => d.op.name(),
            Desc::Experts(d) => d.op.name(),
            Desc::TopK(_) => "top_k",
            Desc::Sample(_) => "sample",
            Desc::Quant(d) => d.op.name(),
            Desc::NormQkvRope(_) => "norm_qkv_rope",
            Desc::QuantEmbed(_) => "quantized_embedding",
            Desc::Attention(_) | Desc::Combine(_) => "attention",
            Desc::Cache(d) => d.op.name(),
            _ => "other",
        };
        let kernel = format!("{}{constants}", plan.kernel.name);
        Ok(Row { op, device: profile.kind.name(), kernel, reason: plan.reason.to_owned() })
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\t{}\t{}\t{}", self.device, self.op, self.kernel, self.reason)
    }
}

/// A plain product: contiguous, aligned, no epilogue.
pub fn plain_gemm(m: u32, n: u32, k: u32, input: DType, output: DType, backend: GemmBackend) -> GemmDesc {
    GemmDesc {
        m,
        n,
        k,
        batch: 1,
        input,
        output,
        a: Layout::RowMajor,
        b: Layout::RowMajor,
        b_shared: true,
        a_align: 7,
        b_align: 7,
        c_align: 7,
        alpha: Factor::One,
        beta: Factor::Zero,
        bias: Bias::None,
        activation: Activation::None,
        precision: Precision::Exact,
        backend,
        extras: GemmExtras::default(),
    }
}

/// Multiply-adds of a product.
pub fn macs(d: &GemmDesc) -> u64 {
    [d.m, d.n, d.k, d.batch].iter().fold(1, |product, &x| product.saturating_mul(u64::from(x)))
}

const SIZES: [u32; 17] = [1, 2, 3, 5, 8, 9, 16, 17, 32, 40, 64, 100, 128, 256, 512, 1024, 4096];
/// Products larger than this are no use as witnesses.
const LARGEST: u64 = 1 << 33;

/// Every gemm row that the profile can choose, with the cheapest problem that takes it.
pub fn gemm_rows(profile: &DeviceProfile) -> BTreeMap<Row, GemmDesc> {
    let mut rows: BTreeMap<Row, GemmDesc> = BTreeMap::new();
    let mut offer = |d: &GemmDesc| {
        if macs(d) > LARGEST {
            return;
        }
        if let Ok(row) = Row::of(&Desc::Gemm(d.clone()), profile) {
            let best = rows.entry(row).or_insert_with(|| d.clone());
            if macs(d) < macs(best) {
                *best = d.clone();
            }
        }
    };
    for (input, output) in GEMM_PAIRS.into_iter().chain(INT8_PAIRS).chain(FP8_PAIRS) {
        for backend in [GemmBackend::TensorOps, GemmBackend::Simdgroup] {
            for m in SIZES {
                for (n, k) in
                    SIZES.into_iter().step_by(2).flat_map(|n| SIZES.into_iter().step_by(2).map(move |k| (n, k)))
                {
                    for batch in [1, 8, 64] {
                        let d = GemmDesc { batch, ..plain_gemm(m, n, k, input, output, backend) };
                        offer(&d);
                    }
                }
            }
            for m in [1, 4, 9, 40, 100, 512] {
                let base = plain_gemm(m, m.max(33), m.max(65), input, output, backend);
                variations(&base, &mut offer);
            }
        }
    }
    rows
}

/// Everything about a problem that is not its size.
fn variations(base: &GemmDesc, offer: &mut impl FnMut(&GemmDesc)) {
    let layouts = [Layout::RowMajor, Layout::ColMajor];
    for (a, b) in layouts.into_iter().flat_map(|a| layouts.into_iter().map(move |b| (a, b))) {
        let natural = |dtype: DType| u8::try_from(dtype.size().trailing_zeros()).unwrap_or(2);
        for (align, c_align) in [(7, 7), (natural(base.input), natural(base.output)), (4, 4)] {
            let d = GemmDesc { a, b, a_align: align, b_align: align, c_align, ..base.clone() };
            offer(&d);
            if base.output == DType::I32 {
                continue;
            }
            for bias in
                [Bias::Column(DType::F32), Bias::Column(base.output), Bias::Row(DType::F32), Bias::Row(base.output)]
            {
                offer(&GemmDesc { bias, beta: Factor::Any, ..d.clone() });
            }
            for activation in Activation::ALL {
                offer(&GemmDesc { activation, alpha: Factor::Any, beta: Factor::One, ..d.clone() });
            }
        }
    }
    if base.input == DType::F32 {
        for precision in [Precision::Split, Precision::Relaxed] {
            for batch in [1, 8] {
                offer(&GemmDesc { precision, batch, ..base.clone() });
            }
        }
    }
    offer(&GemmDesc { batch: 3, b_shared: false, ..base.clone() });
    offer(&GemmDesc { k: 0, ..base.clone() });
    let with = |extras: GemmExtras| GemmDesc { extras, ..base.clone() };
    let plain = GemmExtras::default();
    offer(&with(GemmExtras { packed: true, ..plain }));
    offer(&with(GemmExtras { groups: base.m, ..plain }));
    offer(&GemmDesc { batch: 8, b_shared: false, ..with(GemmExtras { packed: true, ..plain }) });
}

/// Every rms_norm row that the profile can choose, with the cheapest problem that takes it.
pub fn norm_rows(profile: &DeviceProfile) -> BTreeMap<Row, RmsNormDesc> {
    let mut rows: BTreeMap<Row, RmsNormDesc> = BTreeMap::new();
    let cost = |d: &RmsNormDesc| d.rows * u64::from(d.n);
    for (dtype, weight) in NORM_PAIRS {
        for n in [1, 4, 8, 33, 64, 128, 500, 1024, 4096, 16384, 70000] {
            for (count, align) in [1u64, 3, 65, 1000].into_iter().flat_map(|r| [1, 4, 7].map(move |a| (r, a))) {
                let align = if dtype == DType::F32 && align < 2 { 2 } else { align };
                let d = RmsNormDesc { rows: count, n, dtype, weight, residual: NormResidual::None, align };
                if let Ok(row) = Row::of(&Desc::RmsNorm(d.clone()), profile) {
                    let best = rows.entry(row).or_insert_with(|| d.clone());
                    if cost(&d) < cost(best) {
                        *best = d;
                    }
                }
            }
        }
    }
    rows
}

/// Every row of the other operations that the profile can choose, with a problem that takes it.
pub fn nn_rows(profile: &DeviceProfile) -> BTreeMap<Row, Desc> {
    let descs = [
        crate::norm::descs(),
        crate::mlp::descs(),
        crate::movement::descs(),
        crate::experts::descs(),
        crate::elementwise::descs(),
        crate::reduce::descs(),
        crate::rope::descs(),
        crate::embed::descs(),
        crate::sample::descs(),
        pack_descs(),
        crate::qkv::descs(),
        crate::quant::descs(),
        crate::attention::descs(),
        crate::cache::descs(),
    ]
    .into_iter()
    .flatten();
    descs.filter_map(|desc| Some((Row::of(&desc, profile).ok()?, desc))).collect()
}

/// Packing of weights of every type.
fn pack_descs() -> Vec<Desc> {
    let types = DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::U32));
    let backends = [GemmBackend::TensorOps, GemmBackend::Simdgroup];
    let all = types.flat_map(|dtype| backends.map(|backend| (dtype, backend)));
    all.map(|(dtype, backend)| Desc::Pack(PackDesc { n: 40, k: 9, batch: 1, dtype, gated: false, backend })).collect()
}

/// All rows of a profile.
pub fn reachable(profile: &DeviceProfile) -> Vec<Row> {
    let products = gemm_rows(profile).into_keys().chain(norm_rows(profile).into_keys());
    products.chain(nn_rows(profile).into_keys()).collect()
}

/// Sizes along one axis (0 rows, 1 columns, 2 depth) up to `limit` where the plan takes another row than one below:
/// the selector's thresholds, as it shows them itself.
pub fn thresholds(profile: &DeviceProfile, base: &GemmDesc, axis: usize, limit: u32) -> Vec<u32> {
    let at = |size: u32| {
        let mut d = base.clone();
        *[&mut d.m, &mut d.n, &mut d.k][axis] = size;
        Row::of(&Desc::Gemm(d), profile).ok()
    };
    let mut found = Vec::new();
    let mut last = at(1);
    for size in 2..=limit {
        let row = at(size);
        if row != last {
            found.push(size);
            last = row;
        }
    }
    found
}

/// Tile sizes (rows, columns, depth) that plans of this kind of problem use.
pub fn tiles(profile: &DeviceProfile, input: DType, output: DType, backend: GemmBackend) -> [Vec<u32>; 3] {
    let mut sizes: [Vec<u32>; 3] = Default::default();
    for (m, n, k) in [(16, 64, 64), (64, 64, 64), (200, 300, 400), (1000, 3000, 3000)] {
        if let Ok(plan) = plan(&Desc::Gemm(plain_gemm(m, n, k, input, output, backend)), profile) {
            for (list, tile) in sizes.iter_mut().zip(plan.tile) {
                list.push(tile);
            }
        }
    }
    for list in &mut sizes {
        list.sort_unstable();
        list.dedup();
    }
    sizes
}
