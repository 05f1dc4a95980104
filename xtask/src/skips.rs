//! What may be skipped without failing a CI run: `xtask/expected-skips.txt`.

use crate::tree;

/// The checked-in list.
pub(crate) struct Expected {
    patterns: Vec<String>,
}

impl Expected {
    /// Rows are `NAME [OS] reason`; `[linux]` or `[macos]` limits a row to that system; `*` at the end of a name
    /// stands for any rest.
    pub(crate) fn parse(text: &str, os: &str) -> Self {
        let here = |reason: &str| match reason.strip_prefix('[').and_then(|r| r.split_once(']')) {
            Some((only, _)) => only == os,
            None => true,
        };
        let patterns = tree::list(text).filter(|(_, reason)| here(reason)).map(|(name, _)| name.to_owned()).collect();
        Expected { patterns }
    }

    /// Spaces in a name (doc tests have them) are `_` in the list.
    pub(crate) fn allows(&self, name: &str) -> bool {
        let name = name.replace(' ', "_");
        self.patterns.iter().any(|p| match p.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *p == name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_patterns_and_systems() {
        let text = "# comment\ngemm_fuzz_deep long\ncuda:* no GPU\nstep:darwin [macos] native there\n";
        let linux = Expected::parse(text, "linux");
        assert!(linux.allows("gemm_fuzz_deep") && linux.allows("cuda:copy"));
        assert!(!linux.allows("gemm_fuzz_deeper") && !linux.allows("step:darwin"));
        assert!(Expected::parse(text, "macos").allows("step:darwin"));
    }
}
