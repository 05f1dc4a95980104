//! Mistakes put between the host code and the driver, as if the host code made them. Each must be found by the driver,
//! become a typed error, or change a number; one that passes is a hole in the checks.

mod common;

use common::{mock, scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tessl::device::metal::Options;
use tessl::{GraphOptions, RuntimeOptions};
use tessl_metal_mock::{Config, Mock, Sabotage};
use tessl_sim::Schedule;

#[test]
fn without_a_mistake_nothing_is_found() {
    let mut results = Vec::new();
    for schedule in common::SCHEDULES {
        let mock = mock(schedule);
        let run = mock.open(&RuntimeOptions::new()).unwrap();
        results.push(scenario(&run.rt).unwrap().numbers);
        drop(run);
        assert_eq!(mock.findings(), Vec::<String>::new(), "{schedule:?}");
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

/// How a mistake comes to light; `None` if it does not. `late`: the host code makes it once the runtime is there.
fn comes_to_light(sabotage: Sabotage, metal: &Options, late: bool, wanted: &[f32]) -> Option<String> {
    let apple10 = Sabotage::TENSOR_OPS.contains(&sabotage);
    let schedule = Schedule::Backward;
    let mock = Mock::new(Config { sabotage: Some(sabotage), schedule, apple10, ..Config::default() });
    mock.arm(!late);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let run = mock.open_with(&RuntimeOptions::new(), metal.clone())?;
        mock.arm(true);
        scenario(&run.rt)
    }));
    match (&mock.findings()[..], &outcome) {
        ([first, ..], _) => Some(format!("found: {first}")),
        (_, Err(_)) => Some("panicked".to_owned()),
        (_, Ok(Err(error))) => Some(format!("error: {error}")),
        (_, Ok(Ok(done))) if done.numbers != wanted => Some("wrong numbers".to_owned()),
        (_, Ok(Ok(done))) if metal.graphs != GraphOptions::new() && done.prebuilt == 0 => {
            Some("indirect command buffers are not used".to_owned())
        }
        _ => None,
    }
}

fn all_come_to_light(mistakes: &[Sabotage], metal: &Options, late: bool) {
    let good = mock(Schedule::Forward);
    let wanted = scenario(&good.open(&RuntimeOptions::new()).unwrap().rt).unwrap().numbers;
    let mut missed = Vec::new();
    for sabotage in mistakes {
        match comes_to_light(*sabotage, metal, late, &wanted) {
            Some(how) => println!("{sabotage:?}: {how}"),
            None => missed.push(sabotage),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn every_mistake_is_found() {
    all_come_to_light(&Sabotage::ALL, &Options::default(), false);
    all_come_to_light(&Sabotage::TENSOR_OPS, &Options::default(), false);
}

#[test]
fn every_mistake_with_indirect_command_buffers_is_found() {
    let [_, _, whole] = common::indirect();
    for late in [false, true] {
        all_come_to_light(&Sabotage::INDIRECT, &whole, late);
    }
}
