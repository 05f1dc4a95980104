//! Counting tests in the output of `cargo test`.

use std::collections::BTreeSet;

/// What the tests of one step came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Names with reasons: ignored tests, and what tests wrote to the skip log.
    pub(crate) skipped: Vec<(String, String)>,
    /// Names of failed tests.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Counts from `test result:` lines; names from `test NAME ... VERDICT` lines. A name in `skip_log` that a test
    /// carries moves that test from passed to skipped.
    pub(crate) fn parse(lines: &[String], skip_log: &str) -> Tally {
        let mut tally = Tally::default();
        let mut passed_names = BTreeSet::new();
        let mut ignored = 0;
        for line in lines {
            if let Some(counts) = result_line(line) {
                tally.passed += counts[0];
                tally.failed += counts[1];
                ignored += counts[2];
            } else if let Some((name, verdict)) = test_line(line) {
                match verdict {
                    "ok" => drop(passed_names.insert(name)),
                    "FAILED" => tally.failures.push(name.to_owned()),
                    _ => {
                        if let Some(reason) = verdict.strip_prefix("ignored") {
                            tally.skipped.push((name.to_owned(), reason.trim_start_matches([',', ' ']).to_owned()));
                        }
                    }
                }
            }
        }
        // Output of a test may hide the line that names it; the count still holds.
        while (tally.skipped.len() as u64) < ignored {
            tally.skipped.push(("an ignored test".to_owned(), String::new()));
        }
        let logged: BTreeSet<&str> = skip_log.lines().filter(|l| !l.trim().is_empty()).collect();
        for line in logged {
            let (name, reason) = line.split_once('\t').unwrap_or((line, ""));
            if tally.passed > 0 && passed_names.iter().any(|p| *p == name || p.ends_with(&format!("::{name}"))) {
                tally.passed -= 1;
            }
            tally.skipped.push((name.to_owned(), reason.to_owned()));
        }
        tally
    }
}

/// Passed, failed and ignored of `test result: ok. 3 passed; 0 failed; 1 ignored; ..`.
fn result_line(line: &str) -> Option<[u64; 3]> {
    let (_, counts) = line.trim().strip_prefix("test result:")?.split_once(". ")?;
    let mut numbers = [0; 3];
    for (number, (part, word)) in numbers.iter_mut().zip(counts.split("; ").zip(["passed", "failed", "ignored"])) {
        *number = part.trim().strip_suffix(word)?.trim().parse().ok()?;
    }
    Some(numbers)
}

/// Name and verdict of `test a::b ... ok`.
fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.trim().strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn sums_over_binaries() {
        let text = "running 3 tests\n\
                    test a::one ... ok\n\
                    test a::two ... FAILED\n\
                    test a::three ... ignored, takes an hour\n\
                    test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                    test src/lib.rs - f (line 3) ... ok\n\
                    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let tally = Tally::parse(&lines(text), "");
        assert_eq!((tally.passed, tally.failed), (2, 1));
        assert_eq!(tally.failures, ["a::two"]);
        assert_eq!(tally.skipped, [("a::three".to_owned(), "takes an hour".to_owned())]);
    }

    #[test]
    fn a_logged_skip_is_no_pass() {
        let text = "test gpu::copy ... ok\ntest cpu ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured";
        let tally = Tally::parse(&lines(text), "copy\tno CUDA device\ncase 7\tno AMX\ncase 7\tno AMX\n");
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.skipped.len(), 2);
    }

    #[test]
    fn hidden_ignored_tests_are_counted() {
        let tally = Tally::parse(&lines("test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured"), "");
        assert_eq!(tally.skipped.len(), 2);
    }

    #[test]
    fn other_lines_are_not_results() {
        assert_eq!(result_line("test result: strange"), None);
        assert_eq!(test_line("testing ... ok"), None);
        assert_eq!(test_line("test panics - should panic ... ok"), Some(("panics", "ok")));
    }
}
