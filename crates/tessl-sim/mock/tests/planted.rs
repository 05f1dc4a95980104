//! Mistakes put between the host code and the driver, as if the host code made them. Each must be found by the driver,
//! become a typed error, or change a number; one that passes is a hole in the checks.

mod common;

use common::{mock, scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tessl::RuntimeOptions;
use tessl_metal_mock::{Config, Mock, Sabotage};
use tessl_sim::Schedule;

#[test]
fn without_a_mistake_nothing_is_found() {
    let mut results = Vec::new();
    for schedule in common::SCHEDULES {
        let mock = mock(schedule);
        let run = mock.open(&RuntimeOptions::new()).unwrap();
        results.push(scenario(&run.rt).unwrap());
        drop(run);
        assert_eq!(mock.findings(), Vec::<String>::new(), "{schedule:?}");
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn every_mistake_is_found() {
    let good = mock(Schedule::Forward);
    let wanted = scenario(&good.open(&RuntimeOptions::new()).unwrap().rt).unwrap();
    let mut missed = Vec::new();
    for sabotage in Sabotage::ALL {
        let mock = Mock::new(Config { sabotage: Some(sabotage), schedule: Schedule::Backward, ..Config::default() });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let run = mock.open(&RuntimeOptions::new())?;
            scenario(&run.rt)
        }));
        let findings = mock.findings();
        let how = match (&findings[..], &outcome) {
            ([first, ..], _) => format!("found: {first}"),
            (_, Err(_)) => "panicked".to_owned(),
            (_, Ok(Err(error))) => format!("error: {error}"),
            (_, Ok(Ok(numbers))) if *numbers != wanted => "wrong numbers".to_owned(),
            _ => {
                missed.push(sabotage);
                "NOT FOUND".to_owned()
            }
        };
        println!("{sabotage:?}: {how}");
    }
    assert!(missed.is_empty(), "{missed:?}");
}
