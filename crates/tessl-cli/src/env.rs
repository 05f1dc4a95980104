//! Every environment variable that tessl knows: the table of docs/devices.md and of `tessl doctor`.

use serde::Serialize;

/// One environment variable.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// What its value is.
    pub kind: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Who reads it.
    pub reader: &'static str,
}

const fn var(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    reader: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable { name, kind, default, meaning, reader }
}

const SIZE: &str = "bytes, with K, M or G";
const LIB: &str = "library";
const TESTS: &str = "tests";

/// All of them, in the order of the documentation.
pub const VARIABLES: &[Variable] = &[
    var(
        "TESSL_DEVICE",
        "cpu, cuda[:N], metal[:N], null:PROFILE or gpu",
        "best present",
        LIB,
        "device of GpuRuntime::new(); `gpu` fails where there is none",
    ),
    var("TESSL_THREADS", "number", "all", LIB, "threads of the CPU device, the caller included"),
    var(
        "TESSL_ISA",
        "scalar, neon, avx2, avx512 or amx",
        "best present",
        LIB,
        "newest instruction set the CPU device may use",
    ),
    var("TESSL_MEMORY_LIMIT", SIZE, "none", LIB, "bytes a runtime may hold, its cache included"),
    var("TESSL_CACHE_LIMIT", SIZE, "2G", LIB, "bytes of Cold memory kept for reuse"),
    var("TESSL_FLUSH_EVERY", "1 to 16384", "256", LIB, "commands packed before a stream submits them by itself"),
    var("TESSL_MID_COMMIT", "number", "0", LIB, "older name of TESSL_FLUSH_EVERY; 0 means its default"),
    var("TESSL_CUDA_LIB", "path", "system loader", LIB, "folder or file of the CUDA driver and NVRTC"),
    var(
        "TESSL_DEPENDENT_LAUNCH",
        "0 or 1",
        "1",
        LIB,
        "CUDA kernels start while those before them end (sm_90 and later)",
    ),
    var("TESSL_CACHE_DIR", "path", "user's cache folder", LIB, "where compiled kernels are kept"),
    var(
        "TESSL_LOG",
        "plan, a level, or target=level,..",
        "warn",
        "command line",
        "what is told on stderr; `plan` prints each chosen kernel, tile, grid, scratch and rule",
    ),
    var("TESSL_HAZARD_BARRIERS", "0", "0", LIB, "anything but 0 is refused: it would remove needed barriers"),
    var("TESSL_COARSE_BARRIERS", "0", "0", LIB, "anything but 0 is refused: it would remove needed barriers"),
    var("TESSL_GEMM_ACCUM", "any", "-", LIB, "no effect, warns: beta = 1 accumulates in the same kernel"),
    var("TESSL_GEMM_ACCUM_DX", "any", "-", LIB, "no effect, warns, as TESSL_GEMM_ACCUM"),
    var("TESSL_GEMM_INTERIOR", "any", "-", LIB, "no effect, warns, as TESSL_GEMM_ACCUM"),
    var("TESSL_DECODE_ICB", "0 or 1", "0", LIB, "graphs on Metal are kept in indirect command buffers"),
    var("TESSL_ICB_FREEZE_BINDS", "0 or 1", "0", LIB, "bindings are written into indirect commands"),
    var(
        "TESSL_ICB_RANGE_BATCH",
        "0 or 1",
        "0",
        LIB,
        "one call runs as many indirect commands as possible; needs frozen bindings",
    ),
    var("TESSL_REQUIRE", "devices, with commas", "none", TESTS, "turns the skips of these devices into failures"),
    var(
        "TESSL_SKIP_LOG",
        "file",
        "none",
        TESTS,
        "where skipped tests are appended, for the count of `cargo xtask test`",
    ),
    var("TESSL_BLESS", "1", "0", TESTS, "writes golden plans instead of comparing them"),
    var(
        "TESSL_WRITE_ARGS",
        "set",
        "not set",
        TESTS,
        "writes the generated header of argument blocks instead of comparing it",
    ),
    var("TESSL_MODELS", "folder", "target/models", TESTS, "where `cargo xtask models` puts the models that tests use"),
    var("TESSL_NVRTC", "file", "found", TESTS, "NVRTC for the compile check of CUDA kernels"),
    var("TESSL_SIM_CXX", "program", "clang++", TESTS, "compiler of the simulator"),
    var("TESSL_SIM_SANITIZE", "0 or 1", "0", TESTS, "builds the simulator with ASan and UBSan"),
    var(
        "TESSL_SIM_SEED",
        "number",
        "all schedules",
        TESTS,
        "schedule of the simulator: 0 forward, 1 backward, else a random order",
    ),
    var(
        "TESSL_SIM_CASES",
        "text",
        "all cases",
        TESTS,
        "the simulator runs the conformance cases whose name has this in it",
    ),
    var("TESSL_SIM_MUTANT", "number", "set by the tests", TESTS, "which planted bug a child process runs"),
    var(
        "TESSL_SIM_WRONG",
        "name",
        "set by the tests",
        TESTS,
        "which wrong kernel a child process runs under the sanitizer",
    ),
];

/// Those that are set in this process, with their values.
pub fn set() -> Vec<(&'static str, String)> {
    let value = |v: &Variable| std::env::var(v.name).ok().map(|value| (v.name, value));
    VARIABLES.iter().filter_map(value).collect()
}

/// The table of docs/devices.md.
pub fn markdown() -> String {
    let mut text =
        String::from("| variable | value | default | read by | meaning |\n| --- | --- | --- | --- | --- |\n");
    for v in VARIABLES {
        text.push_str(&format!("| `{}` | {} | {} | {} | {} |\n", v.name, v.kind, v.default, v.reader, v.meaning));
    }
    text
}
