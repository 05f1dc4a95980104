//! Matrix units: used where they are right, and seen to be wrong where they are not.

mod common;

use common::scenario;
use tessl::device::metal::Options;
use tessl::{GpuRuntime, RuntimeOptions};
use tessl_metal_mock::{Config, Mock, Support};
use tessl_sim::Schedule;

fn mock(tensor_ops: Support) -> Mock {
    Mock::new(Config { apple10: true, tensor_ops, schedule: Schedule::Backward, ..Config::default() })
}

#[test]
fn wrong_or_refused_matrix_units_are_not_used() {
    let wanted = scenario(&common::mock(Schedule::Forward).open(&RuntimeOptions::new()).unwrap().rt).unwrap();
    for (kind, used) in [(Support::Works, true), (Support::Refused, false), (Support::Ignored, false)] {
        let mock = mock(kind);
        let run = mock.open(&RuntimeOptions::new()).unwrap();
        assert_eq!(run.rt.profile().tensor_ops, used, "{kind:?}");
        let done = scenario(&run.rt).unwrap();
        if !used {
            assert!(done.numbers == wanted.numbers, "{kind:?}");
        }
        drop(run);
        assert_eq!(mock.findings(), Vec::<String>::new());
    }
}

/// The verdict is kept with the pipelines, so that later processes start without the trial; a bad one is not.
#[test]
fn the_trial_runs_once_for_each_system() {
    let folder = std::env::temp_dir().join(format!("tessl-verdict-test-{}", std::process::id()));
    let open = |kind: Support| {
        let mock = mock(kind);
        let metal = Options { cache: Some(folder.clone()), ..Options::default() };
        let rt = GpuRuntime::with_backend(mock.backend(metal).unwrap(), &RuntimeOptions::new()).unwrap();
        (rt.profile().tensor_ops, mock.counts().dispatches)
    };
    let bad = open(Support::Ignored);
    assert!(!bad.0 && bad.1 > 0, "{bad:?}");
    let first = open(Support::Works);
    assert!(first.0 && first.1 >= 8, "{first:?}");
    assert_eq!(open(Support::Works), (true, 0));
    std::fs::remove_dir_all(&folder).unwrap();
}
