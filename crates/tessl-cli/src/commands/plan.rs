//! `tessl plan`: what would run, on any device, from any machine.

use super::plan_tiles;
use crate::error::{CliError, Result};
use crate::ui;
use serde_json::json;
use tessl::device::PROFILES;
use tessl::nn::{NormResidual, RmsNormDesc};
use tessl::plan::{Desc, Plan, plan};
use tessl::{
    Activation, DType, Device, DeviceKind, DeviceProfile, GemmBackend, GemmDesc, GemmExtras, Layout, Precision,
};
use tessl::{Bias, Factor};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    problem: Option<Problem>,
    /// List the device profiles that plans can be made for
    #[arg(long)]
    profiles: bool,
    /// List the tiles of every plan (for the audit of kernels)
    #[arg(long, conflicts_with = "profiles")]
    tiles: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Problem {
    /// A matrix product: C [M, N] = A [M, K] B [K, N]
    Gemm(GemmArgs),
    /// Root-mean-square normalisation of ROWS rows of N elements
    #[command(name = "rms_norm", alias = "rms-norm")]
    RmsNorm(NormArgs),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Device family or device: cpu, cuda, metal [default: that of the profile, else the best present]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Device profile, such as h200 or m5-pro (`tessl plan --profiles` lists them)
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct GemmArgs {
    m: u32,
    n: u32,
    k: u32,
    /// Element type of A and B
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// Element type of C [default: that of A and B]
    #[arg(long, value_name = "DTYPE")]
    out: Option<DType>,
    /// N (rows contiguous) or T (a transposed view) for A and for B
    #[arg(long, default_value = "NN", value_parser = ["NN", "NT", "TN", "TT"], ignore_case = true)]
    layout: String,
    /// Number of matrices
    #[arg(long, default_value_t = 1)]
    batch: u32,
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    alpha: f32,
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    beta: f32,
    /// Element type of a bias, one value per column
    #[arg(long, value_name = "DTYPE")]
    bias: Option<DType>,
    /// none, relu, silu, gelu or gelu-tanh
    #[arg(long, default_value = "none")]
    activation: Activation,
    /// exact, split or relaxed (f32 only)
    #[arg(long, default_value = "exact")]
    precision: Precision,
    /// tensorops or simdgroup
    #[arg(long, default_value = "tensorops")]
    backend: GemmBackend,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct NormArgs {
    rows: u64,
    n: u32,
    /// Element type of x and y
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// Element type of the weight [default: that of x]
    #[arg(long, value_name = "DTYPE")]
    weight: Option<DType>,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.problem {
        Some(Problem::Gemm(g)) => show(&Desc::Gemm(gemm_desc(g)?), &g.target),
        Some(Problem::RmsNorm(n)) => show(&Desc::RmsNorm(norm_desc(n)), &n.target),
        None if args.profiles => profiles(args.json),
        None if args.tiles => plan_tiles::run(args.json),
        None => {
            Err(CliError::Usage("plan: name a problem, as in `tessl plan gemm 4096 4096 4096 --dtype bf16`".into()))
        }
    }
}

fn gemm_desc(g: &GemmArgs) -> Result<GemmDesc> {
    let limit = |name, value: f32| {
        let error = || tessl::Error::Scalar { op: "plan", name, value: value.into(), expected: "finite" };
        if value.is_finite() { Ok(Factor::of(value)) } else { Err(error()) }
    };
    let letters = g.layout.to_ascii_uppercase();
    let layout = |at: usize| if letters.as_bytes()[at] == b'T' { Layout::ColMajor } else { Layout::RowMajor };
    let output = g.out.unwrap_or(g.dtype);
    let leading = |layout, rows, columns| if layout == Layout::RowMajor { columns } else { rows };
    Ok(GemmDesc {
        m: g.m,
        n: g.n,
        k: g.k,
        batch: g.batch,
        input: g.dtype,
        output,
        a: layout(0),
        b: layout(1),
        b_shared: g.batch == 1,
        a_align: alignment(leading(layout(0), g.m, g.k), g.dtype),
        b_align: alignment(leading(layout(1), g.k, g.n), g.dtype),
        c_align: alignment(g.n, output),
        alpha: limit("alpha", g.alpha)?,
        beta: limit("beta", g.beta)?,
        bias: g.bias.map_or(Bias::None, Bias::Column),
        activation: g.activation,
        precision: if g.dtype == DType::F32 { g.precision } else { Precision::Exact },
        backend: g.backend,
        extras: GemmExtras::default(),
    })
}

fn norm_desc(n: &NormArgs) -> RmsNormDesc {
    let align = alignment(n.n, n.dtype);
    RmsNormDesc {
        rows: n.rows,
        n: n.n,
        dtype: n.dtype,
        weight: n.weight.unwrap_or(n.dtype),
        residual: NormResidual::None,
        align,
    }
}

/// log2 of the alignment of rows of `elements` in memory that starts on a 128-byte boundary.
pub(super) fn alignment(elements: u32, dtype: DType) -> u8 {
    let bits = (u64::from(elements) * dtype.size() as u64) | 128;
    u8::try_from(bits.trailing_zeros()).unwrap_or(7)
}

fn show(desc: &Desc, target: &Target) -> Result<()> {
    let profile = profile(target)?;
    let plan = plan(desc, &profile)?;
    if target.json {
        return ui::json(&json!({ "schema": 1, "profile": profile, "desc": desc, "plan": plan }));
    }
    ui::out(text(&profile, &plan))
}

/// The profile asked for, or that of the device.
fn profile(target: &Target) -> Result<DeviceProfile> {
    let all = || PROFILES.iter().copied().flatten();
    if let Some(name) = &target.profile {
        let of_family = |p: &&DeviceProfile| target.device.as_ref().is_none_or(|d| d.kind() == p.kind);
        return all().find(|p| p.name == name && of_family(p)).cloned().ok_or_else(|| {
            let names: Vec<_> = all().filter(of_family).map(|p| p.name).collect();
            CliError::Usage(format!("plan: there is no profile `{name}`; there are {}", names.join(", ")))
        });
    }
    let device = target.device.clone().unwrap_or_else(Device::best);
    let info = device.info();
    // A device that is not here can still be planned for: its family's first profile stands in.
    let named = all().find(|p| info.missing.is_none() && p.name == info.profile);
    let standing_in = || all().find(|p| p.kind == device.kind());
    named.or_else(standing_in).cloned().ok_or_else(|| CliError::Usage(format!("plan: no profile for device {device}")))
}

fn text(profile: &DeviceProfile, plan: &Plan) -> String {
    let joined = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" x ");
    let constants: Vec<_> = plan.kernel.constants.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut lines = vec![
        ("profile", format!("{} ({})", profile.name, profile.kind)),
        ("kernel", format!("{} / {}", plan.kernel.module, plan.kernel.name)),
        ("tile", joined(&plan.tile)),
        ("tiles", joined(&plan.tiles)),
        ("scratch", ui::bytes(plan.scratch_bytes)),
        ("reason", plan.reason.to_owned()),
    ];
    if !constants.is_empty() {
        lines.insert(2, ("constants", constants.join(" ")));
    }
    if profile.kind != DeviceKind::Cpu {
        let grid = format!(
            "{} threadgroups of {} threads, {} shared",
            joined(&plan.grid),
            plan.threads,
            ui::bytes(plan.shared_bytes.into())
        );
        lines.insert(lines.len() - 2, ("grid", grid));
        lines.insert(lines.len() - 2, ("stages", format!("{}, k split in {}", plan.stages, plan.split)));
    }
    lines.extend(plan.note.map(|note| ("note", note.to_owned())));
    lines.iter().map(|(name, value)| format!("{name:<10} {value}")).collect::<Vec<_>>().join("\n")
}

fn profiles(as_json: bool) -> Result<()> {
    let all: Vec<&DeviceProfile> = PROFILES.iter().copied().flatten().collect();
    if as_json {
        return ui::json(&json!({ "schema": 1, "profiles": all }));
    }
    let mut table = ui::table(["profile", "device", "cores", "L2", "shared", "matrix units"]);
    for p in all {
        let units = if p.tensor_ops { "yes" } else { "no" };
        let cells = [p.name.into(), p.kind.to_string(), p.cores.to_string(), ui::bytes(p.l2_bytes)];
        table.add_row(cells.into_iter().chain([ui::bytes(p.shared_bytes.into()), units.into()]));
    }
    ui::out(table.trim_fmt())
}
