//! Rules for kernel texts that the host compiler cannot enforce, because it accepts what Metal rejects or reads
//! differently. The texts are few and formatted alike, so line-wise matching is enough.

use std::fmt;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Line in the text, from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

const SCALARS: [&str; 11] =
    ["float", "half", "bfloat", "uint", "int", "ushort", "short", "uchar", "char", "ulong", "void"];
const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// Checks one kernel text (without prelude). An empty list means that every rule holds:
///
/// - no C cast between vectors, `(float4)v`: clang reinterprets bits where Metal converts; write `vcast<float4>(v)`;
/// - every pointer names its address space: Metal requires it, the host does not;
/// - no attribute: only the prelude knows how each compiler spells them;
/// - buffer indices of a kernel are 0, 1, 2, .. in order of the parameters: the simulator binds by position;
/// - no `#include` except Metal Performance Primitives: sources must be self-contained.
pub fn lint(text: &str) -> Vec<Finding> {
    let code = strip_comments(text);
    let mut findings = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let mut report = |message: String| findings.push(Finding { line: i + 1, message });
        if let Some(cast) = vector_cast(line) {
            report(format!("C cast to a vector `({cast})`; use vcast<{cast}>(..) or as_type<{cast}>(..)"));
        }
        if let Some(pointer) = bare_pointer(line) {
            report(format!("`{pointer}*` has no address space; write device, constant, threadgroup or thread"));
        }
        if line.contains("[[") {
            report("an attribute; only the prelude may write attributes".into());
        }
        if line.trim_start().starts_with("#include") && !line.contains("<MetalPerformancePrimitives/") {
            report("#include; the builder puts the prelude in front".into());
        }
    }
    findings.extend(buffer_indices(&code));
    findings.sort_by_key(|f| f.line);
    findings
}

/// Blanks comments and keeps the line structure.
fn strip_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut block = false;
    for line in text.lines() {
        let mut rest = line;
        while !rest.is_empty() {
            if block {
                match rest.find("*/") {
                    Some(end) => (block, rest) = (false, &rest[end + 2..]),
                    None => break,
                }
            } else {
                let (line_comment, block_comment) = (rest.find("//"), rest.find("/*"));
                match (line_comment, block_comment) {
                    (Some(at), b) if b.is_none_or(|b| at < b) => {
                        out += &rest[..at];
                        break;
                    }
                    (_, Some(at)) => {
                        out += &rest[..at];
                        (block, rest) = (true, &rest[at + 2..]);
                    }
                    _ => {
                        out += rest;
                        break;
                    }
                }
            }
        }
        out.push('\n');
    }
    out
}

fn is_vector(word: &str) -> bool {
    word.strip_suffix(['2', '3', '4']).is_some_and(|base| SCALARS.contains(&base))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `(float4)x`: a vector type alone in parentheses with an operand after it.
fn vector_cast(line: &str) -> Option<&str> {
    line.match_indices('(').find_map(|(open, _)| {
        let inside = line[open + 1..].split(')').next()?;
        let after = line[open + 1 + inside.len()..].strip_prefix(')')?.trim_start();
        let operand = after.starts_with(|c: char| is_word(c) || c == '(' || c == '-');
        (is_vector(inside.trim()) && operand).then_some(inside.trim())
    })
}

/// `float* p` without `device` and the like in the same declaration.
fn bare_pointer(line: &str) -> Option<&str> {
    line.match_indices('*').find_map(|(star, _)| {
        let before = line[..star].trim_end();
        let start = before.rfind(|c: char| !is_word(c)).map_or(0, |i| i + 1);
        let word = &before[start..];
        // A product has a space before the star and a value after it; types are written `T*`.
        let typed = line[..star].ends_with(is_word) && !line[star + 1..].starts_with(is_word);
        let is_type = SCALARS.contains(&word) || is_vector(word) || matches!(word.as_bytes(), [b'A'..=b'Z']);
        let declaration = before[..start].rsplit(['(', ',', ';', '{', '=']).next().unwrap_or("");
        let spaced = declaration.split(|c: char| !is_word(c)).any(|w| SPACES.contains(&w));
        (typed && is_type && !spaced).then_some(word)
    })
}

/// Indices in each `KERNEL(..)` header.
fn buffer_indices(code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, _) in code.match_indices("KERNEL(") {
        let line = code[..at].lines().count().max(1);
        let header = code[at..].split('{').next().unwrap_or("");
        let mut expected = 0;
        for (open, _) in header.match_indices('(') {
            let name_start = header[..open].rfind(|c: char| !is_word(c)).map_or(0, |i| i + 1);
            let name = &header[name_start..open];
            if !["IN", "IN_ALIASED", "OUT", "SCRATCH", "ARGS", "STATUS"].contains(&name) {
                continue;
            }
            let inside = header[open + 1..].split(')').next().unwrap_or("");
            let index = inside.rsplit(',').next().unwrap_or("").trim();
            if index != expected.to_string() {
                let message = format!("{name}({inside}): index {index} where {expected} is next");
                findings.push(Finding { line, message });
            }
            expected += if name == "STATUS" { 2 } else { 1 };
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::lint;

    fn messages(text: &str) -> Vec<String> {
        lint(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_rule_reports_its_line() {
        assert_eq!(messages("a;\nfloat4 v = (float4)u;").len(), 1);
        assert!(messages("\nDEVFN void f(float* p) {}")[0].starts_with("line 2: `float*`"));
        assert_eq!(messages("const uint4* q = (const device uint4*)p;").len(), 1);
        assert_eq!(messages("template <typename T> void f(const T* p) {}").len(), 1);
        assert_eq!(messages("kernel void f(uint i [[thread_position_in_grid]]) {}").len(), 1);
        assert_eq!(messages("#include <metal_stdlib>").len(), 1);
        assert_eq!(messages("KERNEL(f, 32, IN(float, x, 0), OUT(float, y, 2), ARGS(A, p, 2)) {}").len(), 1);
        assert_eq!(messages("KERNEL(f, 32, IN(float, x, 0), ARGS(A, p, 1), STATUS(2)) {}"), Vec::<String>::new());
    }

    #[test]
    fn what_metal_accepts_passes() {
        for line in [
            "DEVFN void f(const device float* p, threadgroup half* q, thread float* v) {}",
            "const device uint4* q = (const device uint4*)p;",
            "float y = x * scale * (w + 1.0f); // (float4)x in a comment",
            "uint4 u = uint4(0u); v = (a) * b; /* float* */",
            "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>",
            "a = b * c; d = n*m;",
        ] {
            assert_eq!(messages(line), Vec::<String>::new(), "{line}");
        }
    }
}
