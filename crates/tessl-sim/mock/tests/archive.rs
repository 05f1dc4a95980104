//! Pipelines on disk: found by the next process, rebuilt when damaged or foreign, made side by side.

mod common;

use common::{mock, scenario};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tessl::device::metal::Options;
use tessl::plan::Desc;
use tessl::{Activation, DType, Gemm, GpuRuntime, RuntimeOptions};
use tessl_metal_mock::{Config, Counts, Mock};
use tessl_sim::Schedule;

/// A fresh folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Folder(std::env::temp_dir().join(format!("tessl-archive-test-{}-{name}", std::process::id())))
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the scenario; tells what it came to and what was counted.
fn run(mock: &Mock, folder: &Path) -> (Vec<f32>, Counts) {
    let metal = Options { cache: Some(folder.to_owned()), ..Options::default() };
    let run = mock.open_with(&RuntimeOptions::new(), metal).unwrap();
    let numbers = scenario(&run.rt).unwrap().numbers;
    drop(run);
    assert_eq!(mock.findings(), Vec::<String>::new());
    (numbers, mock.counts())
}

#[test]
fn the_next_process_compiles_nothing() {
    let folder = Folder::new("next");
    let (wanted, first) = run(&mock(Schedule::Forward), &folder.0);
    assert!(first.pipelines > 2 && first.archived == 0, "{first:?}");
    let (numbers, second) = run(&mock(Schedule::Forward), &folder.0);
    assert_eq!((second.pipelines, second.archived), (0, first.pipelines));
    // Another chip has entries of its own.
    let (others, third) = run(&mock(Schedule::Backward), &folder.0);
    assert_eq!((third.pipelines, third.archived), (first.pipelines, 0));
    assert!(numbers == wanted && others == wanted);
}

#[test]
fn damaged_and_foreign_entries_are_built_again() {
    let folder = Folder::new("damaged");
    let (wanted, first) = run(&mock(Schedule::Forward), &folder.0);
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [Damage<'_>; 4] =
        [&|e| e.clear(), &|e| e.truncate(e.len() / 2), &|e| e.push(0), &|e| *e.last_mut().unwrap() ^= 1];
    for damage in damages {
        for file in folder.files() {
            let mut content = std::fs::read(&file).unwrap();
            damage(&mut content);
            std::fs::write(&file, content).unwrap();
        }
        let (numbers, again) = run(&mock(Schedule::Forward), &folder.0);
        assert_eq!((again.pipelines, again.archived), (first.pipelines, 0));
        assert!(numbers == wanted);
    }
    let strict = mock(Schedule::Forward);
    strict.inject(|f| f.foreign_archives = true);
    let (numbers, foreign) = run(&strict, &folder.0);
    assert_eq!((foreign.pipelines, foreign.archived), (first.pipelines, 0));
    assert!(numbers == wanted);
    assert_eq!(run(&mock(Schedule::Forward), &folder.0).1.archived, first.pipelines, "replaced");
}

#[test]
fn what_cannot_be_stored_costs_time_only() {
    let folder = Folder::new("refused");
    let strict = mock(Schedule::Forward);
    strict.inject(|f| f.archive = Some("no space".to_owned()));
    let (_, first) = run(&strict, &folder.0);
    let (_, second) = run(&mock(Schedule::Forward), &folder.0);
    assert_eq!((second.pipelines, second.archived), (1, first.pipelines - 1));
    // A folder that others can reach is not used at all.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(run(&mock(Schedule::Forward), &folder.0).1.archived, 0);
    }
}

/// Pipelines are compiled side by side, each into an archive of its own.
#[test]
fn warm_up_compiles_in_parallel_and_leaves_nothing_to_do() {
    let folder = Folder::new("parallel");
    let mock = Mock::new(Config { compile_time: Duration::from_millis(20), ..Config::default() });
    let metal = Options { cache: Some(folder.0.clone()), ..Options::default() };
    let rt = GpuRuntime::with_backend(mock.backend(metal.clone()).unwrap(), &RuntimeOptions::new()).unwrap();
    let problems = problems(&rt);
    rt.warm_up(&problems).unwrap();
    let counts = mock.counts();
    assert!(counts.compiling_peak > 1 || std::thread::available_parallelism().unwrap().get() == 1, "{counts:?}");
    let rest = rt.pipeline_count();
    problems.iter().for_each(|p| rt.warm_up(std::slice::from_ref(p)).unwrap());
    assert_eq!((rt.pipeline_count(), mock.counts().pipelines), (rest, counts.pipelines));
    let next = common::mock(Schedule::Forward);
    let rt = GpuRuntime::with_backend(next.backend(metal).unwrap(), &RuntimeOptions::new()).unwrap();
    rt.warm_up(&problems).unwrap();
    assert_eq!((next.counts().pipelines, next.counts().archived), (0, counts.pipelines));
    assert_eq!((mock.findings(), next.findings()), (Vec::new(), Vec::new()));
}

fn problems(rt: &GpuRuntime) -> Vec<Desc> {
    let pairs = [DType::F32, DType::Bf16, DType::F16].map(|t| [DType::F32, DType::Bf16, DType::F16].map(|o| (t, o)));
    let desc = |(input, output): (DType, DType)| {
        let new = |dtype, shape: &[usize]| rt.uninit(dtype, shape, tessl::BufferKind::Cold).unwrap();
        let [a, b, c] = [new(input, &[4, 8]), new(input, &[8, 4]), new(output, &[4, 4])];
        Desc::Gemm(Gemm::new(&a, &b, &c).activation(Activation::Silu).desc().unwrap())
    };
    pairs.into_iter().flatten().map(desc).collect()
}
