//! Numbers in documents, each between a marker that says where it comes from and a closing one:
//!
//! ```text
//! <!-- count:kernels -->41<!-- /count -->
//! <!-- bench:h200/gemm.json:rows[name=square_4096,dtype=bf16].tflops -->712.4<!-- /bench -->
//! ```
//!
//! A figure is compared after rounding to the decimals that the document shows.

use crate::tree::Tree;
use serde_json::Value;

const RESULTS: &str = "bench/results";

/// A marker in a text: the key, and where its value stands.
#[derive(Debug, PartialEq, Eq)]
struct Marker<'a> {
    kind: &'static str,
    key: &'a str,
    start: usize,
    end: usize,
}

/// What `cargo xtask docs` would change, as findings.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in documents(tree) {
        match rewrite(tree, text) {
            Ok((_, changes)) => {
                findings.extend(changes.into_iter().map(|c| format!("{path}: {c}; run `cargo xtask docs`")))
            }
            Err(problem) => findings.push(format!("{path}: {problem}")),
        }
    }
    findings
}

/// Documents whose numbers are out of date, with their new text.
pub(crate) fn updated(tree: &Tree) -> Result<Vec<(String, String)>, String> {
    let mut files = Vec::new();
    for (path, text) in documents(tree) {
        let (new, changes) = rewrite(tree, text).map_err(|e| format!("{path}: {e}"))?;
        if !changes.is_empty() {
            files.push((path.to_owned(), new));
        }
    }
    Ok(files)
}

fn documents(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.all().filter(|(path, _)| path.ends_with(".md"))
}

/// The text with every number as it should be, and what differs.
fn rewrite(tree: &Tree, text: &str) -> Result<(String, Vec<String>), String> {
    let mut out = String::new();
    let mut changes = Vec::new();
    let mut copied = 0;
    for marker in markers(text)? {
        let shown = &text[marker.start..marker.end];
        let right = match marker.kind {
            "count" => count(tree, marker.key)?.to_string(),
            _ => figure(tree, marker.key, shown)?,
        };
        if shown != right {
            changes.push(format!("{} {} is {right}, not {shown}", marker.kind, marker.key));
        }
        out += &text[copied..marker.start];
        out += &right;
        copied = marker.end;
    }
    out += &text[copied..];
    Ok((out, changes))
}

fn markers(text: &str) -> Result<Vec<Marker<'_>>, String> {
    let mut found = Vec::new();
    for kind in ["count", "bench"] {
        let (open, close) = (format!("<!-- {kind}:"), format!("<!-- /{kind} -->"));
        let mut from = 0;
        while let Some(at) = text[from..].find(&open) {
            let key_start = from + at + open.len();
            let key_end =
                key_start + text[key_start..].find(" -->").ok_or_else(|| format!("a {kind} marker has no end"))?;
            let start = key_end + " -->".len();
            let key = &text[key_start..key_end];
            let end =
                start + text[start..].find(&close).ok_or_else(|| format!("{kind} {key}: no `{close}` after it"))?;
            found.push(Marker { kind, key, start, end });
            from = end;
        }
    }
    found.sort_by_key(|marker| marker.start);
    Ok(found)
}

/// What can be counted in the tree.
fn count(tree: &Tree, name: &str) -> Result<usize, String> {
    let lines = |folder: &str, end: &str, is: fn(&str) -> bool| -> usize {
        tree.below(folder, end).map(|(_, text)| text.lines().filter(|line| is(line.trim_start())).count()).sum()
    };
    let kernels = "crates/tessl/kernels";
    let kernel = |line: &str| line.starts_with("KERNEL") && line.contains('(');
    Ok(match name {
        // One entry point each.
        "kernels" => {
            lines(kernels, ".metal", kernel)
                + lines(kernels, ".cu", |l| l.starts_with("KERNEL") || l.contains("__global__"))
        }
        "kernel-files" => tree.below(kernels, ".metal").chain(tree.below(kernels, ".cu")).count(),
        // Every op ends in `run_on`.
        "ops" => {
            let run_on = |line: &str| line.starts_with("pub fn run_on");
            lines("crates/tessl/src/nn", ".rs", run_on) + lines("crates/tessl/src/gemm", ".rs", run_on)
        }
        "tests" => lines("crates", ".rs", |line| line.starts_with("#[test]")),
        "examples" => tree.below("crates/tessl/examples", ".rs").count(),
        _ => return Err(format!("nothing is counted as `{name}`")),
    })
}

/// The figure that `FILE:PATH` names, with as many decimals as `shown`.
fn figure(tree: &Tree, key: &str, shown: &str) -> Result<String, String> {
    let (file, path) = key.split_once(':').ok_or_else(|| format!("bench {key}: wanted FILE:PATH"))?;
    let file = format!("{RESULTS}/{file}");
    let text = tree.text(&file).ok_or_else(|| format!("bench {key}: no {file}"))?;
    let json: Value = serde_json::from_str(text).map_err(|e| format!("{file}: {e}"))?;
    let value = lookup(&json, path).map_err(|e| format!("{file}: {e}"))?;
    let decimals = shown.split_once('.').map_or(0, |(_, tail)| tail.len());
    match (value.as_f64(), value.as_str()) {
        (Some(number), _) => Ok(format!("{number:.decimals$}")),
        (_, Some(text)) => Ok(text.to_owned()),
        _ => Err(format!("{file}: {path} is neither a number nor a text")),
    }
}

/// Follows `a.b[key=value,key=value].c`; a selection has to match exactly one element.
fn lookup<'a>(json: &'a Value, path: &str) -> Result<&'a Value, String> {
    let mut at = json;
    for part in split_path(path) {
        let (name, selection) = match part.split_once('[') {
            Some((name, rest)) => (name, rest.strip_suffix(']')),
            None => (part, None),
        };
        at = at.get(name).ok_or_else(|| format!("no `{name}` on the way of {path}"))?;
        if let Some(selection) = selection {
            at = select(at, selection)?;
        }
    }
    Ok(at)
}

/// Splits at dots outside brackets.
fn split_path(path: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = path.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == '.' && depth == 0
    });
    split.collect()
}

fn select<'a>(list: &'a Value, selection: &str) -> Result<&'a Value, String> {
    let wanted: Option<Vec<(&str, &str)>> = selection.split(',').map(|pair| pair.split_once('=')).collect();
    let wanted = wanted.ok_or_else(|| format!("[{selection}]: wanted key=value"))?;
    let matches = |item: &&Value| {
        wanted.iter().all(|(key, value)| match item.get(*key) {
            Some(Value::String(text)) => text == value,
            Some(other) => *other.to_string() == **value,
            None => false,
        })
    };
    let mut found = list.as_array().into_iter().flatten().filter(matches);
    match (found.next(), found.count()) {
        (Some(item), 0) => Ok(item),
        (Some(_), more) => Err(format!("[{selection}] matches {} elements; say more", more + 1)),
        (None, _) => Err(format!("[{selection}] matches nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"device":"H200","rows":[
        {"name":"a.b","m":1,"tflops":1.26},{"name":"c","m":1,"tflops":2.0},{"name":"c","m":2,"tflops":3.0}]}"#;

    #[test]
    fn counts_are_checked_and_rewritten() {
        let readme = "has <!-- count:ops -->7<!-- /count --> ops and <!-- count:tests -->1<!-- /count --> test";
        let tree =
            Tree::of(&[("README.md", readme), ("crates/tessl/src/nn/norm.rs", "    pub fn run_on(self) {\n#[test]\n")]);
        assert_eq!(check(&tree).len(), 1);
        let (path, text) = updated(&tree).unwrap().remove(0);
        assert_eq!(path, "README.md");
        assert_eq!(text, readme.replace('7', "1"));
    }

    #[test]
    fn figures_round_as_shown() {
        let tree = Tree::of(&[("bench/results/x.json", JSON)]);
        let figure = |key: &str, shown: &str| figure(&tree, key, shown);
        assert_eq!(figure("x.json:rows[name=a.b].tflops", "1.3").unwrap(), "1.3");
        assert_eq!(figure("x.json:rows[name=c,m=2].tflops", "9").unwrap(), "3");
        assert_eq!(figure("x.json:device", "?").unwrap(), "H200");
        assert!(figure("x.json:rows[name=c].tflops", "1").unwrap_err().contains("2 elements"));
        assert!(figure("x.json:rows[name=z].tflops", "1").unwrap_err().contains("nothing"));
        assert!(figure("y.json:device", "").is_err());
    }

    #[test]
    fn open_markers_and_unknown_counts_are_findings() {
        for text in ["<!-- count:ops -->7", "<!-- count:moons -->7<!-- /count -->", "<!-- bench:x"] {
            assert_eq!(check(&Tree::of(&[("a.md", text)])).len(), 1, "{text}");
        }
    }
}
