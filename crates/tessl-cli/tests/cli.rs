//! The `tessl` command as a user meets it: a process, files, one-line errors, exit codes.

mod files;
mod process;

use files::{Folder, npy_f32, npy_header, safetensors};
use process::{bad, command, good, json, tessl, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tessl_cli::format::{self, Source, Spec};

/// Values and extents of a written file.
fn read(path: &str) -> (Vec<usize>, Vec<f32>) {
    let rt = tessl::GpuRuntime::with_device(&tessl::Device::cpu()).unwrap();
    let mut source = Source::open(&path.parse::<Spec>().unwrap()).unwrap();
    let tensor = format::load(&rt, &mut source, tessl::DType::F32, &tessl_cli::ui::Progress::new()).unwrap();
    (source.shape, tensor.read().unwrap())
}

#[test]
fn gemm_on_npy_files() {
    let dir = Folder::new("gemm_npy");
    let a = dir.write("a.npy", &npy_f32(&[2, 3], &[1., 2., 3., 4., 5., 6.]));
    let b = dir.write("b.npy", &npy_f32(&[3, 2], &[1., 0., 0., 1., 1., 1.]));
    let c = dir.path("c.npy");
    let told = good(&["gemm", &a, &b, "-o", &c, "--check"]);
    assert!(told.contains("agree with f64"), "{told}");
    assert_eq!(read(&c), (vec![2, 2], vec![4., 5., 10., 11.]));

    // An existing file is kept unless --force is given.
    let line = bad(2, &["gemm", &a, &b, "-o", &c]);
    assert!(line.contains("--force"), "{line}");
    let bias = dir.write("bias.npy", &npy_f32(&[2], &[-20., 100.]));
    let old = dir.write("old.npy", &npy_f32(&[2, 2], &[1., 1., 1., 1.]));
    let rest = ["--alpha", "2", "--beta", "0.5", "--c-in", &old, "--bias", &bias, "--activation", "relu"];
    good(&[&["gemm", &a, &b, "-o", &c, "--force", "--check"][..], &rest].concat());
    assert_eq!(read(&c).1, [0., 110.5, 0.5, 122.5]);
    assert_eq!(dir.names().iter().filter(|n| n.ends_with(".part")).count(), 0);
}

#[test]
fn gemm_layouts_and_orders() {
    let dir = Folder::new("gemm_layouts");
    let (a, b) = ([1f32, 2., 3., 4., 5., 6.], [7f32, 8., 9., 10., 11., 12.]);
    let want = vec![58., 64., 139., 154.];
    let c_order = dir.write("a.npy", &npy_f32(&[2, 3], &a));
    let transposed = dir.write("at.npy", &npy_f32(&[3, 2], &[1., 4., 2., 5., 3., 6.]));
    // The same bytes as `at`, told as Fortran order of [2, 3].
    let mut fortran = npy_header("<f4", true, "(2, 3)");
    fortran.extend([1f32, 4., 2., 5., 3., 6.].iter().flat_map(|x| x.to_le_bytes()));
    let fortran = dir.write("af.npy", &fortran);
    let mut big = npy_header(">f4", false, "(2, 3)");
    big.extend(a.iter().flat_map(|x| x.to_be_bytes()));
    let big = dir.write("abig.npy", &big);
    let b_file = dir.write("b.npy", &npy_f32(&[3, 2], &b));
    let bt = dir.write("bt.npy", &npy_f32(&[2, 3], &[7., 9., 11., 8., 10., 12.]));
    let c = dir.path("c.npy");
    for arguments in [
        vec![c_order.as_str(), &b_file],
        vec![&transposed, &b_file, "--ta"],
        vec![&fortran, &b_file],
        vec![&big, &b_file],
        vec![&c_order, &bt, "--tb"],
        vec![&c_order, &b_file, "--backend", "simdgroup"],
        vec![&c_order, &b_file, "--dtype", "f16", "--out-dtype", "f32"],
        vec![&c_order, &b_file, "--dtype", "bf16"],
    ] {
        good(&[&["gemm"][..], &arguments, &["-o", &c, "--force", "--check"]].concat());
        assert_eq!(read(&c), (vec![2, 2], want.clone()), "{arguments:?}");
    }
    // A batch of A with one B.
    let batch = dir.write("batch.npy", &npy_f32(&[2, 1, 3], &a));
    good(&["gemm", &batch, &b_file, "-o", &c, "--force", "--check"]);
    assert_eq!(read(&c), (vec![2, 1, 2], want));
}

#[test]
fn gemm_on_safetensors() {
    let dir = Folder::new("gemm_safetensors");
    let bf16 = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect() };
    let f16 = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect() };
    let weights = safetensors(&[
        ("x", "BF16", &[1, 2], bf16(&[1., 2.])),
        ("w", "BF16", &[2, 2], bf16(&[3., 4., 5., 6.])),
        ("h", "F16", &[2, 2], f16(&[1., 0., 0., 1.])),
        ("ids", "I64", &[1], vec![0; 8]),
    ]);
    let file = dir.write("m.safetensors", &weights);
    let (x, w, h) = (format!("{file}:x"), format!("{file}:w"), format!("{file}:h"));
    let out = dir.path("y.safetensors");
    good(&["gemm", &x, &w, "-o", &format!("{out}:y"), "--check"]);
    assert_eq!(read(&format!("{out}:y")), (vec![1, 2], vec![13., 16.]));
    let npy = dir.path("y.npy");
    good(&["gemm", &x, &w, "-o", &npy]);
    assert_eq!(read(&npy).1, [13., 16.]);

    for (arguments, hint) in [
        (vec![file.as_str(), &w], "choose one"),
        (vec![&format!("{file}:nothing"), &w], "no tensor `nothing`"),
        (vec![&format!("{file}:ids"), &w], "I64"),
        (vec![&x, &h], "--dtype"),
    ] {
        let line = bad(2, &[&["gemm"][..], &arguments, &["-o", &npy, "--force"]].concat());
        assert!(line.contains(hint), "{line}");
    }
    good(&["gemm", &x, &h, "-o", &npy, "--force", "--dtype", "f32"]);
    assert_eq!(read(&npy).1, [1., 2.]);
}

#[test]
fn gemm_refuses_bad_calls() {
    let dir = Folder::new("gemm_bad");
    let a = dir.write("a.npy", &npy_f32(&[2, 3], &[0.; 6]));
    let b = dir.write("b.npy", &npy_f32(&[4, 3], &[0.; 12]));
    let v = dir.write("v.npy", &npy_f32(&[3], &[0.; 3]));
    let c = dir.path("c.npy");
    let line = bad(2, &["gemm", &a, &b, "-o", &c]);
    assert!(line.contains("`b`") && line.contains("b.t()"), "{line}");
    for (arguments, hint) in [
        (vec!["gemm", &a, &v, "-o", &c], "two axes"),
        (vec!["gemm", &a, &b, "-o", &c, "--tb", "--bias", &v], "bias"),
        (vec!["gemm", &a, &b, "-o", &c, "--tb", "--beta", "1", "--c-in", &a], "c_in"),
        (vec!["gemm", &a, &b, "-o", &c, "--tb", "--beta", "1"], "--c-in"),
        (vec!["gemm", &a, &b, "-o", &c, "--tb", "--alpha", "inf"], "alpha"),
        (vec!["gemm", &a, &b, "-o", &c, "--tb", "--out-dtype", "i32"], "i32"),
        (vec!["gemm", &a, &b, "-o", &c, "--tb", "--dtype", "bf16", "--out-dtype", "bf16"], "safetensors"),
        (vec!["gemm", &a, &b, "-o", &c, "--dtype", "i8"], "i8"),
        (vec!["gemm", &a, &b, "-o", &c, "--activation", "swish"], "gelu-tanh"),
        (vec!["gemm", &a, &b, "-o", &c, "--device", "tpu"], "cuda"),
        (vec!["gemm", &a, &b, "-o", "c.txt"], ".npy"),
        (vec!["gemm", &a, &b], "--output"),
        (vec!["gemm", &a, &b, "-o", &dir.path("none/c.npy"), "--tb"], "cannot be written"),
        (vec!["gemm", &dir.path("none.npy"), &b, "-o", &c], "none.npy"),
        (vec!["gemm", &dir.0.display().to_string(), &b, "-o", &c], ".npy"),
    ] {
        let line = bad(2, &arguments);
        let wanted = if hint == "c_in" { "A B is" } else { hint };
        assert!(line.contains(wanted), "{arguments:?}: {line}");
    }
    assert!(!Path::new(&c).exists());
    assert!(dir.names().iter().all(|n| !n.ends_with(".part")));
}

#[test]
fn gemm_refuses_damaged_files() {
    let dir = Folder::new("gemm_damaged");
    let b = dir.write("b.npy", &npy_f32(&[2, 2], &[0.; 4]));
    let whole = npy_f32(&[2, 2], &[0.; 4]);
    let claim = |descr: &str, shape: &str| npy_header(descr, false, shape);
    let st = |header: &str| [(header.len() as u64).to_le_bytes().to_vec(), header.as_bytes().to_vec()].concat();
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("empty.npy".into(), vec![]),
        ("foreign.npy".into(), b"PK\x03\x04 something else entirely".to_vec()),
        ("v9.npy".into(), [&b"\x93NUMPY\x09\x00"[..], &[0; 64]].concat()),
        ("header4g.npy".into(), [&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..], &[b' '; 64]].concat()),
        ("huge.npy".into(), claim("<f4", "(1000000000000, 1000000000000)")),
        ("overflow.npy".into(), claim("<f4", "(18446744073709551615, 2)")),
        ("digits.npy".into(), claim("<f4", "(99999999999999999999999, 2)")),
        ("negative.npy".into(), claim("<f4", "(-2, 2)")),
        ("double.npy".into(), [claim("<f8", "(2, 2)"), vec![0; 32]].concat()),
        ("ints.npy".into(), [claim("<i4", "(2, 2)"), vec![0; 16]].concat()),
        ("object.npy".into(), [claim("|O", "(2, 2)"), vec![0; 16]].concat()),
        ("brackets.npy".into(), [npy_header("<f4", false, &"(".repeat(20_000))].concat()),
        ("trailing.npy".into(), [whole.clone(), vec![0; 3]].concat()),
        ("empty.safetensors".into(), vec![]),
        ("foreign.safetensors".into(), b"not a tensor file at all".to_vec()),
        ("header.safetensors".into(), u64::MAX.to_le_bytes().to_vec()),
        ("json.safetensors".into(), st("{\"x\":")),
        ("nested.safetensors".into(), st(&"[".repeat(100_000))),
        ("claim.safetensors".into(), st(r#"{"x":{"dtype":"F32","shape":[99999999999,9],"data_offsets":[0,4]}}"#)),
        ("ends.safetensors".into(), st(r#"{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#)),
        ("none.safetensors".into(), st("{}")),
        ("overlap.safetensors".into(), st(r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#)),
    ];
    cases.extend((0..whole.len()).step_by(7).map(|n| (format!("cut{n}.npy"), whole[..n].to_vec())));
    for (name, bytes) in cases {
        let file = dir.write(&name, &bytes);
        let line = bad(2, &["gemm", &file, &b, "-o", &dir.path("c.npy")]);
        assert!(line.contains(&name), "{line}");
    }
}

#[test]
fn output_is_for_programs_when_asked() {
    let dir = Folder::new("json");
    let a = dir.write("a.npy", &npy_f32(&[2, 2], &[1.; 4]));
    let told = json(&["gemm", &a, &a, "-o", &dir.path("c.npy"), "--json", "--check"]);
    assert_eq!((&told["shape"], &told["device"]), (&serde_json::json!([2, 2]), &"cpu".into()));
    assert!(told["plan"]["reason"].is_string() && told["check"]["samples"] == 4);
    let devices = json(&["devices", "--json"]);
    assert!(devices["devices"].as_array().unwrap().iter().any(|d| d["id"] == "cpu" && d["missing"].is_null()));
    let bench =
        ["bench", "gemm", "--shapes", "64x64x64", "--iters", "3", "--warmup", "1", "--mode", "solo,batched,graph"];
    let bench = json(&[&bench[..], &["--json"]].concat());
    assert_eq!((&bench["schema"], bench["rows"].as_array().unwrap().len()), (&1.into(), 6));
    for key in [
        "suite",
        "name",
        "m",
        "dtype",
        "out",
        "layout",
        "precision",
        "mode",
        "backend",
        "packed",
        "lane",
        "threads",
        "median_us",
        "min_us",
        "max_us",
        "tflops",
        "gbps",
        "percent_of_limit",
        "ratio",
    ] {
        assert!(bench["rows"][0].get(key).is_some(), "{key}");
    }
    let verify = json(&["verify", "--op", "tensor", "--json"]);
    assert!(verify["failed"].as_array().unwrap().is_empty() && !verify["passed"].as_array().unwrap().is_empty());
}

#[test]
fn plans_for_devices_that_are_not_here() {
    let plan = json(&["plan", "gemm", "4096", "4096", "4096", "--dtype", "bf16", "--profile", "m2", "--json"]);
    assert_eq!((&plan["profile"]["kind"], &plan["desc"]["gemm"]["m"]), (&"metal".into(), &4096.into()));
    assert!(good(&["plan", "gemm", "64", "64", "64", "--layout", "nt", "--device", "cpu"]).contains("reason"));
    assert!(good(&["plan", "rms_norm", "512", "4096", "--dtype", "f16", "--profile", "m5-pro"]).contains("norm"));
    assert!(good(&["plan", "--profiles"]).contains("m5-pro"));
    let tiles = json(&["plan", "--tiles", "--json"]);
    let rows = tiles.as_array().unwrap();
    assert!(
        rows.iter().any(|r| r["device"] == "metal") && rows.iter().all(|r| r["tile"].as_array().unwrap().len() == 3)
    );
    for (arguments, hint) in [
        (vec!["plan"], "plan gemm"),
        (vec!["plan", "gemm", "1", "2"], "<K>"),
        (vec!["plan", "gemm", "1", "2", "-3"], "-3"),
        (vec!["plan", "gemm", "1", "2", "3", "--profile", "h9000"], "m5-pro"),
        (vec!["plan", "gemm", "1", "2", "3", "--profile", "m2", "--dtype", "i8"], "i8"),
        (vec!["plan", "gemm", "1", "2", "3", "--alpha", "NaN"], "alpha"),
    ] {
        assert!(bad(2, &arguments).contains(hint), "{arguments:?}");
    }
}

#[test]
fn exit_codes_and_streams() {
    assert!(good(&["--help"]).contains("Exit codes: 0"));
    assert!(good(&["--version"]).starts_with("tessl "));
    assert!(bad(2, &["frobnicate"]).contains("frobnicate"));
    assert!(bad(3, &["verify", "--device", "metal:7"]).contains("metal:7"));
    assert!(bad(2, &["verify", "--op", "conv"]).contains("gemm"));
    assert!(bad(2, &["bench", "gemm", "--shapes", "1x2"]).contains("MxNxK"));
    for (name, value) in [
        ("BENCH_ITERS", "0"),
        ("BENCH_WARMUP", "many"),
        ("BENCH_SHAPES", ","),
        ("TESSL_LOG", "a=loud"),
        ("TESSL_DEVICE", "tpu"),
        ("TESSL_THREADS", "-1"),
    ] {
        let output = command(&["bench", "gemm"]).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(name), "{}", text(&output.stderr));
    }
    // A GPU that was asked for and is not there is never replaced by the CPU.
    for arguments in [&["demo"][..], &["doctor"], &["bench", "gemm"]] {
        let output = command(arguments).env("TESSL_DEVICE", "metal:7").output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(matches!(output.status.code(), Some(1 | 3)), "{arguments:?}: {out}{err}");
        assert!(format!("{out}{err}").contains("metal:7") && !out.contains("Speed on"), "{arguments:?}: {out}{err}");
    }
    let gpu_lane = tessl(&["bench", "gemm", "--lane", "tessl-cuda", "--device", "cpu"]);
    assert_eq!(gpu_lane.status.code(), Some(3), "{}", text(&gpu_lane.stderr));
}

#[test]
fn colour_and_progress_stay_out_of_pipes() {
    for colour in [None, Some("NO_COLOR")] {
        let mut run = command(&["verify", "--op", "tensor"]);
        run.env_remove("CLICOLOR_FORCE").envs(colour.map(|name| (name, "1")));
        let output = run.output().unwrap();
        assert!(output.status.success());
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        assert!(!output.stdout.contains(&0x1b));
    }
    let forced = command(&["verify", "--op", "tensor"]).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(forced.stdout.contains(&0x1b));
}

#[test]
fn the_log_tells_the_plan() {
    let dir = Folder::new("log");
    let a = dir.write("a.npy", &npy_f32(&[2, 2], &[1.; 4]));
    let run = command(&["gemm", &a, &a, "-o", &dir.path("c.npy")]).env("TESSL_LOG", "plan").output().unwrap();
    let log = text(&run.stderr);
    for key in ["kernel=", "tile=", "grid=", "scratch=", "reason="] {
        assert!(log.contains(key), "{key}: {log}");
    }
}

#[test]
fn doctor_and_serve() {
    let report = json(&["doctor", "--json", "--device", "cpu"]);
    assert!(report["checked"][0]["checks"].as_array().unwrap().iter().all(|c| c["passed"] == true), "{report}");
    assert!(report["environment"].as_array().unwrap().iter().any(|v| v[0] == "TESSL_DEVICE"));

    use std::io::Write;
    let mut serve = Command::new(env!("CARGO_BIN_EXE_bench_gemm_sweep"));
    serve.args(["--device", "cpu", "serve"]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = serve.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"64x64x64 bf16 3\nnonsense\n64x64x64 bf16 3 f32 NT graph\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let lines: Vec<Value> = text(&output.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0]["device"].is_string() && lines[1]["us"].as_f64().unwrap() > 0.0);
    assert!(lines[2]["error"].is_string() && lines[3]["layout"] == "NT");
}

#[test]
fn the_table_of_variables_is_the_documented_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/devices.md");
    let documented = std::fs::read_to_string(path).unwrap();
    assert!(documented.contains(&tessl_cli::env::markdown()), "update docs/devices.md from `tessl env`");
}
