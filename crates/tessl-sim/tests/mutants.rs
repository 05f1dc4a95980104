//! Bugs put into the kernels on purpose. Each must be rejected by the compiler, reported by the executor, or change a
//! number under one of the schedules; a bug that passes is a hole in the tests. Every entry costs a compilation.

mod common;

use common::{SCHEDULES, Target, cannot_compile, gemm, norm};
use half::{bf16, f16};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessl::{GpuRuntime, RuntimeOptions};
use tessl_conformance::{Env, Suite};
use tessl_sim::{Module, Schedule, SimDevice};

/// How a planted bug must come to light.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Caught {
    Compiler,
    Run,
}
use Caught::{Compiler, Run};

/// File, text to replace (its first occurrence), replacement, and by whom it is caught.
type Mutant = (&'static str, &'static str, &'static str, Caught);

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";
const NORM: &str = "simt/norm.metal";
const GEMM: &str = "metal/gemm_simdgroup.metal";

/// Tells the child process which mutant it is.
const SELECT: &str = "TESSL_SIM_MUTANT";
/// Its exit status when the compiler rejects the text.
const REJECTED: i32 = 42;

static QUICK: [Mutant; 12] = [
    (NORM, BARRIER, "", Run),
    (NORM, "half_used ^= 1;", ";", Run),
    (NORM, BARRIER, "simdgroup_barrier(mem_flags::mem_threadgroup);", Run),
    (NORM, "if (tail < p.n) {", "if (tail <= p.n) {", Run),
    (NORM, "p.r1, p.r2, p.x_s0", "p.r2, p.r1, p.x_s0", Run),
    (NORM, "+ p.eps", "", Run),
    (GEMM, BARRIER, "", Run),
    (GEMM, "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    a +=", "    a +=", Run),
    (GEMM, "r < rows && c < cols", "c < cols", Run),
    (GEMM, "if (p.beta != 0.0f) t +=", "t +=", Run),
    (GEMM, "if (row < rows && col < cols)", "if (row < rows)", Run),
    (GEMM, "threadgroup float* strip =", "device float* strip =", Compiler),
];

static DEEP: [Mutant; 17] = [
    (NORM, "if (lane == 0) part[sg] = v;", "if (lane == 0) part[sg] = simd_sum(v);", Run),
    (NORM, "v = simd_sum(v);", "if (lane < 16) v = simd_sum(v);", Run),
    (NORM, "i < SIMDGROUPS; i++) sum", "i < SIMDGROUPS - 1; i++) sum", Run),
    (NORM, "w2 + i * E, res + i * E, scale", "w2 + i * E + 1, res + i * E, scale", Run),
    (NORM, "r += p.groups", "r += p.groups + 1", Run),
    (NORM, "w2[tail], res + tail", "w2[0], res + tail", Run),
    (
        NORM,
        "device X* y, constant RmsNormArgs& p, float inv_n",
        "threadgroup X* y, constant RmsNormArgs& p, float inv_n",
        Compiler,
    ),
    (NORM, "const float inv_n =", "p.n = 3; const float inv_n =", Compiler),
    (GEMM, "left -= min(left, TILE_K)", "left -= min(left, TILE_K + 1)", Run),
    (GEMM, "make_filled_simdgroup_matrix<float, 8, 8>(0.0f);", "simdgroup_matrix<float, 8, 8>();", Run),
    (GEMM, "batch * p.b_bs", "batch * p.a_bs", Run),
    (GEMM, "const uint i = p.bias == 1 ? col : row;", "const uint i = p.bias == 1 ? row : col;", Run),
    (GEMM, "    simdgroup_barrier(mem_flags::mem_threadgroup);\n    const uint col", "    const uint col", Run),
    (GEMM, "    }\n    simdgroup_barrier(mem_flags::mem_threadgroup);\n  }", "    }\n  }", Run),
    (GEMM, "by_row ? i % TC : i / TR", "by_row ? i % TC : i / TC", Run),
    (GEMM, "float t = p.alpha * acc;\n  if (p.beta != 0.0f) t +=", "float t = acc;\n  if (p.beta != 0.0f) t +=", Run),
    (GEMM, "TG(float, strips, 4 * STRIP);", "TG(float, strips, 32 * STRIP);", Run),
];

/// A bug that the conformance suite has to find: file, text, replacement, and the start of the names of the cases that do.
type RowMutant = (&'static str, &'static str, &'static str, &'static [&'static str]);

const EXPERTS: &str = "simt/experts.metal";
const ELEMENTWISE: &str = "simt/elementwise.metal";
const REDUCE: &str = "simt/reduce.metal";
const MLP: &str = "simt/mlp.metal";
const ROPE: &str = "simt/rope.metal";
const FUSED: &str = "simt/gemm_fused.metal";
const EMBED: &str = "simt/embed.metal";
const MOVEMENT: &str = "simt/movement.metal";
const SAMPLE: &str = "simt/sample.metal";
const ATTENTION: &str = "simt/attention.metal";
const CACHE: &str = "simt/cache.metal";
const QKV: &str = "simt/qkv.metal";

static ROWS: [RowMutant; 11] = [
    (FUSED, "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    for", "    for", &["gemm/fused/f32_f32"]),
    (FUSED, "t += float(residual[residual_at])", "t -= float(residual[residual_at])", &["gemm/fused/f32_f32"]),
    (ELEMENTWISE, "b + map_b(c, p, i)", "b + map_a(c, p, i)", &["add/views/f32"]),
    (REDUCE, "(a == b && i < j)", "(a == b && i > j)", &["known/pt_130295"]),
    (MLP, "if (VEC16 && p.n - i >= width)", "if (VEC16)", &["activate/views/f32"]),
    (ROPE, "x1 * c + x0 * s", "x1 * c - x0 * s", &["rope"]),
    (EMBED, "if (id >= p.vocabulary)", "if (id > p.vocabulary)", &["known/pt_571"]),
    (
        MOVEMENT,
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    for (uint i = first;",
        "    for (uint i = first;",
        &["copy/transpositions/f32"],
    ),
    (SAMPLE, "~i >= limit.inverse", "~i > limit.inverse", &["top_k/largest/f32"]),
    (NORM, "const float shift = float(xr[0]);", "const float shift = 0.0f;", &["known/burn_5607"]),
    (
        NORM,
        "h[i] = v = X((float(v) + float(res[i])) * sum_scale)",
        "v = X((float(v) + float(res[i])) * sum_scale)",
        &["norm_before/views/f32"],
    ),
];

static MORE_ROWS: [RowMutant; 28] = [
    (FUSED, "p.n + col, p)", "col, p)", &["gemm/gated/f32_f32"]),
    (FUSED, "end < start || ", "", &["gemm/bad_offsets"]),
    (FUSED, "r.end = end;", "r.end = p.m;", &["gemm/groups/f32_f32"]),
    (FUSED, "magnitude < 8 ?", "magnitude < 0 ?", &["gemm/types/f8e4m3"]),
    (FUSED, "type == UNSIGNED ?", "type == 0 ?", &["gemm/types/i8"]),
    (FUSED, "(n0 + c0 + j) / SCALED", "c0 / SCALED", &["gemm/blocks/f8e4m3"]),
    (NORM, "w + i * E, res + i * E, scale", "w2 + i * E, res + i * E, scale", &["norm_between/options/f32_f32"]),
    (EXPERTS, "below += id < expert", "below += id <= expert", &["sort_by_expert/shapes"]),
    (EXPERTS, "before += i < sg", "before += i <= sg", &["sort_by_expert/shapes"]),
    (EXPERTS, "from[j] * p.x_s", "j * p.x_s", &["combine_experts/shapes/f32"]),
    (CACHE, "most / 127.0f", "most / 128.0f", &["kv_store/special_codes"]),
    (ELEMENTWISE, "p.mode == 1 ? *factor", "p.mode == 0 ? *factor", &["scale"]),
    (ELEMENTWISE, "constexpr uint E = 8;", "constexpr uint E = 4;", &["cast/views/f32_f16"]),
    (REDUCE, "if (a != a || b != b) return a != a && (b == b || i < j);", "", &["known/pt_130295"]),
    (REDUCE, "mask_row + i + e", "mask_row + i", &["softmax/options/f32"]),
    (REDUCE, "y[i] = T(p.mask == 0 ? some : none)", "y[i] = T(some)", &["known/mindspore_378"]),
    (REDUCE, "p.scale * group_sum", "group_sum", &["row_mean/views/f32"]),
    (MLP, "activate(kind, float(*g)) * float(*u)", "activate(kind, float(*u)) * float(*g)", &["glu/views/f32"]),
    (ROPE, "return mode == 2 ? wide : wide + at;", "return wide;", &["rope"]),
    (ROPE, "(p.mode & 4) != 0 && ", "", &["rope"]),
    (EMBED, "p.i_s0, p.i_s1, p.i_s2", "p.y_s0, p.y_s1, p.y_s2", &["embedding/shapes/f32"]),
    (EMBED, "id * p.t_s", "id * p.n", &["embedding/shapes/f32"]),
    (MOVEMENT, "next_row(ids, id, row + 1, rows,", "next_row(ids, id, row, rows,", &["scatter_rows/shapes/f32"]),
    (MOVEMENT, "row % p.r3 * s3", "row % p.r2 * s3", &["copy/layouts/f32"]),
    (SAMPLE, "need -= found[1];", "", &["top_k/largest/f32", "sample/options/f32"]),
    (SAMPLE, "key1 += 0xBB67AE85u", "key1 += 0x9E3779B9u", &["sample/options/f32"]),
    (SAMPLE, "token != 0xffffffff", "true", &["sample/options/f32"]),
    (NORM, "y = (y + float(*res)) * sum_scale", "y = y + float(*res) * sum_scale", &["norm_after/options/f32"]),
];

/// Bugs of attention, and of what fills its caches.
static ATTENTIONS: [RowMutant; 14] = [
    (ATTENTION, "end - long(p.window)", "end - long(p.window) - 1", &["attention/options/f32"]),
    (ATTENTION, "s.first + long(t) + 1", "s.first + long(t)", &["attention/options/f32"]),
    (ATTENTION, "at.inner = j % p.page;", "at.inner = j;", &["attention/caches/f32"]),
    (ATTENTION, "scale / (sum * scale + 1.0f)", "scale / (sum * scale)", &["attention/options/f32"]),
    (ATTENTION, "if (sum == 0.0f) return 0.0f;", "", &["attention/options/f32"]),
    (ATTENTION, "total[r] *= scale;", "", &["attention/kernels/f32"]),
    (
        ATTENTION,
        "total[r] = total[r] * mine + count * theirs;",
        "total[r] = total[r] + count;",
        &["attention/kernels/f32"],
    ),
    (
        ATTENTION,
        "      threadgroup_barrier(mem_flags::mem_threadgroup);\n    }\n\n    // One",
        "    }\n\n    // One",
        &["attention/kernels/f32"],
    ),
    (
        ATTENTION,
        "+ x * 8 + tx] = hidden ? -1.0f : weight;",
        "+ x * 8 + tx] = weight;",
        &["attention/options/f32", "attention/caches/f32", "attention/kernels/f32"],
    ),
    (ATTENTION, "if (j < high) {", "if (j < high && j > 0) {", &["attention/kernels/f32"]),
    (ATTENTION, "total += count * scale;", "total += count;", &["attention/parts/f32"]),
    (CACHE, "slot * p.d_t", "slot * p.c_t", &["kv_store/shapes/f32"]),
    (QKV, "sum * scales[first + lane]", "sum * scales[lane]", &["norm_qkv_rope/shapes/f32/f32"]),
    (
        QKV,
        "p.head_norm != 0, p.dims, position, frequencies, out, p, lane);\n      } else",
        "false, p.dims, position, frequencies, out, p, lane);\n      } else",
        &["norm_qkv_rope/shapes/f32/f32"],
    ),
];

/// A kernel's text, after what it takes from the prelude under another name, so that bugs can be planted in that as well.
fn text(file: &str) -> String {
    let read =
        |name| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tessl/kernels").join(name)).unwrap();
    let epilogue = read("prelude/epilogue.h").replace("#pragma once", "#define finish finish_of_the_kernel");
    let own = "#define turn turn_of_the_kernel\n#define rotate rotate_of_the_kernel";
    let rotation = read("prelude/turn.h").replace("#pragma once", own);
    match file {
        ATTENTION => smallest(&read(file)),
        ROPE => rotation + &read(file),
        _ if file.starts_with("metal/") => epilogue + &read(file),
        _ => read(file),
    }
}

/// Attention for f32 and small heads alone: all of its kernels take too long to compile, once for each bug.
fn smallest(text: &str) -> String {
    let mut parts = text.split("#if !defined(ONE_ENTRY) || defined(ENTRY_");
    let head = parts.next().unwrap().to_owned();
    let kept = |part: &&str| {
        ["attention_rows_f32_128", "attention_tiles_f32_128", "attention_combine_f32"]
            .iter()
            .any(|k| part.starts_with(k))
    };
    let kernels: Vec<String> =
        parts.filter(kept).map(|part| format!("#if !defined(ONE_ENTRY) || defined(ENTRY_{part}")).collect();
    assert_eq!(kernels.len(), 3, "the kernels of f32 with heads of up to 128 elements");
    head + &kernels.concat()
}

/// A few cases that together reach every line of a kernel.
fn norm_suite(target: Target) -> Result<(), String> {
    let base = norm::Case { pad: 8, groups: 3, vec16: true, weight_offset: 1.0, ..norm::PLAIN };
    for schedule in SCHEDULES {
        let nested = norm::Case { n: 1024, rows: [2, 3, 4], ..base };
        norm::check::<f16, f16>(target, &nested, schedule)?;
        norm::check::<bf16, f32>(target, &norm::Case { n: 8 * 1100 + 5, pad: 11, ..base }, schedule)?;
        norm::check::<f32, f32>(target, &norm::Case { n: 33, vec16: false, ..nested }, schedule)?;
        norm::check::<f32, f32>(target, &norm::Case { in_place: true, ..nested }, schedule)?;
        tiny_rows(target, schedule)?;
    }
    Ok(())
}

/// Rows so small that eps decides the result.
fn tiny_rows(target: Target, schedule: tessl_sim::Schedule) -> Result<(), String> {
    let case = norm::Case { n: 32, ..norm::PLAIN };
    let mut x = common::Buf::<f32>::filled(64, 0, |_| 1e-3);
    let mut w = common::Buf::<f32>::filled(32, 0, |_| 1.0);
    let mut y = common::Buf::<f32>::new(64, 0);
    norm::run(target, &case, &mut x, &mut w, Some(&mut y), schedule)?;
    let want = 1e-3 / (1e-6f32 + 1e-5).sqrt();
    common::ensure!((y.get(0) - want).abs() < 1e-6, "{} want {want}", y.get(0));
    Ok(())
}

fn gemm_suite(target: Target) -> Result<(), String> {
    let base = gemm::Case { m: 67, n: 70, k: 40, batch: 2, alpha: 2.0, ..gemm::PLAIN };
    for schedule in SCHEDULES {
        gemm::check::<f16, f16>(target, &base, schedule)?;
        gemm::check::<bf16, f32>(target, &gemm::Case { transposed: [true, false], bias: 1, ..base }, schedule)?;
        gemm::check::<f32, f32>(target, &gemm::Case { transposed: [false, true], bias: 2, ..base }, schedule)?;
        gemm::check::<f32, f32>(target, &gemm::Case { beta: -1.0, broadcast: true, k: 0, ..base }, schedule)?;
    }
    Ok(())
}

fn suite(file: &str, target: Target) -> Result<(), String> {
    if file == NORM { norm_suite(target) } else { gemm_suite(target) }
}

/// Compiles and runs one mutant, in a process of its own: a wrong address may end it.
fn outcome(set: &str, index: usize) -> Option<Caught> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_mutant", "--ignored", "--nocapture"])
        .env(SELECT, format!("{set} {index}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match child.try_wait().unwrap() {
            Some(status) if status.success() => return None,
            Some(status) if status.code() == Some(REJECTED) => return Some(Compiler),
            Some(_) => return Some(Run),
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                return Some(Run);
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The body of the child process of [`outcome`].
#[test]
#[ignore = "started by the tests below, one process per mutant"]
fn one_mutant() {
    let Ok(select) = std::env::var(SELECT) else { return };
    let (set, index) = select.split_once(' ').unwrap();
    let index: usize = index.parse().unwrap();
    if let Some(rows) = rows_named(set) {
        return one_row_mutant(rows[index]);
    }
    let (file, from, to, _) = set_named(set)[index];
    match Module::compile("mutant", &text(file).replacen(from, to, 1)) {
        Err(_) => std::process::exit(REJECTED),
        Ok(module) => suite(file, Target::Module(&module)).unwrap(),
    }
}

/// Runs the cases of a row mutant on a device that has its kernels.
fn one_row_mutant((file, from, to, names): RowMutant) {
    let Ok(module) = Module::compile("mutant", &text(file).replacen(from, to, 1)) else {
        std::process::exit(REJECTED);
    };
    let device = SimDevice::new("m2", Schedule::Random(20)).unwrap().with_module(module);
    let rt = GpuRuntime::with_backend(Arc::new(device), &RuntimeOptions::new()).unwrap();
    let suite = Suite::all().filter(|case| names.iter().any(|name| case.name.starts_with(name)));
    assert!(!suite.cases.is_empty(), "no case is called {names:?}");
    let report = suite.run(&Env::new(rt).budget(150_000), |_, _| {});
    assert!(report.failed.is_empty(), "{:?}", report.failed);
}

fn rows_named(name: &str) -> Option<&'static [RowMutant]> {
    match name {
        "rows" => Some(&ROWS),
        "more_rows" => Some(&MORE_ROWS),
        "attention" => Some(&ATTENTIONS),
        _ => None,
    }
}

fn set_named(name: &str) -> &'static [Mutant] {
    if name == "deep" { &DEEP } else { &QUICK }
}

fn assert_all_caught(set: &str) {
    let mut holes = Vec::new();
    for (index, (file, from, to, by)) in set_named(set).iter().enumerate() {
        assert!(text(file).contains(from), "{file} no longer contains {from:?}");
        let was = outcome(set, index);
        if was != Some(*by) {
            holes.push(format!("{file}: {from:?} -> {to:?}: expected {by:?}, was {was:?}"));
        }
    }
    assert!(holes.is_empty(), "{}", holes.join("\n"));
}

fn assert_rows_caught(set: &str) {
    let mut holes = Vec::new();
    for (index, (file, from, to, _)) in rows_named(set).unwrap().iter().enumerate() {
        assert!(text(file).contains(from), "{file} no longer contains {from:?}");
        let was = outcome(set, index);
        if was != Some(Run) {
            holes.push(format!("{file}: {from:?} -> {to:?}: was {was:?}"));
        }
    }
    assert!(holes.is_empty(), "{}", holes.join("\n"));
}

#[test]
fn the_suites_pass_on_the_kernels_as_they_are() {
    if !cannot_compile("the_suites_pass_on_the_kernels_as_they_are") {
        norm_suite(Target::Linked).unwrap();
        gemm_suite(Target::Linked).unwrap();
    }
}

#[test]
fn planted_bugs_are_caught() {
    if !cannot_compile("planted_bugs_are_caught") {
        assert_all_caught("quick");
    }
}

#[test]
#[ignore = "a minute of compilations"]
fn more_planted_bugs_are_caught() {
    if !cannot_compile("more_planted_bugs_are_caught") {
        assert_all_caught("deep");
    }
}

#[test]
fn planted_bugs_in_row_kernels_are_caught() {
    if !cannot_compile("planted_bugs_in_row_kernels_are_caught") {
        assert_rows_caught("rows");
    }
}

#[test]
#[ignore = "minutes of compilations"]
fn more_planted_bugs_in_row_kernels_are_caught() {
    if !cannot_compile("more_planted_bugs_in_row_kernels_are_caught") {
        assert_rows_caught("more_rows");
    }
}

#[test]
fn the_small_attention_passes_its_cases() {
    if cannot_compile("the_small_attention_passes_its_cases") {
        return;
    }
    let module = Module::compile("attention", &text(ATTENTION)).unwrap();
    let device = SimDevice::new("m2", Schedule::Random(20)).unwrap().with_module(module);
    let rt = GpuRuntime::with_backend(Arc::new(device), &RuntimeOptions::new()).unwrap();
    let report =
        Suite::all().filter(|c| c.name == "attention/kernels/f32").run(&Env::new(rt).budget(150_000), |_, _| {});
    assert_eq!((report.passed.len(), report.failed.len()), (1, 0), "{:?}", report.failed);
}

#[test]
#[ignore = "minutes of compilations"]
fn planted_bugs_in_attention_are_caught() {
    if !cannot_compile("planted_bugs_in_attention_are_caught") {
        assert_rows_caught("attention");
    }
}
