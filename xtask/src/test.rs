//! `cargo xtask test`: runs the steps, goes on after a failure, tells all at the end.

use crate::context::Context;
use crate::skips::Expected;
use crate::steps::{self, Step, Trouble};
use crate::tally::Tally;
use crate::tree::Tree;
use std::time::{Duration, Instant};

struct Row {
    name: String,
    took: Duration,
    tally: Tally,
    failed: Option<String>,
}

pub(crate) fn run(cx: &Context, args: &[String]) -> Result<(), String> {
    let tree = Tree::load(cx)?;
    let steps = steps::all(&tree);
    if args.iter().any(|a| a == "--list") {
        for step in &steps {
            println!("{}{}", step.name, if step.slow { " (not with --fast)" } else { "" });
        }
        return Ok(());
    }
    let steps = choose(steps, args)?;
    let expected = Expected::parse(tree.text("xtask/expected-skips.txt").unwrap_or_default(), std::env::consts::OS);
    let rows: Vec<Row> = steps.iter().map(|step| run_step(cx, step)).collect();
    report(&rows, &expected, cx.ci)
}

/// The names of all steps.
pub(crate) fn names(cx: &Context) -> Result<Vec<String>, String> {
    Ok(steps::all(&Tree::load(cx)?).into_iter().map(|step| step.name).collect())
}

/// The steps asked for: all, the fast ones, or those named (`sim` stands for `sim-0`, `sim-1`, ..).
fn choose(steps: Vec<Step>, args: &[String]) -> Result<Vec<Step>, String> {
    let fast = args.iter().any(|a| a == "--fast");
    let names: Vec<&str> = args.iter().map(String::as_str).filter(|a| *a != "--fast").collect();
    let is = |step: &Step, name: &str| {
        step.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':']))
    };
    if let Some(unknown) = names.iter().find(|name| !steps.iter().any(|step| is(step, name))) {
        let known: Vec<&str> = steps.iter().map(|s| s.name.as_str()).collect();
        return Err(format!("no step `{unknown}` here; there are: {}", known.join(" ")));
    }
    let chosen = |step: &Step| {
        let named = names.iter().any(|name| is(step, name));
        if names.is_empty() { !(fast && step.slow) } else { named }
    };
    Ok(steps.into_iter().filter(chosen).collect())
}

fn run_step(cx: &Context, step: &Step) -> Row {
    println!("\n== {}", step.name);
    let start = Instant::now();
    let (tally, failed) = match (step.run)(cx) {
        Ok(tally) => (tally, None),
        Err(Trouble::Failed(tally, why)) => (tally, Some(why)),
        Err(Trouble::Skipped(why)) => {
            println!("skipped: {}: {why}", step.name);
            (Tally { skipped: vec![(format!("step:{}", step.name), why)], ..Tally::default() }, None)
        }
    };
    if let Some(why) = &failed {
        println!("{}: {why}", step.name);
    }
    Row { name: step.name.clone(), took: start.elapsed(), tally, failed }
}

/// Prints table, skips and failures, and the closing line last.
fn report(rows: &[Row], expected: &Expected, ci: bool) -> Result<(), String> {
    println!("\n{:<16} {:>8}  {:<8} tests", "step", "time", "result");
    for row in rows {
        let Tally { passed, failed, skipped, .. } = &row.tally;
        let only_skipped = skipped.iter().any(|(name, _)| *name == format!("step:{}", row.name));
        let result = if row.failed.is_some() {
            "FAILED"
        } else if only_skipped {
            "skipped"
        } else {
            "ok"
        };
        let tests = if passed + failed == 0 {
            String::new()
        } else {
            format!("{passed} passed, {failed} failed, {} skipped", skipped.len())
        };
        println!("{:<16} {:>6.1} s  {result:<8} {tests}", row.name, row.took.as_secs_f64());
    }
    let total: Duration = rows.iter().map(|r| r.took).sum();
    println!("{:<16} {:>6.1} s", "total", total.as_secs_f64());
    let (lines, counts) = verdict(rows, expected, ci);
    for line in lines {
        println!("{line}");
    }
    println!("{} passed, {} failed, {} skipped", counts[0], counts[1], counts[2]);
    if counts[1] == 0 { Ok(()) } else { Err(String::new()) }
}

/// What to tell, and the numbers passed, failed and skipped. Only tests count as passed; a step that failed without
/// a failed test adds one failure, and on CI so does each skip that is not expected.
fn verdict(rows: &[Row], expected: &Expected, ci: bool) -> (Vec<String>, [u64; 3]) {
    let mut lines = Vec::new();
    let mut counts = [0; 3];
    for row in rows {
        counts[0] += row.tally.passed;
        counts[1] += row.tally.failed;
        counts[2] += row.tally.skipped.len() as u64;
        for (name, reason) in &row.tally.skipped {
            let colon = if reason.is_empty() { "" } else { ": " };
            let unexpected = ci && !expected.allows(name);
            let note = if unexpected { " (FAILED: not in xtask/expected-skips.txt)" } else { "" };
            lines.push(format!("skipped: {}: {name}{colon}{reason}{note}", row.name));
            counts[1] += u64::from(unexpected);
        }
    }
    for row in rows {
        lines.extend(row.tally.failures.iter().map(|name| format!("failed: {}: {name}", row.name)));
        if let Some(why) = row.failed.as_ref().filter(|_| row.tally.failed == 0) {
            lines.push(format!("failed: step {}: {}", row.name, why.lines().next().unwrap_or_default()));
            counts[1] += 1;
        }
    }
    (lines, counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, passed: u64, failed: u64, skipped: &[&str], why: Option<&str>) -> Row {
        let skipped = skipped.iter().map(|s| ((*s).to_owned(), "why".to_owned())).collect();
        let tally = Tally { passed, failed, skipped, failures: Vec::new() };
        Row { name: name.to_owned(), took: Duration::ZERO, tally, failed: why.map(str::to_owned) }
    }

    #[test]
    fn a_failed_step_is_one_failure_unless_its_tests_failed() {
        let expected = Expected::parse("", "linux");
        let rows = [row("fmt", 0, 0, &[], Some("exit status")), row("test", 7, 2, &[], Some("exit status"))];
        assert_eq!(verdict(&rows, &expected, true).1, [7, 3, 0]);
    }

    #[test]
    fn unexpected_skips_fail_on_ci_only() {
        let expected = Expected::parse("deep listed", "linux");
        let rows = [row("test", 1, 0, &["deep", "step:darwin"], None)];
        assert_eq!(verdict(&rows, &expected, false).1, [1, 0, 2]);
        let (lines, counts) = verdict(&rows, &expected, true);
        assert_eq!(counts, [1, 1, 2]);
        assert!(lines.iter().any(|l| l.contains("step:darwin") && l.contains("FAILED")));
    }

    #[test]
    fn names_choose_steps() {
        let step = |name: &str, slow| Step { name: name.to_owned(), slow, run: Box::new(|_| Ok(Tally::default())) };
        let all = || vec![step("fmt", false), step("sim-0", false), step("sim-1", false), step("darwin", true)];
        let pick = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
            choose(all(), &args).map(|s| s.into_iter().map(|s| s.name).collect::<Vec<_>>())
        };
        assert_eq!(pick(&["sim"]).unwrap(), ["sim-0", "sim-1"]);
        assert_eq!(pick(&["--fast"]).unwrap().len(), 3);
        assert_eq!(pick(&["darwin"]).unwrap(), ["darwin"]);
        assert!(pick(&["si"]).unwrap_err().contains("no step `si`"));
    }
}
