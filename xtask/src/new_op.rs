//! `cargo xtask new-op NAME --family FAMILY`: skeletons of a new op in each layer, by templates.

use crate::context::Context;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A template has the head of a new file, this line, and what each op adds.
const ITEM: &str = "@@ item @@\n";

/// A layer of an op: where its file lives and what goes in.
struct Layer {
    path: &'static str,
    template: &'static str,
    /// The file that declares the module of a new family, if any.
    parent: Option<&'static str>,
}

const LAYERS: [Layer; 5] = [
    Layer {
        path: "crates/tessl/src/nn/@family@.rs",
        template: include_str!("../templates/api.rs.txt"),
        parent: Some("crates/tessl/src/nn/mod.rs"),
    },
    Layer {
        path: "crates/tessl-oracle/src/@family@.rs",
        template: include_str!("../templates/oracle.rs.txt"),
        parent: Some("crates/tessl-oracle/src/lib.rs"),
    },
    Layer {
        path: "crates/tessl/src/device/cpu/@family@.rs",
        template: include_str!("../templates/cpu.rs.txt"),
        parent: Some("crates/tessl/src/device/cpu/mod.rs"),
    },
    Layer {
        path: "crates/tessl/kernels/simt/@family@.metal",
        template: include_str!("../templates/simt.metal.txt"),
        parent: None,
    },
    Layer {
        path: "crates/tessl-conformance/src/@family@.rs",
        template: include_str!("../templates/conformance.rs.txt"),
        parent: Some("crates/tessl-conformance/src/lib.rs"),
    },
];

/// A row that each op adds to a file that is there: before the line `}` that closes `block`, or at the end.
struct Row {
    path: &'static str,
    block: Option<&'static str>,
    template: &'static str,
}

const ROWS: [Row; 5] = [
    Row {
        path: "crates/tessl/src/plan.rs",
        block: Some("pub enum Desc {"),
        template: include_str!("../templates/variant.rs.txt"),
    },
    Row {
        path: "crates/tessl/src/args.rs",
        block: Some("args! {"),
        template: include_str!("../templates/args.rs.txt"),
    },
    Row { path: "crates/tessl/src/nn/desc.rs", block: None, template: include_str!("../templates/desc.rs.txt") },
    Row { path: "crates/tessl/src/nn/mod.rs", block: None, template: "pub use desc::@Name@Desc;\n" },
    Row { path: "crates/tessl/src/nn/mod.rs", block: None, template: "pub use @family@::@Name@;\n" },
];

const BY_HAND: &str = include_str!("../templates/by-hand.txt");

pub(crate) fn run(cx: &Context, args: &[String]) -> Result<(), String> {
    let (name, family) = match args {
        [name, flag, family] if flag == "--family" => (name, family),
        [flag, family, name] if flag == "--family" => (name, family),
        _ => return Err("usage: cargo xtask new-op NAME --family FAMILY  (rms_norm --family norm)".to_owned()),
    };
    let op = Op::new(name, family)?;
    for path in op.write(&cx.root)? {
        println!("wrote {path}");
    }
    print!("\n{}", op.fill(BY_HAND));
    Ok(())
}

struct Op<'a> {
    name: &'a str,
    family: &'a str,
}

impl<'a> Op<'a> {
    fn new(name: &'a str, family: &'a str) -> Result<Self, String> {
        for word in [name, family] {
            let plain = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if !plain || !word.starts_with(|c: char| c.is_ascii_lowercase()) {
                return Err(format!("`{word}`: names are snake_case, as in rms_norm"));
            }
        }
        Ok(Op { name, family })
    }

    fn fill(&self, template: &str) -> String {
        let names = template.replace("@name@", self.name).replace("@Name@", &camel(self.name));
        names.replace("@NAME@", &self.name.to_uppercase()).replace("@family@", self.family)
    }

    /// Writes all layers and rows below `root`, and nothing when one of them has the op already.
    fn write(&self, root: &Path) -> Result<Vec<String>, String> {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        let read = |path: &str| fs::read_to_string(root.join(path)).map_err(|e| format!("{path}: {e}"));
        for layer in &LAYERS {
            let path = self.fill(layer.path);
            let (head, item) =
                layer.template.split_once(ITEM).ok_or_else(|| format!("{path}: template without `{ITEM}`"))?;
            let item = self.fill(item);
            let text = if root.join(&path).exists() {
                read(&path)?
            } else {
                if let Some(parent) = layer.parent {
                    files.insert(parent.to_owned(), with_module(&read(parent)?, self.family));
                }
                self.fill(head)
            };
            let names = [self.name.to_owned(), camel(self.name), self.name.to_uppercase()];
            let named = |line: &&str| !line.starts_with("//") && names.iter().any(|name| line.contains(name));
            let first = item.lines().find(named).ok_or_else(|| format!("{path}: template that names no op"))?;
            if text.contains(first) {
                return Err(format!("{path} has `{first}` already"));
            }
            files.insert(path, format!("{}\n\n{item}", text.trim_end()));
        }
        for row in &ROWS {
            let text = files.remove(row.path).map_or_else(|| read(row.path), Ok)?;
            let lines = self.fill(row.template);
            let new = match row.block {
                Some(block) => at_end_of(&text, block, &lines).ok_or_else(|| format!("{}: no `{block}`", row.path))?,
                None if lines.lines().count() > 1 => format!("{text}\n{lines}"),
                None => text + &lines,
            };
            files.insert(row.path.to_owned(), new);
        }
        for (path, text) in &files {
            let file = root.join(path);
            let folder = file.parent().unwrap_or(root);
            fs::create_dir_all(folder).and_then(|()| fs::write(&file, text)).map_err(|e| format!("{path}: {e}"))?;
        }
        Ok(files.into_keys().collect())
    }
}

/// The text with `lines` before the `}` that closes `block`.
fn at_end_of(text: &str, block: &str, lines: &str) -> Option<String> {
    let start = text.find(&format!("\n{block}\n"))?;
    let end = start + text[start..].find("\n}\n")? + 1;
    Some([&text[..end], lines, &text[end..]].concat())
}

fn camel(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

/// The text with `mod FAMILY;` in its place among the other modules, as visible as they are.
fn with_module(text: &str, family: &str) -> String {
    let module = |line: &str| {
        let (visibility, rest) = line.split_at(line.find("mod ")?);
        let name = rest.strip_prefix("mod ")?.strip_suffix(';')?;
        let alone = visibility.is_empty() || (visibility.starts_with("pub") && visibility.ends_with(' '));
        alone.then(|| (visibility.to_owned(), name.to_owned()))
    };
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let modules: Vec<(usize, (String, String))> =
        lines.iter().enumerate().filter_map(|(i, line)| Some((i, module(line)?))).collect();
    if modules.iter().any(|(_, (_, name))| name == family) {
        return text.to_owned();
    }
    let at = modules.iter().find(|(_, (_, name))| name.as_str() > family).map(|(i, _)| *i);
    let after_last = modules.last().map(|(i, _)| i + 1);
    let after_head = || lines.iter().position(|line| !line.starts_with("//!")).unwrap_or(lines.len());
    let visibility = modules.first().map_or("pub ", |(_, (visibility, _))| visibility).to_owned();
    let at = at.or(after_last).unwrap_or_else(after_head);
    lines.insert(at, format!("{visibility}mod {family};"));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A folder of its own with every file that rows are added to.
    fn folder(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("new-op-{name}-{}", std::process::id()));
        let text = "//! Head.\n\nmod attention;\nmod rope;\n\npub enum Desc {\n    A,\n}\n\nargs! {\n    struct A {\n    }\n}\n";
        let parents = LAYERS.iter().filter_map(|layer| layer.parent).chain(ROWS.iter().map(|row| row.path));
        for path in parents {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        root
    }

    #[test]
    fn five_layers_their_modules_and_rows() {
        let root = folder("new");
        Op::new("rms_norm", "norm").unwrap().write(&root).unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        for layer in &LAYERS {
            let text = read(&layer.path.replace("@family@", "norm"));
            assert!(!text.contains('@'), "{text}");
            assert!(["rms_norm", "RmsNorm"].iter().any(|name| text.contains(name)), "{text}");
        }
        assert!(read("crates/tessl/src/nn/mod.rs").contains("mod attention;\nmod norm;\nmod rope;\n"));
        assert!(read("crates/tessl/src/nn/mod.rs").ends_with("pub use desc::RmsNormDesc;\npub use norm::RmsNorm;\n"));
        assert!(
            read("crates/tessl/src/plan.rs")
                .contains("    A,\n    /// `rms_norm`.\n    RmsNorm(crate::nn::RmsNormDesc),\n}")
        );
        assert!(
            read("crates/tessl/src/args.rs")
                .contains("    }\n    /// `rms_norm`, row by row.\n    struct RmsNormArgs {")
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_second_op_joins_its_family_once() {
        let root = folder("second");
        Op::new("rms_norm", "norm").unwrap().write(&root).unwrap();
        Op::new("layer_norm", "norm").unwrap().write(&root).unwrap();
        let text = fs::read_to_string(root.join("crates/tessl/src/nn/norm.rs")).unwrap();
        assert!(text.contains("struct RmsNorm") && text.contains("struct LayerNorm"));
        assert_eq!(text.matches("//!").count(), 1);
        assert!(Op::new("layer_norm", "norm").unwrap().write(&root).unwrap_err().contains("already"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn names_are_snake_case() {
        assert!(Op::new("RmsNorm", "norm").is_err() && Op::new("x", "../y").is_err() && Op::new("_x", "y").is_err());
        assert_eq!(camel("rms_norm2"), "RmsNorm2");
    }

    #[test]
    fn modules_keep_their_order_and_visibility() {
        assert_eq!(with_module("pub mod a;\npub mod c;\n", "b"), "pub mod a;\npub mod b;\npub mod c;\n");
        assert_eq!(with_module("mod a;\n", "b"), "mod a;\nmod b;\n");
        assert_eq!(with_module("//! Head.\n", "b"), "//! Head.\npub mod b;\n");
        assert_eq!(with_module("mod a;\nmod b;\n", "b"), "mod a;\nmod b;\n");
    }
}
