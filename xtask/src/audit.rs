//! `cargo xtask audit`: tile geometry in plan tables against the constants in GEMM kernels.
//!
//! A kernel file says which entry points its constants hold for:
//!
//! ```text
//! // AUDIT: kernel=gemm_simd_* TILE_M=32 TILE_N=32 TILE_K=16 THREADS=128
//! constant constexpr uint TILE_M = 32;
//! ```
//!
//! A number has a `constexpr` of the same name and value between this line and the next such line, or above the first
//! one. Where the plan chooses among compiled tiles, a value is a product of numbers, of constants that the plan
//! passes (`plan` for the one of the same name) and of `constexpr` arrays indexed by such a constant:
//!
//! ```text
//! // AUDIT: kernel=gemm_mma_* TILE_M=TILES_M[TILE] THREADS=32*WARPS_M[TILE]*WARPS_N[TILE] STAGES=plan
//! constexpr uint TILES_M[] = {128, 64};
//! ```
//!
//! The plans come from `tessl plan --tiles --json`: a list of
//! `{"device", "kernel", "tile": [m, n, k], "threads", "stages", "constants": {..}, "reason"}`.

use crate::context::Context;
use crate::process;
use crate::tree::Tree;
use serde_json::Value as Json;

const FOLDERS: [(&str, &str); 2] = [("crates/tessl/kernels/metal", ".metal"), ("crates/tessl/kernels/cuda", ".cu")];
const MARK: &str = "// AUDIT:";

/// One `AUDIT` line.
#[derive(Debug)]
struct Note {
    file: String,
    pattern: String,
    constants: Vec<(String, Value)>,
}

/// The value of a name in a note.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    /// A `constexpr` of the same name.
    Number(u64),
    /// Known once a plan is.
    Product(Vec<Factor>),
}

#[derive(Debug, PartialEq, Eq)]
enum Factor {
    Number(u64),
    /// A constant that the plan passes to the compiler.
    Passed(String),
    /// An element of an array in the kernel, by the constant that picks it.
    Element(Vec<u64>, String),
}

/// One row of the plan tables.
#[derive(Debug)]
struct Row {
    kernel: String,
    reason: String,
    /// `TILE_M` and so on, by the names used in kernels.
    geometry: Vec<(&'static str, u64)>,
    constants: Vec<(String, u64)>,
}

/// Whether there is something to compare: kernels, and a command line that lists plans.
pub(crate) fn possible(tree: &Tree) -> bool {
    let listed = tree.below("crates/tessl-cli/src", ".rs").any(|(_, text)| text.contains("tiles"));
    listed && FOLDERS.iter().any(|(folder, end)| tree.below(folder, end).next().is_some())
}

pub(crate) fn run(cx: &Context) -> Result<(), String> {
    let (notes, mut findings) = notes(&Tree::load(cx)?);
    let plan =
        ["run", "--quiet", "--profile", "ci", "-p", "tessl-cli", "--bin", "tessl", "--", "plan", "--tiles", "--json"];
    let rows = rows(&process::capture(cx.cargo().args(plan))?)?;
    findings.extend(compare(&notes, &rows));
    for finding in &findings {
        println!("audit: {finding}");
    }
    println!("audit: {} plan rows, {} kernel notes, {} findings", rows.len(), notes.len(), findings.len());
    if findings.is_empty() { Ok(()) } else { Err(format!("{} findings", findings.len())) }
}

/// The notes of all GEMM kernel files, and what is wrong with them by themselves.
fn notes(tree: &Tree) -> (Vec<Note>, Vec<String>) {
    let mut notes = Vec::new();
    let mut findings = Vec::new();
    for (path, text) in FOLDERS.iter().flat_map(|(folder, end)| tree.below(folder, end)) {
        let before = notes.len();
        let head = text.split(MARK).next().unwrap_or_default();
        for section in text.split(MARK).skip(1) {
            match note(path, text, section.lines().next().unwrap_or_default()) {
                Ok(note) => {
                    findings.extend(check_constants(&note, head, section));
                    notes.push(note);
                }
                Err(problem) => findings.push(format!("{path}: {problem}")),
            }
        }
        let is_gemm =
            path.rsplit('/').next().is_some_and(|name| name.starts_with("gemm") || name.starts_with("matmul"));
        if is_gemm && notes.len() == before {
            findings.push(format!("{path}: a GEMM kernel file without an `{MARK}` line"));
        }
        let covered = |name: &str| notes[before..].iter().any(|note| matches(&note.pattern, name));
        findings.extend(
            entry_points(text)
                .filter(|name| is_gemm && !covered(name))
                .map(|name| format!("{path}: no `{MARK}` line covers kernel {name}")),
        );
    }
    (notes, findings)
}

fn note(file: &str, text: &str, line: &str) -> Result<Note, String> {
    let pairs: Option<Vec<(&str, &str)>> = line.split_whitespace().map(|word| word.split_once('=')).collect();
    let pairs = pairs.ok_or_else(|| format!("`{line}`: wanted NAME=VALUE"))?;
    let Some((("kernel", pattern), rest)) = pairs.split_first() else {
        return Err(format!("`{line}`: wanted kernel=PATTERN first"));
    };
    let constants: Result<_, String> = rest.iter().map(|(n, v)| Ok(((*n).to_owned(), value(n, v, text)?))).collect();
    Ok(Note { file: file.to_owned(), pattern: (*pattern).to_owned(), constants: constants? })
}

fn value(name: &str, value: &str, text: &str) -> Result<Value, String> {
    if let Ok(number) = value.parse() {
        return Ok(Value::Number(number));
    }
    let factor = |factor: &str| match (factor.parse(), factor.strip_suffix(']').and_then(|f| f.split_once('['))) {
        (Ok(number), _) => Ok(Factor::Number(number)),
        (_, Some((list, index))) => {
            let elements = array(text, list).ok_or_else(|| format!("no constexpr array of numbers `{list}`"))?;
            Ok(Factor::Element(elements, index.to_owned()))
        }
        _ if factor == "plan" => Ok(Factor::Passed(name.to_owned())),
        _ => Ok(Factor::Passed(factor.to_owned())),
    };
    Ok(Value::Product(value.split('*').map(factor).collect::<Result<_, String>>()?))
}

/// The elements of `constexpr TYPE NAME[] = {1, 2}`.
fn array(text: &str, name: &str) -> Option<Vec<u64>> {
    let line = text.lines().find(|line| line.contains("constexpr") && line.contains(&format!(" {name}[")))?;
    let elements = line.split_once('{')?.1.split_once('}')?.0;
    elements.split(',').map(|e| e.trim().parse().ok()).collect()
}

impl Value {
    /// What the kernel of this plan row is compiled with.
    fn under(&self, row: &Row) -> Option<u64> {
        let passed = |name: &String| row.constants.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        match self {
            Value::Number(number) => Some(*number),
            Value::Product(factors) => factors.iter().try_fold(1, |product: u64, factor| {
                product.checked_mul(match factor {
                    Factor::Number(number) => *number,
                    Factor::Passed(name) => passed(name)?,
                    Factor::Element(list, index) => *list.get(usize::try_from(passed(index)?).ok()?)?,
                })
            }),
        }
    }
}

/// Each number of the note is the value of a `constexpr` in its section, or else above the first section.
fn check_constants(note: &Note, head: &str, section: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, wanted) in &note.constants {
        let Value::Number(wanted) = wanted else { continue };
        match constexpr(section, name).or_else(|| constexpr(head, name)) {
            Some(found) if found == *wanted => {}
            Some(found) => findings.push(format!("{}: {name} is {found}, its note says {wanted}", note.file)),
            None => findings.push(format!("{}: no constexpr {name} for kernel={}", note.file, note.pattern)),
        }
    }
    findings
}

/// The value of `constexpr TYPE NAME = NUMBER`, or `constexpr TYPE A = 1, NAME = 2`.
fn constexpr(text: &str, name: &str) -> Option<u64> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.filter(|line| line.contains("constexpr")).find_map(|line| {
        line.split([',', ';']).find_map(|part| {
            let (left, right) = part.split_once('=')?;
            let same = left.split_whitespace().last() == Some(name);
            same.then(|| right.trim().trim_end_matches(['u', 'U']).parse().ok())?
        })
    })
}

/// Names in `KERNEL(name, ..`. Those that macros build are seen in the plans only.
fn entry_points(text: &str) -> impl Iterator<Item = &str> {
    let plain = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let code = text.lines().filter(|line| !line.ends_with('\\'));
    let names = code.filter_map(|line| line.trim_start().strip_prefix("KERNEL(")?.split([',', ')']).next());
    names.map(str::trim).filter(move |name| plain(name))
}

/// `*` stands for any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            tail.char_indices().map(|(i, _)| i).chain([tail.len()]).any(|i| matches(rest, &tail[i..]))
        }),
    }
}

fn rows(json: &str) -> Result<Vec<Row>, String> {
    let list: Json = serde_json::from_str(json).map_err(|e| format!("tessl plan --tiles --json: {e}"))?;
    let list = list.as_array().ok_or("tessl plan --tiles --json: wanted a list")?;
    list.iter().filter(|row| row["device"] != "cpu").map(row).collect()
}

fn row(row: &Json) -> Result<Row, String> {
    let number = |value: &Json| value.as_u64().ok_or_else(|| format!("not a whole number in {row}"));
    let text = |key: &str| row[key].as_str().map(str::to_owned).ok_or_else(|| format!("no `{key}` in {row}"));
    let geometry = vec![
        ("TILE_M", number(&row["tile"][0])?),
        ("TILE_N", number(&row["tile"][1])?),
        ("TILE_K", number(&row["tile"][2])?),
        ("THREADS", number(&row["threads"])?),
        ("STAGES", number(&row["stages"])?),
    ];
    let constants = row["constants"].as_object().into_iter().flatten();
    let constants: Result<_, String> = constants.map(|(name, value)| Ok((name.clone(), number(value)?))).collect();
    Ok(Row { kernel: text("kernel")?, reason: text("reason")?, geometry, constants: constants? })
}

fn compare(notes: &[Note], rows: &[Row]) -> Vec<String> {
    let mut findings = Vec::new();
    for row in rows {
        let known: Vec<&Note> = notes.iter().filter(|note| matches(&note.pattern, &row.kernel)).collect();
        let [note] = known.as_slice() else {
            findings.push(format!(
                "{} ({}): {} notes match this kernel, wanted one",
                row.kernel,
                row.reason,
                known.len()
            ));
            continue;
        };
        for (name, value) in &note.constants {
            let planned = row.geometry.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            let (Some(planned), Some(compiled)) = (planned, value.under(row)) else {
                let why = &row.reason;
                findings.push(format!(
                    "{}: {} has {name}, which its plan row ({why}) does not give",
                    note.file, row.kernel
                ));
                continue;
            };
            if planned != compiled {
                let why = &row.reason;
                findings.push(format!(
                    "{}: {} is planned with {name} = {planned} ({why}), compiled with {compiled}",
                    note.file, row.kernel
                ));
            }
        }
    }
    let unused = notes.iter().filter(|note| !rows.iter().any(|row| matches(&note.pattern, &row.kernel)));
    findings.extend(unused.map(|note| format!("{}: no plan row uses kernel={}", note.file, note.pattern)));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "// gemm\n// AUDIT: kernel=gemm_simd_* TILE_M=32 TILE_N=64 THREADS=128\n\
        constant constexpr uint TILE_M = 32, TILE_N = 64;\nconstant constexpr uint THREADS = 128;\n\
        KERNEL(gemm_simd_f32, THREADS, IN(float, a, 0))\n";
    const PLANS: &str = r#"[{"device":"metal","kernel":"gemm_simd_f32","tile":[32,64,16],"threads":128,"stages":1,
        "constants":{},"reason":"simd"},{"device":"cpu","kernel":"x"}]"#;

    fn audit(kernel: &str, plans: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/tessl/kernels/metal/gemm_simd.metal", kernel)]);
        let (notes, mut findings) = notes(&tree);
        findings.extend(compare(&notes, &rows(plans).unwrap()));
        findings
    }

    #[test]
    fn agreement_has_no_findings() {
        assert_eq!(audit(KERNEL, PLANS), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_disagreement_is_found() {
        let note_only = KERNEL.replace("uint THREADS = 128", "uint THREADS = 256");
        assert!(audit(&note_only, PLANS)[0].contains("THREADS is 256, its note says 128"));
        let planned = PLANS.replace("[32,64,16]", "[32,32,16]");
        assert!(audit(KERNEL, &planned)[0].contains("planned with TILE_N = 32"));
        let unknown = PLANS.replace("gemm_simd_f32", "gemm_new");
        assert!(audit(KERNEL, &unknown)[0].contains("0 notes match"));
        assert!(audit(KERNEL, "[]")[0].contains("no plan row uses"));
        let unmarked = KERNEL.replace("AUDIT", "audit");
        assert!(audit(&unmarked, "[]")[0].contains("without an"));
        let uncovered = format!("{KERNEL}KERNEL(gemm_other, 32)\n");
        assert!(audit(&uncovered, PLANS)[0].contains("covers kernel gemm_other"));
    }

    #[test]
    fn constants_from_the_plan() {
        let kernel = "// AUDIT: kernel=gemm_w* TILE_M=plan\n";
        let plans = PLANS.replace("gemm_simd_f32", "gemm_w").replace("{}", r#"{"TILE_M":32}"#);
        assert_eq!(audit(kernel, &plans), Vec::<String>::new());
        assert!(audit(kernel, &plans.replace(r#":32}"#, r#":64}"#))[0].contains("compiled with 64"));
    }

    #[test]
    fn arrays_indexed_by_the_plan() {
        let kernel = "// AUDIT: kernel=gemm_w TILE_M=TM[TILE] THREADS=32*WARPS[TILE]\n\
                      constexpr uint TM[] = {16, 32};\nconstexpr uint WARPS[] = {2, 4};\n";
        let plans = PLANS.replace("gemm_simd_f32", "gemm_w").replace("{}", r#"{"TILE":1}"#);
        assert_eq!(audit(kernel, &plans), Vec::<String>::new());
        assert_eq!(audit(kernel, &plans.replace(r#""TILE":1"#, r#""TILE":0"#)).len(), 2);
        assert!(audit(kernel, &plans.replace(r#""TILE":1"#, r#""TILE":2"#))[0].contains("does not give"));
    }

    #[test]
    fn patterns_and_values() {
        assert!(matches("a_*_nt", "a_f32_nt") && matches("a*", "a") && !matches("a_*", "b_x") && !matches("a", "ab"));
        assert_eq!(constexpr("constexpr int A = 1, B = 2u;", "B"), Some(2));
        assert_eq!(constexpr("constexpr int A = C / 2;", "A"), None);
        assert_eq!(constexpr("int A = 3;", "A"), None);
    }
}
