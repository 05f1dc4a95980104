//! The steps of `cargo xtask test`. Which of them exist is read off the tree.

use crate::context::Context;
use crate::install::{self, Packages};
use crate::process::{self, Finished};
use crate::tally::Tally;
use crate::tree::{self, Tree};
use crate::{audit, models, tidy};
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Why a step did not succeed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It failed, after these tests.
    Failed(Tally, String),
    /// Something it needs cannot be had here.
    Skipped(String),
}

impl From<String> for Trouble {
    fn from(message: String) -> Self {
        Trouble::Failed(Tally::default(), message)
    }
}

pub(crate) type StepResult = Result<Tally, Trouble>;

pub(crate) struct Step {
    pub(crate) name: String,
    /// Left out by `--fast`.
    pub(crate) slow: bool,
    pub(crate) run: Box<dyn Fn(&Context) -> StepResult>,
}

/// The test that the simulator's own steps leave out.
const MUTANTS: &str = "more_planted_bugs_are_caught";

const TARGET: &str = "aarch64-apple-darwin";

/// Fetches the standard library for arm64 Linux.
const ARM64_STD: &str = "scripts/arm64_std.sh";

/// All steps that this tree has, cheap ones first.
pub(crate) fn all(tree: &Tree) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut add = |name: &str, slow: bool, run: Box<dyn Fn(&Context) -> StepResult>| {
        steps.push(Step { name: name.to_owned(), slow, run });
    };
    let sim = tree.has("crates/tessl-sim/build.rs");

    add("fmt", false, Box::new(|cx| cargo(cx, &["fmt", "--all", "--check"])));
    add("tidy", false, Box::new(|cx| Ok(tidy::run(cx).map(|()| Tally::default())?)));
    add("typos", false, Box::new(typos));
    let python: Vec<String> = tree.all().map(|f| f.0.to_owned()).filter(|f| f.ends_with(".py")).collect();
    if !python.is_empty() {
        add("python", false, Box::new(move |cx| parse_python(cx, &python)));
    }
    add("clippy", false, Box::new(move |cx| clippy(cx, sim)));
    let no_default =
        ["clippy", "--profile", "ci", "-p", "tessl", "--lib", "--no-default-features", "--", "-D", "warnings"];
    add("no-default", false, Box::new(move |cx| cargo(cx, &no_default)));
    add("doc", false, Box::new(doc));
    add("test", false, Box::new(move |cx| workspace_tests(cx, sim)));
    let examples = examples(tree);
    if !examples.is_empty() {
        add("examples", false, Box::new(move |cx| run_examples(cx, &examples)));
    }
    if tree.has("crates/tessl/src/dlpack.rs") {
        add("dlpack", false, Box::new(dlpack));
    }
    if audit::possible(tree) {
        add("audit", false, Box::new(|cx| Ok(audit::run(cx).map(|()| Tally::default())?)));
    }
    if sim {
        add("sim-0", false, Box::new(|cx| simulator(cx, "sim-0", 0)));
        add("sim-1", false, Box::new(|cx| simulator(cx, "sim-1", 1)));
        add("sim-random", false, Box::new(|cx| simulator(cx, "sim-random", random_seed())));
    }
    for nested in nested_workspaces(tree) {
        let name = format!("nested:{}", nested.rsplit('/').next().unwrap_or(&nested));
        let step = name.clone();
        add(&name, false, Box::new(move |cx| nested_tests(cx, &step, &nested)));
    }
    if tree.has("scripts/nvrtc_check.py") {
        add("nvrtc", false, Box::new(nvrtc));
    }
    if tree.below("crates", ".rs").any(|(_, text)| text.contains("cfg(loom)")) {
        add("loom", true, Box::new(loom));
    }
    if sim {
        add("asan", true, Box::new(sanitized));
    }
    if tree.text("crates/tessl-sim/tests/mutants.rs").is_some_and(|text| text.contains(MUTANTS)) {
        add("mutants", true, Box::new(mutants));
    }
    if tree.has(ARM64_STD) {
        add("neon", true, Box::new(neon));
    }
    add("darwin", true, Box::new(darwin));
    add("scratch", true, Box::new(scratch));
    steps
}

fn outcome(finished: &Finished) -> StepResult {
    let tally = Tally::default();
    if finished.ok { Ok(tally) } else { Err(Trouble::Failed(tally, "exit status".to_owned())) }
}

fn run(cx: &Context, command: &mut Command) -> StepResult {
    outcome(&process::stream(command, cx.deadline)?)
}

fn cargo(cx: &Context, args: &[&str]) -> StepResult {
    run(cx, cx.cargo().args(args))
}

/// Runs `cargo test` and counts; tests name what they skip in the file named by `TESSL_SKIP_LOG`.
fn counted(cx: &Context, step: &str, command: &mut Command) -> StepResult {
    let folder = cx.target.join("skips");
    let log = folder.join(step.replace(':', "-"));
    fs::create_dir_all(&folder).and_then(|()| fs::write(&log, "")).map_err(|e| format!("{}: {e}", log.display()))?;
    let finished = process::stream(command.env("TESSL_SKIP_LOG", &log), cx.deadline)?;
    let tally = Tally::parse(&finished.lines, &fs::read_to_string(&log).unwrap_or_default());
    if finished.ok { Ok(tally) } else { Err(Trouble::Failed(tally, "exit status".to_owned())) }
}

fn need(cx: &Context, packages: Packages) -> Result<(), Trouble> {
    install::apt(cx, packages).map_err(Trouble::Skipped)
}

fn typos(cx: &Context) -> StepResult {
    let bin = install::venv(cx).map_err(Trouble::Skipped)?;
    run(cx, &mut cx.command(&bin.join("typos").to_string_lossy()))
}

fn parse_python(cx: &Context, files: &[String]) -> StepResult {
    if !process::quiet("python3", &["--version"]) {
        return Err(Trouble::Skipped("needs python3".to_owned()));
    }
    let program = "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f, encoding='utf-8').read(), f)";
    run(cx, cx.command("python3").args(["-c", program]).args(files))
}

fn clippy(cx: &Context, sim: bool) -> StepResult {
    // The simulator's build script compiles C++ also for a check.
    if sim {
        need(cx, Packages::Clang)?;
    }
    cargo(cx, &["clippy", "--profile", "ci", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn doc(cx: &Context) -> StepResult {
    run(
        cx,
        cx.cargo().env("RUSTDOCFLAGS", "-D warnings").args([
            "doc",
            "--profile",
            "ci",
            "--workspace",
            "--lib",
            "--no-deps",
        ]),
    )
}

/// The one model that every full run uses; without it, the tests that want it count as skipped.
const MODEL: &str = "smollm2-135m-instruct-q4_1";

fn workspace_tests(cx: &Context, sim: bool) -> StepResult {
    if let Err(reason) = models::run(cx, &[MODEL.to_owned()]) {
        println!("{reason}");
    }
    let mut command = cx.cargo();
    command.args(["test", "--profile", "ci", "--workspace", "--no-fail-fast"]);
    // It has steps of its own, one for each schedule.
    if sim {
        command.args(["--exclude", "tessl-sim"]);
    }
    counted(cx, "test", &mut command)
}

/// Package and name of every example that is a program.
fn examples(tree: &Tree) -> Vec<(String, String)> {
    let mut found = BTreeSet::new();
    for (path, _) in tree.below("crates", ".rs").filter(|(_, text)| text.contains("fn main()")) {
        if let ["crates", package, "examples", rest @ ..] = path.split('/').collect::<Vec<_>>().as_slice() {
            match rest {
                [file] => drop(found.insert(((*package).to_owned(), tree::stem(file).to_owned()))),
                [folder, "main.rs"] => drop(found.insert(((*package).to_owned(), (*folder).to_owned()))),
                _ => {}
            }
        }
    }
    found.into_iter().collect()
}

fn run_examples(cx: &Context, examples: &[(String, String)]) -> StepResult {
    let mut failed = Vec::new();
    for (package, name) in examples {
        let mut command = cx.cargo();
        command
            .args(["run", "--quiet", "--profile", "ci", "-p", package, "--example", name])
            .env("TESSL_DEVICE", "cpu");
        if !process::stream(&mut command, cx.deadline)?.ok {
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() { Ok(Tally::default()) } else { Err(failed.join(", ").into()) }
}

/// The optional feature: its lints and tests, and memory shared with NumPy.
fn dlpack(cx: &Context) -> StepResult {
    let features = ["--profile", "ci", "-p", "tessl", "--features", "dlpack"];
    run(cx, cx.cargo().arg("clippy").args(features).args(["--all-targets", "--", "-D", "warnings"]))?;
    let tally = counted(cx, "dlpack", cx.cargo().arg("test").args(features).args(["--test", "dlpack"]))?;
    run(cx, cx.cargo().arg("test").args(features).args(["--doc", "dlpack"]))?;
    let bin = install::venv(cx).map_err(Trouble::Skipped)?;
    let library = format!("{}dlpack{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    run(cx, cx.cargo().arg("build").args(features).args(["--example", "dlpack"]))?;
    let mut python = cx.command(&bin.join("python").to_string_lossy());
    run(cx, python.arg("crates/tessl/examples/dlpack.py").arg(cx.target.join("ci/examples").join(library)))?;
    Ok(tally)
}

/// The seed of the third schedule: new every time, or the one given, to see a failure again.
fn random_seed() -> u64 {
    let given = std::env::var("TESSL_SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        let mut hasher = DefaultHasher::new();
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().hash(&mut hasher);
        2 + hasher.finish() % 1_000_000_000
    })
}

fn simulator(cx: &Context, step: &str, seed: u64) -> StepResult {
    need(cx, Packages::Clang)?;
    println!("schedule seed {seed}; again with: TESSL_SIM_SEED={seed} cargo xtask test sim-random");
    let mut command = cx.cargo();
    command.args(["test", "--profile", "ci", "-p", "tessl-sim", "--no-fail-fast"]);
    counted(cx, step, command.env("TESSL_SIM_SEED", seed.to_string()))
}

/// A build of its own, so that the two kinds of simulator do not replace each other at every run.
fn sanitized(cx: &Context) -> StepResult {
    need(cx, Packages::Sanitizer)?;
    let mut command = cx.cargo();
    command.args(["test", "--profile", "ci", "-p", "tessl-sim", "--no-fail-fast"]);
    counted(cx, "asan", command.env("TESSL_SIM_SANITIZE", "1").env("CARGO_TARGET_DIR", cx.target.join("asan")))
}

/// The planted bugs that are left out of a plain `cargo test` because each is a compilation of its own.
fn mutants(cx: &Context) -> StepResult {
    need(cx, Packages::Clang)?;
    let mut command = cx.cargo();
    command.args([
        "test",
        "--profile",
        "ci",
        "-p",
        "tessl-sim",
        "--test",
        "mutants",
        MUTANTS,
        "--",
        "--ignored",
        "--exact",
    ]);
    counted(cx, "mutants", &mut command)
}

/// Workspaces inside this one, which have their own lock file (fuzz targets are not tests).
fn nested_workspaces(tree: &Tree) -> Vec<String> {
    let manifests = tree.all().filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)));
    let nested = manifests.filter(|(_, text)| text.lines().any(|line| line.trim() == "[workspace]"));
    nested.map(|(folder, _)| folder.to_owned()).filter(|f| !f.split('/').any(|part| part == "fuzz")).collect()
}

/// Tests of a nested workspace, after its `prepare.sh` where it has one.
fn nested_tests(cx: &Context, step: &str, folder: &str) -> StepResult {
    need(cx, Packages::Clang)?;
    let folder = cx.root.join(folder);
    let target = cx.target.join("nested");
    if folder.join("prepare.sh").exists() {
        let mut prepare = cx.command("sh");
        run(cx, prepare.arg("prepare.sh").current_dir(&folder).env("CARGO_TARGET_DIR", &target))?;
    }
    let mut command = cx.cargo();
    command.args(["test", "--profile", "ci", "--workspace", "--no-fail-fast"]);
    counted(cx, step, command.current_dir(&folder).env("CARGO_TARGET_DIR", &target))
}

fn loom(cx: &Context) -> StepResult {
    let mut command = cx.cargo();
    command.args(["test", "--profile", "ci", "-p", "tessl", "--lib", "loom"]);
    counted(cx, "loom", command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", cx.target.join("loom")))
}

/// Compiles kernels for NVIDIA GPUs; what compiled once with the same text is not compiled again.
fn nvrtc(cx: &Context) -> StepResult {
    let bin = install::venv(cx).map_err(Trouble::Skipped)?;
    let tree = Tree::load(cx)?;
    let cache = cx.target.join("nvrtc-cache");
    fs::create_dir_all(&cache).map_err(|e| e.to_string())?;
    let mut failed = Vec::new();
    for NvrtcJob { arch, files, sample } in nvrtc_jobs(&tree) {
        let depth = if sample { "sample" } else { "all" };
        let key = |file: &str| {
            let hash = nvrtc_hash(&tree, file);
            cache.join(format!("{}-{arch}-{depth}-{hash:016x}", tree::stem(file)))
        };
        let new: Vec<_> = files.iter().filter(|file| !key(file).exists()).collect();
        println!("{arch} ({depth}): {} files, {} unchanged", files.len(), files.len() - new.len());
        if new.is_empty() {
            continue;
        }
        let mut command = cx.command(&bin.join("python").to_string_lossy());
        command.args(["scripts/nvrtc_check.py", "--arch", arch]).args(sample.then_some("--sample")).args(&new);
        if process::stream(&mut command, cx.deadline)?.ok {
            for file in new {
                fs::write(key(file), "").map_err(|e| e.to_string())?;
            }
        } else {
            failed.push(arch);
        }
    }
    if failed.is_empty() { Ok(Tally::default()) } else { Err(failed.join(", ").into()) }
}

const KERNELS: &str = "crates/tessl/kernels";

/// Files to compile for one architecture.
#[derive(Debug, PartialEq)]
struct NvrtcJob {
    arch: &'static str,
    files: Vec<String>,
    /// One variant of each is enough.
    sample: bool,
}

/// Every variant of every kernel for the architecture we tune for. For sm_80 every variant of what is written for CUDA, and
/// one of each shared kernel; for two more one of one file of each family.
fn nvrtc_jobs(tree: &Tree) -> Vec<NvrtcJob> {
    let folders = ["cuda", "simt"].map(|folder| format!("{KERNELS}/{folder}"));
    let files: Vec<(&str, &str)> = tree.below(&folders[0], ".cu").chain(tree.below(&folders[1], ".metal")).collect();
    let portable = |files: &[(&str, &str)]| -> Vec<String> {
        let bound = |text: &str| text.lines().any(|line| line.starts_with("// arch:"));
        files.iter().filter(|(_, text)| !bound(text)).map(|(path, _)| (*path).to_owned()).collect()
    };
    let mut families = BTreeSet::new();
    let mut family: Vec<String> = portable(&files);
    family.retain(|path| families.insert(tree::stem(path).split('_').next().unwrap_or_default().to_owned()));
    let (cuda, shared): (Vec<_>, Vec<_>) = files.iter().copied().partition(|(path, _)| path.ends_with(".cu"));
    let every = files.iter().map(|(path, _)| (*path).to_owned()).collect();
    let job = |arch, files, sample| NvrtcJob { arch, files, sample };
    vec![
        job("sm_90a", every, false),
        job("sm_80", portable(&cuda), false),
        job("sm_80", portable(&shared), true),
        job("sm_89", family.clone(), true),
        job("sm_100", family, true),
    ]
}

/// Of all that a compilation reads.
fn nvrtc_hash(tree: &Tree, file: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let prelude = format!("{KERNELS}/prelude");
    let cuda = format!("{KERNELS}/cuda");
    tree.text(file).hash(&mut hasher);
    tree.text("scripts/nvrtc_check.py").hash(&mut hasher);
    tree.text("xtask/requirements.txt").hash(&mut hasher);
    tree.below(&prelude, ".h").chain(tree.below(&cuda, "h")).for_each(|header| header.hash(&mut hasher));
    hasher.finish()
}

/// Type-checks the Metal host code on its real target: no Apple machine, no linker.
fn darwin(cx: &Context) -> StepResult {
    if std::env::consts::OS != "linux" {
        return Err(Trouble::Skipped("made for Linux; on macOS the other steps compile this code".to_owned()));
    }
    need(cx, Packages::Darwin)?;
    let sysroot = cx.target.join("darwin-sysroot");
    run(cx, cx.command("sh").arg("scripts/mksysroot.sh").arg(&sysroot).arg(TARGET))?;
    let flags = format!("--sysroot {}", sysroot.display());
    let on_target = |mut command: Command, task: &str| {
        command.args([task, "--package", "tessl", "--all-targets", "--target", TARGET]);
        command.env("RUSTC", "/usr/bin/rustc").env("CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS", &flags);
        command.env("CARGO_TARGET_DIR", cx.target.join("darwin"));
        command
    };
    run(cx, &mut on_target(cx.cargo(), "check"))?;
    run(cx, on_target(cx.command("/usr/bin/cargo-clippy"), "clippy").args(["--", "-D", "warnings"]))
}

/// The CPU device of arm64, its kernels on NEON, under qemu.
fn neon(cx: &Context) -> StepResult {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(Trouble::Skipped(
            "made for Linux on x86-64; on arm64 the other steps run these kernels".to_owned(),
        ));
    }
    need(cx, Packages::Arm64)?;
    let sysroot = cx.target.join("arm64-sysroot");
    if !process::stream(cx.command("sh").arg(ARM64_STD).arg(&sysroot), cx.deadline)?.ok {
        return Err(Trouble::Skipped(
            "the archive has no standard library of rustc-web's version for arm64".to_owned(),
        ));
    }
    let target = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU";
    let mut command = cx.cargo();
    command.args(["test", "--profile", "ci", "-p", "tessl", "--lib", "--target", "aarch64-unknown-linux-gnu"]);
    command.args(["--", "device::cpu"]);
    command
        .env("RUSTC", "/usr/bin/rustc")
        .env(format!("{target}_RUSTFLAGS"), format!("--sysroot {}", sysroot.display()));
    command.env(format!("{target}_LINKER"), "aarch64-linux-gnu-gcc");
    command.env(format!("{target}_RUNNER"), "qemu-aarch64 -L /usr/aarch64-linux-gnu");
    counted(cx, "neon", command.env("CARGO_TARGET_DIR", cx.target.join("arm64")))
}

/// Time from `cargo add` to the first check, in a crate of its own and an empty target folder.
fn scratch(cx: &Context) -> StepResult {
    let folder = cx.target.join("scratch");
    let manifest = format!(
        "[package]\nname = \"scratch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\ntessl = {{ path = '{}' }}\n\n[workspace]\n",
        cx.root.join("crates/tessl").display()
    );
    let prepare = || -> std::io::Result<()> {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join("src"))?;
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::write(folder.join("src/main.rs"), "use tessl as _;\nfn main() {}\n")?;
        fs::copy(cx.root.join("Cargo.lock"), folder.join("Cargo.lock")).map(drop)
    };
    prepare().map_err(|e| format!("{}: {e}", folder.display()))?;
    let start = Instant::now();
    let result = run(cx, cx.cargo().arg("check").current_dir(&folder).env("CARGO_TARGET_DIR", folder.join("target")));
    println!("a crate that depends on tessl: {:.0} s from nothing (aim: under 60 s)", start.elapsed().as_secs_f64());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tree: &Tree) -> Vec<String> {
        all(tree).into_iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_follow_the_tree() {
        let bare = names(&Tree::default());
        assert!(bare.iter().any(|n| n == "test") && !bare.iter().any(|n| n.starts_with("sim")));
        let tree = Tree::of(&[
            ("crates/tessl-sim/build.rs", ""),
            ("crates/tessl-sim/mock/Cargo.toml", "[workspace]\n"),
            ("crates/tessl/fuzz/Cargo.toml", "[workspace]\n"),
            ("Cargo.toml", "[workspace]\n"),
            ("scripts/nvrtc_check.py", ""),
            ("crates/tessl/examples/gemm.rs", "fn main() {}"),
        ]);
        let full = names(&tree);
        for name in ["sim-0", "sim-random", "asan", "nested:mock", "nvrtc", "examples", "python"] {
            assert!(full.iter().any(|n| n == name), "{name} in {full:?}");
        }
        assert!(!full.iter().any(|n| n == "nested:fuzz"));
    }

    #[test]
    fn examples_are_files_and_folders() {
        let tree = Tree::of(&[
            ("crates/tessl/examples/gemm.rs", "fn main() {}"),
            ("crates/tessl/examples/library.rs", "extern fn loaded_by_python() {}"),
            ("crates/tessl/examples/chat/main.rs", "fn main() {}"),
            ("crates/tessl/examples/chat/model.rs", ""),
        ]);
        let found = examples(&tree);
        assert_eq!(found.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["chat", "gemm"]);
    }

    #[test]
    fn one_portable_file_stands_for_its_family() {
        let tree = Tree::of(&[
            ("crates/tessl/kernels/cuda/gemm_mma.cu", ""),
            ("crates/tessl/kernels/cuda/gemm_wgmma.cu", "// arch: sm_90a\n"),
            ("crates/tessl/kernels/simt/gemm_small.metal", ""),
            ("crates/tessl/kernels/simt/norm.metal", ""),
        ]);
        let jobs = nvrtc_jobs(&tree);
        assert_eq!((jobs[0].arch, jobs[0].files.len(), jobs[0].sample), ("sm_90a", 4, false));
        // What is written for sm_90a alone is compiled for nothing else.
        assert_eq!(jobs[1].files, ["crates/tessl/kernels/cuda/gemm_mma.cu"]);
        assert_eq!((jobs[2].files.len(), jobs[2].sample), (2, true));
        let family = ["crates/tessl/kernels/cuda/gemm_mma.cu", "crates/tessl/kernels/simt/norm.metal"];
        let family = family.map(str::to_owned).to_vec();
        assert_eq!(jobs[4], NvrtcJob { arch: "sm_100", files: family, sample: true });
    }

    #[test]
    fn a_changed_header_changes_every_key() {
        let file = "crates/tessl/kernels/simt/norm.metal";
        let tree = |header| Tree::of(&[(file, "k"), ("crates/tessl/kernels/prelude/cuda.h", header)]);
        assert_eq!(nvrtc_hash(&tree("a"), file), nvrtc_hash(&tree("a"), file));
        assert_ne!(nvrtc_hash(&tree("a"), file), nvrtc_hash(&tree("b"), file));
    }
}
