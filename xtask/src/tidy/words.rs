//! Lengths and words.

use super::Finding;
use crate::tree::Tree;

/// Past this a file is more than one idea.
const LONGEST: usize = 900;
const SOURCES: [&str; 11] = [".rs", ".metal", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".mm", ".py", ".sh", ".md"];

pub(super) fn file_length(tree: &Tree) -> Vec<Finding> {
    let sources = tree.all().filter(|(path, _)| SOURCES.iter().any(|end| path.ends_with(end)));
    let long = sources.map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > LONGEST);
    long.map(|(path, lines)| format!("{path}: {lines} lines, at most {LONGEST}")).collect()
}

/// What only means something on one machine or on one day. Split so that this file does not contain them.
const ANYWHERE: [&str; 9] = [
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("py", "pi.org"),
    concat!("pythonho", "sted.org"),
    concat!("static.cra", "tes.io"),
    concat!("index.cra", "tes.io"),
    concat!("this ses", "sion"),
];
const REGISTRIES: [&str; 2] = [concat!("deb.deb", "ian.org"), concat!("registry.npm", "js.org")];
const WHOLE_WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn forbidden(tree: &Tree) -> Vec<Finding> {
    let files = tree.all().filter(|(path, _)| !path.ends_with(".lock"));
    let lines = files.flat_map(|(path, text)| text.lines().enumerate().map(move |(i, line)| (path, i + 1, line)));
    lines.filter_map(|(path, number, line)| Some(format!("{path}:{number}: `{}`", forbidden_in(line)?))).collect()
}

fn forbidden_in(line: &str) -> Option<&'static str> {
    let lower = line.to_lowercase();
    let anywhere = ANYWHERE.iter().chain(&REGISTRIES).find(|word| lower.contains(&word.to_lowercase()));
    anywhere.or_else(|| WHOLE_WORDS.iter().find(|word| has_word(line, word))).copied()
}

fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.split(|c| !part(c)).any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sources_are_found_and_data_is_not() {
        let long = "x\n".repeat(901);
        let tree = Tree::of(&[("a.rs", &long), ("b.json", &long), ("c.rs", "x\n")]);
        let found = file_length(&tree);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs: 901"));
    }

    #[test]
    fn words_are_found_whole() {
        for bad in [concat!("// TO", "DO: later"), concat!("cd /ro", "ot/x"), concat!("In This ses", "sion we")] {
            assert!(forbidden_in(bad).is_some(), "{bad}");
        }
        for good in ["mktemp -d /tmp/a.XXXXXX", "TODOS", "the session's limit", "a/workspace/b", "homework/"] {
            assert!(forbidden_in(good).is_none(), "{good}");
        }
    }
}
