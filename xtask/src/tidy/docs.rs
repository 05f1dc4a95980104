//! What the documents have to say.

use super::{Finding, NotYet};
use crate::tree::Tree;
use std::collections::BTreeSet;

const MIGRATION: &str = "docs/migration.md";
const PARITY: &str = "xtask/parity-rows.txt";
const DEVICES: &str = "docs/devices.md";
const CHANGELOG: &str = "CHANGELOG.md";

/// Each row of the description has its place in docs/migration.md.
pub(super) fn parity_rows(tree: &Tree, missing: &NotYet) -> Vec<Finding> {
    let Some(text) = tree.text(MIGRATION) else {
        return missing
            .require(tree, &[MIGRATION.to_owned()], "a successor for each row of the description")
            .into_iter()
            .collect();
    };
    let have: BTreeSet<&str> = text.lines().filter_map(first_cell).collect();
    let rows = tree.text(PARITY).unwrap_or_default().lines().filter(|row| !row.is_empty());
    rows.filter(|row| !have.contains(row)).map(|row| format!("{MIGRATION}: no row `{row}`")).collect()
}

/// The first cell of a table row.
fn first_cell(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix('|')?.split('|').next()?.trim())
}

/// docs/devices.md has a row for each environment variable in the sources, and no other.
pub(super) fn variables(tree: &Tree, missing: &NotYet) -> Vec<Finding> {
    let Some(text) = tree.text(DEVICES) else {
        return missing
            .require(tree, &[DEVICES.to_owned()], "the table of environment variables")
            .into_iter()
            .collect();
    };
    let documented: BTreeSet<&str> = text.lines().filter_map(first_cell).flat_map(backquoted).collect();
    // This tool names variables only to set them, or to test itself.
    let ours = |path: &str| path.starts_with("xtask/");
    let sources = tree.all().filter(|(path, _)| !ours(path) && [".rs", ".py"].iter().any(|end| path.ends_with(end)));
    let sources: Vec<&str> = sources.map(|(_, text)| text).collect();
    // What a build script tells the compiler is not for users to set.
    let internal: BTreeSet<&str> =
        sources.iter().flat_map(|text| text.split("rustc-env=").skip(1)).flat_map(first_word).collect();
    let used: BTreeSet<&str> = sources.iter().flat_map(|text| words(text)).filter(|w| is_variable(w)).collect();
    let used: BTreeSet<&str> = used.difference(&internal).copied().collect();
    let absent = used.difference(&documented).map(|name| format!("{DEVICES}: no row for `{name}`"));
    let stale = documented.difference(&used).filter(|name| is_variable(name));
    absent.chain(stale.map(|name| format!("{DEVICES}: `{name}` is in no source"))).collect()
}

fn backquoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2).map(|code| code.split('=').next().unwrap_or(code))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

fn first_word(text: &str) -> Option<&str> {
    words(text).next()
}

fn is_variable(word: &str) -> bool {
    let tail = word.strip_prefix("TESSL_").unwrap_or_default();
    !tail.is_empty()
        && !tail.ends_with('_')
        && tail.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// CHANGELOG.md speaks of what comes next or of this version.
pub(super) fn changelog(tree: &Tree, missing: &NotYet) -> Vec<Finding> {
    let Some(text) = tree.text(CHANGELOG) else {
        return missing.require(tree, &[CHANGELOG.to_owned()], "what changed, for users").into_iter().collect();
    };
    let version = version(tree.text("Cargo.toml").unwrap_or_default());
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    let current =
        headings.map(|h| h.trim_start_matches('[')).any(|h| h.starts_with("Unreleased") || h.starts_with(version));
    if current { Vec::new() } else { vec![format!("{CHANGELOG}: no section `Unreleased` or `{version}`")] }
}

fn version(manifest: &str) -> &str {
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    line.and_then(|rest| rest.split('"').next()).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(rule: fn(&Tree, &NotYet) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<Finding> {
        let tree = Tree::of(files);
        rule(&tree, &NotYet::new(&tree))
    }

    #[test]
    fn every_parity_row_is_in_the_migration_table() {
        let found = findings(parity_rows, &[(MIGRATION, "| `a` b | c |\n"), (PARITY, "`a` b\n`x`\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`x`"));
        assert_eq!(findings(parity_rows, &[]).len(), 1);
    }

    #[test]
    fn variables_and_their_table_agree() {
        let source = "env::var(\"TESSL_DEVICE\"); // (`TESSL_NEW`)\nstrip(\"TESSL_\"); env!(\"TESSL_BUILT\"); env(\"DEP_TESSL_KERNELS\")";
        let build = "println!(\"cargo:rustc-env=TESSL_BUILT={reason}\")";
        let table = "| variable | type |\n| `TESSL_DEVICE=gpu` | name |\n| `TESSL_OLD` | gone |\n";
        let found = findings(variables, &[("crates/a.rs", source), ("crates/build.rs", build), (DEVICES, table)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("TESSL_NEW") && found[1].contains("TESSL_OLD"));
    }

    #[test]
    fn the_changelog_is_current() {
        let manifest = ("Cargo.toml", "[workspace.package]\nversion = \"0.3.0\"\n");
        assert!(findings(changelog, &[manifest, (CHANGELOG, "## [Unreleased]\n")]).is_empty());
        assert!(findings(changelog, &[manifest, (CHANGELOG, "## 0.3.0\n")]).is_empty());
        assert_eq!(findings(changelog, &[manifest, (CHANGELOG, "## 0.2.0\n")]).len(), 1);
    }
}
