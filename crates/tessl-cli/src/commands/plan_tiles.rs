//! `tessl plan --tiles`: the geometry of every plan on GPUs, for comparison with the constants in the kernels.
//!
//! Plans are made for a grid of problems on every profile, so that what is listed is what would be launched. Rows of
//! the tables that no problem reaches are told, because the audit would miss them.

use super::plan::alignment;
use crate::error::{CliError, Result};
use crate::ui;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tessl::device::{PROFILES, cuda, metal};
use tessl::plan::{Desc, Plan, plan};
use tessl::{
    Activation, Bias, DType, DeviceKind, DeviceProfile, Factor, GemmBackend, GemmDesc, GemmExtras, Layout, Precision,
};

/// Extents that reach every rule: around tiles, few and many tiles, odd ones.
const SIZES: [u32; 11] = [1, 16, 33, 64, 129, 300, 512, 768, 896, 1025, 8192];

/// Threadgroup memory of devices without a profile, in bytes.
const SHARED: [u32; 5] = [16 << 10, 32 << 10, 48 << 10, 64 << 10, 99 << 10];

pub(super) fn run(as_json: bool) -> Result<()> {
    let mut rows = BTreeMap::new();
    let mut reasons = BTreeSet::new();
    for profile in &profiles() {
        for desc in problems() {
            // A profile need not have a kernel for every problem.
            if let Ok(plan) = plan(&Desc::Gemm(desc), profile) {
                reasons.insert((profile.kind, plan.reason));
                let row = row(profile, &plan);
                rows.insert(row.to_string(), row);
            }
        }
    }
    let missed: Vec<String> =
        table_rows().filter(|row| !reasons.contains(row)).map(|(kind, r)| format!("{kind}: {r}")).collect();
    if !missed.is_empty() {
        return Err(CliError::Failed(format!("plan --tiles: no problem reaches the rows {}", missed.join(" | "))));
    }
    let rows: Vec<Value> = rows.into_values().collect();
    if as_json {
        return ui::json(&rows);
    }
    const COLUMNS: [&str; 6] = ["device", "kernel", "tile", "threads", "stages", "reason"];
    let cell = |row: &Value, key: &str| row[key].as_str().map_or_else(|| row[key].to_string(), str::to_owned);
    // Constants that only pick a code path are left out here, so that a geometry is one line.
    let lines: BTreeSet<[String; 6]> = rows.iter().map(|row| COLUMNS.map(|key| cell(row, key))).collect();
    let mut table = ui::table(COLUMNS);
    for line in lines {
        table.add_row(line);
    }
    ui::out(table.trim_fmt())
}

/// Every GPU profile, and the same with less threadgroup memory: rows for devices that no profile names.
fn profiles() -> Vec<DeviceProfile> {
    let gpus = PROFILES.iter().copied().flatten().filter(|p| p.kind != DeviceKind::Cpu);
    let smaller = |p: &DeviceProfile| {
        let sizes = SHARED.into_iter().filter(|&s| s < p.shared_bytes).collect::<Vec<u32>>();
        let p = p.clone();
        std::iter::once(p.shared_bytes)
            .chain(sizes)
            .map(move |shared_bytes| DeviceProfile { shared_bytes, ..p.clone() })
    };
    gpus.flat_map(smaller).collect()
}

fn row(profile: &DeviceProfile, plan: &Plan) -> Value {
    let constants: serde_json::Map<String, Value> =
        plan.kernel.constants.iter().map(|&(name, value)| (name.to_owned(), json!(value))).collect();
    json!({
        "device": profile.kind,
        "module": plan.kernel.module,
        "kernel": plan.kernel.name,
        "tile": plan.tile,
        "threads": plan.threads,
        "stages": plan.stages,
        "constants": constants,
        "reason": plan.reason,
    })
}

/// The rows of the GEMM tables, by their reasons.
fn table_rows() -> impl Iterator<Item = (DeviceKind, &'static str)> {
    let metal = metal::gemm_rows().iter().map(|row| (DeviceKind::Metal, row.reason));
    let wgmma = cuda::tables::wgmma_rows().iter().map(|row| (DeviceKind::Cuda, row.reason));
    metal.chain(cuda::tables::gemm_rows().iter().map(|row| (DeviceKind::Cuda, row.reason))).chain(wgmma)
}

fn problems() -> impl Iterator<Item = GemmDesc> {
    let types = [
        (DType::F32, DType::F32),
        (DType::F32, DType::Bf16),
        (DType::F32, DType::F16),
        (DType::Bf16, DType::F32),
        (DType::Bf16, DType::Bf16),
        (DType::F16, DType::F32),
        (DType::F16, DType::F16),
    ];
    let backends = [GemmBackend::TensorOps, GemmBackend::Simdgroup];
    let sizes = SIZES.into_iter().flat_map(|m| SIZES.into_iter().map(move |n| (m, n)));
    // One step of products, short and long sums: the last may be split.
    let sizes = sizes.flat_map(|(m, n)| [64, 768, 8192].map(|k| (m, n, k)));
    let cases = sizes.flat_map(move |size| types.into_iter().map(move |types| (size, types)));
    cases.flat_map(move |((m, n, k), (input, output))| {
        backends.into_iter().map(move |backend| GemmDesc {
            m,
            n,
            k,
            batch: 1,
            input,
            output,
            a: Layout::RowMajor,
            b: Layout::RowMajor,
            b_shared: true,
            a_align: alignment(k, input),
            b_align: alignment(n, input),
            c_align: alignment(n, output),
            alpha: Factor::One,
            beta: Factor::Zero,
            bias: Bias::None,
            activation: Activation::None,
            precision: Precision::Exact,
            backend,
            extras: GemmExtras::default(),
        })
    })
}
