//! The text files of the project, as git sees them.

use crate::context::Context;
use crate::process;
use std::collections::BTreeMap;
use std::fs;

/// Path (with `/`) to text. Files that are not UTF-8 are left out.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Tracked files, and new ones that git does not ignore.
    pub(crate) fn load(cx: &Context) -> Result<Self, String> {
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let names = process::capture(cx.command("git").args(list))?;
        let mut files = BTreeMap::new();
        for name in names.split('\0').filter(|n| !n.is_empty()) {
            // A file deleted from the work tree but not yet from the index has no text.
            if let Ok(text) = fs::read_to_string(cx.root.join(name)) {
                files.insert(name.to_owned(), text);
            }
        }
        Ok(Tree { files })
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Files below `folder` whose name ends with `suffix`.
    pub(crate) fn below<'a>(&'a self, folder: &'a str, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.all().filter(move |(path, _)| {
            path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')) && path.ends_with(suffix)
        })
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Tree { files: files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect() }
    }
}

/// `norm` of `a/b/norm.rs`.
pub(crate) fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name)
}

/// Lines of a list file: `name reason..`, `#` starts a comment line.
pub(crate) fn list(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(|line| {
        let (name, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        (name, reason.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_and_lists() {
        assert_eq!(stem("crates/tessl/src/nn/norm.rs"), "norm");
        let rows: Vec<_> = list("# head\n\nnorm  not yet\nrope\n").collect();
        assert_eq!(rows, [("norm", "not yet"), ("rope", "")]);
    }

    #[test]
    fn folders_match_whole_names() {
        let tree = Tree::of(&[("a/b.rs", ""), ("ab/c.rs", ""), ("a/d.md", "")]);
        assert_eq!(tree.below("a", ".rs").map(|f| f.0).collect::<Vec<_>>(), ["a/b.rs"]);
    }
}
