//! Tests that are ignored, or that leave out what a build cannot do, stand in the list of expected skips: otherwise a CI
//! run fails on them, half an hour later.

use super::Finding;
use crate::skips::Expected;
use crate::tree::Tree;

const LIST: &str = "xtask/expected-skips.txt";
/// Calls that skip under the name that follows in quotes.
const CALLS: [&str; 2] = ["cannot_compile(\"", "usable_or_skip(\""];

pub(super) fn listed(tree: &Tree) -> Vec<Finding> {
    let expected = Expected::parse(tree.text(LIST).unwrap_or_default(), "linux");
    let files = tree.below("crates", ".rs");
    files
        .flat_map(|(path, text)| skipped(text).map(move |name| (path, name)).collect::<Vec<_>>())
        .filter(|(path, name)| !names(path, name).iter().any(|name| expected.allows(name)))
        .map(|(path, name)| format!("{path}: `{name}` may be skipped; add a row with the reason to {LIST}"))
        .collect()
}

/// Names of tests in `text` that may be skipped.
fn skipped(text: &str) -> impl Iterator<Item = &str> {
    let after_ignore = |part: &'static str| {
        text.split(part).skip(1).filter_map(|rest| {
            let name = rest.split("fn ").nth(1)?;
            Some(&name[..name.find('(')?])
        })
    };
    let calls = CALLS.iter().flat_map(|call| text.split(call).skip(1).filter_map(|rest| rest.split('"').next()));
    after_ignore("#[ignore").chain(calls)
}

/// What a test of this file may be called in a run: by itself, or by its path in the crate.
fn names(path: &str, name: &str) -> Vec<String> {
    let inside = path.split_once("/src/").or_else(|| path.split_once("/tests/")).map_or("", |(_, rest)| rest);
    let modules: Vec<&str> = inside.trim_end_matches(".rs").split('/').filter(|part| *part != "mod").collect();
    let mut names = vec![name.to_owned()];
    for start in 0..modules.len() {
        let module = modules[start..].join("::");
        names.extend([format!("{module}::{name}"), format!("{module}::tests::{name}")]);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_test_without_a_row_is_found() {
        let text = "#[test]\n#[ignore = \"long\"]\nfn deep() {}\n\nfn other() { if cannot_compile(\"small\") {} }\n";
        let tree = |list: &str| Tree::of(&[("crates/a/tests/suite/fuzz.rs", text), (LIST, list)]);
        assert_eq!(listed(&tree("")).len(), 2);
        let found = listed(&tree("fuzz::deep long\n"));
        assert!(found.len() == 1 && found[0].contains("`small`"), "{found:?}");
        assert!(listed(&tree("fuzz::deep long\nsmall as fuzz::deep\n")).is_empty());
    }
}
