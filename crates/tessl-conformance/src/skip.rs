//! Skips are printed, counted and, where a device must be there, failures.

use std::io::Write;

/// Notes that the test `name` did not run. `device` is what was missing: `cuda`, `metal`, `sim`, an instruction set.
///
/// Prints one line and appends one to the file named by `TESSL_SKIP_LOG`.
///
/// # Panics
/// When `TESSL_REQUIRE` names `device`: on that machine a skip is a failure.
pub fn skip(device: &str, name: &str, reason: &str) {
    let required = std::env::var("TESSL_REQUIRE").unwrap_or_default();
    println!("skipped: {name}: {reason}");
    if let Some(path) = std::env::var_os("TESSL_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| writeln!(file, "{name}\t{reason}"));
        if let Err(error) = written {
            println!("TESSL_SKIP_LOG: {}: {error}", path.to_string_lossy());
        }
    }
    let must = is_required(&required, device);
    assert!(!must, "{name} was skipped ({reason}), but TESSL_REQUIRE names {device}");
}

fn is_required(list: &str, device: &str) -> bool {
    list.split(',').any(|entry| entry.trim() == device)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists() {
        assert!(super::is_required("cuda, sim", "sim") && !super::is_required("cuda", "sim"));
        assert!(!super::is_required("", "cuda"));
    }
}
