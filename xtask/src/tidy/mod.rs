//! `cargo xtask tidy`: rules on the tree. Each rule is a function from the tree to its findings.

mod docs;
mod skips;
mod stems;
mod words;

use crate::context::Context;
use crate::markers;
use crate::tree::{self, Tree};

/// What may be missing for now, one path a line with a reason.
const NOT_YET: &str = "xtask/not-yet.txt";

/// One thing to mend: where and what.
pub(crate) type Finding = String;

pub(crate) fn run(cx: &Context) -> Result<(), String> {
    let tree = Tree::load(cx)?;
    let missing = NotYet::new(&tree);
    let mut findings = stems::same_stem(&tree, &missing);
    findings.extend(words::file_length(&tree));
    findings.extend(words::forbidden(&tree));
    findings.extend(docs::parity_rows(&tree, &missing));
    findings.extend(docs::variables(&tree, &missing));
    findings.extend(docs::changelog(&tree, &missing));
    findings.extend(skips::listed(&tree));
    findings.extend(markers::check(&tree));
    findings.extend(missing.done(&tree));
    if findings.is_empty() {
        return Ok(());
    }
    for finding in &findings {
        println!("tidy: {finding}");
    }
    Err(format!("{} findings", findings.len()))
}

/// The "not yet" table.
pub(crate) struct NotYet {
    rows: Vec<String>,
}

impl NotYet {
    pub(crate) fn new(tree: &Tree) -> Self {
        let rows = tree::list(tree.text(NOT_YET).unwrap_or_default());
        NotYet { rows: rows.map(|(path, _)| path.to_owned()).collect() }
    }

    /// A finding when the tree has none of `paths` and the table has neither.
    fn require(&self, tree: &Tree, paths: &[String], why: &str) -> Option<Finding> {
        let there = |path: &String| tree.has(path) || self.rows.contains(path);
        (!paths.iter().any(there))
            .then(|| format!("{}: missing ({why}); write it or add a row to {NOT_YET}", paths.join(" or ")))
    }

    /// Rows whose file has come.
    fn done(&self, tree: &Tree) -> Vec<Finding> {
        let done = self.rows.iter().filter(|path| tree.has(path));
        done.map(|path| format!("{NOT_YET}: {path} is there now; remove its row")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_or_listed() {
        let tree = Tree::of(&[("a.md", ""), ("b.md", ""), (NOT_YET, "b.md later\nc.md later\n")]);
        let missing = NotYet::new(&tree);
        let require = |path: &str| missing.require(&tree, &[path.to_owned()], "test");
        assert!(require("a.md").is_none() && require("c.md").is_none());
        assert!(require("d.md").unwrap().contains("d.md"));
        assert_eq!(missing.done(&tree).len(), 1);
    }
}
