//! `cargo xtask new-op NAME --family FAMILY`: skeletons of a new op in each layer, by templates.

use crate::context::Context;
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
        path: "crates/tessl/src/device/cpu/nn/@family@.rs",
        template: include_str!("../templates/cpu.rs.txt"),
        parent: Some("crates/tessl/src/device/cpu/nn/mod.rs"),
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
        template.replace("@name@", self.name).replace("@Name@", &camel(self.name)).replace("@family@", self.family)
    }

    /// Writes all layers below `root`, and nothing when one of them has the op already.
    fn write(&self, root: &Path) -> Result<Vec<String>, String> {
        let mut files: Vec<(String, String)> = Vec::new();
        for layer in &LAYERS {
            let path = self.fill(layer.path);
            let old = fs::read_to_string(root.join(&path)).ok();
            let (head, item) =
                layer.template.split_once(ITEM).ok_or_else(|| format!("{path}: template without `{ITEM}`"))?;
            let (head, item) = (self.fill(head), self.fill(item));
            let named =
                |line: &&str| !line.starts_with("//") && (line.contains(self.name) || line.contains(&camel(self.name)));
            let first = item.lines().find(named).unwrap_or_default();
            if old.as_deref().is_some_and(|text| text.contains(first)) {
                return Err(format!("{path} has `{first}` already"));
            }
            if let (None, Some(parent)) = (&old, layer.parent) {
                let text = fs::read_to_string(root.join(parent)).map_err(|e| format!("{parent}: {e}"))?;
                files.push((parent.to_owned(), with_module(&text, self.family)));
            }
            files.push((path, format!("{}\n{item}", old.unwrap_or(head).trim_end_matches('\n').to_owned() + "\n")));
        }
        for (path, text) in &files {
            let file = root.join(path);
            let folder = file.parent().unwrap_or(root);
            fs::create_dir_all(folder).and_then(|()| fs::write(&file, text)).map_err(|e| format!("{path}: {e}"))?;
        }
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }
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

    /// A folder of its own with the parents of every layer.
    fn folder(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("new-op-{name}-{}", std::process::id()));
        for parent in LAYERS.iter().filter_map(|layer| layer.parent) {
            fs::create_dir_all(root.join(parent).parent().unwrap()).unwrap();
            fs::write(root.join(parent), "//! Head.\n\nmod attention;\nmod rope;\n").unwrap();
        }
        root
    }

    #[test]
    fn five_layers_and_their_modules() {
        let root = folder("new");
        let written = Op::new("rms_norm", "norm").unwrap().write(&root).unwrap();
        assert_eq!(written.len(), 9);
        for layer in &LAYERS {
            let text = fs::read_to_string(root.join(layer.path.replace("@family@", "norm"))).unwrap();
            assert!(!text.contains('@'), "{text}");
            assert!(text.contains("rms_norm") || text.contains("RmsNorm"), "{text}");
        }
        let parent = fs::read_to_string(root.join("crates/tessl/src/nn/mod.rs")).unwrap();
        assert_eq!(parent, "//! Head.\n\nmod attention;\nmod norm;\nmod rope;\n");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_second_op_joins_its_family_once() {
        let root = folder("second");
        Op::new("rms_norm", "norm").unwrap().write(&root).unwrap();
        assert_eq!(Op::new("layer_norm", "norm").unwrap().write(&root).unwrap().len(), 5);
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
