//! Kernel sources: prelude, argument blocks and kernel text become one translation unit.

const METAL: &str = include_str!("../../../kernels/prelude/metal.h");
const ARGS: &str = include_str!("../../../kernels/prelude/args.h");
const PACK: &str = include_str!("../../../kernels/prelude/pack.h");
const ROWS: &str = include_str!("../../../kernels/prelude/rows.h");
const ACTIVATION: &str = include_str!("../../../kernels/prelude/activation.h");
const TURN: &str = include_str!("../../../kernels/prelude/turn.h");
const WEIGHTS: &str = include_str!("../../../kernels/prelude/weights.h");
const EPILOGUE: &str = include_str!("../../../kernels/prelude/epilogue.h");

/// The line by which a caller's source gets the prelude.
const USER_HEADER: &str = "#include \"tessl.h\"";

/// Every kernel file of this device: stem, file name, text. The build script lists the folders.
const MODULES: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/kernels/metal_modules.rs"));

fn prelude() -> String {
    [METAL, ARGS, PACK, ROWS, ACTIVATION, TURN, WEIGHTS, EPILOGUE].join("\n")
}

/// The translation unit of the library's module with this stem; compiler messages point into the kernel's own file.
pub(super) fn module(stem: &str) -> Option<String> {
    let (_, file, text) = MODULES.iter().find(|m| m.0 == stem)?;
    Some(prelude() + "\n#line 1 \"" + file + "\"\n" + text)
}

/// A caller's source, with the prelude in the place of its include line.
pub(super) fn user(text: &str) -> String {
    text.replacen(USER_HEADER, &prelude(), 1)
}

/// Whether this kernel reports faults: it takes the status block and its sequence number as last buffers.
pub(super) fn reports(source: &str, kernel: &str) -> bool {
    let head = format!("KERNEL({kernel},");
    source.split(&head).nth(1).and_then(|rest| rest.split('{').next()).is_some_and(|p| p.contains("STATUS("))
}

/// Threads of a threadgroup that a kernel declares.
pub(super) fn threads(source: &str, kernel: &str) -> Option<usize> {
    let head = format!("KERNEL({kernel},");
    source.split(&head).nth(1)?.split(',').next()?.trim().parse().ok()
}

/// The type of a function constant, as the text declares it.
pub(super) fn constant_type<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    source.lines().filter_map(|line| line.trim_start().strip_prefix("FCONST(")).find_map(|declaration| {
        let mut parts = declaration.split(',').map(str::trim);
        let kind = parts.next()?;
        (parts.next()? == name).then_some(kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_self_contained_and_keeps_its_file_name() {
        for (stem, file, _) in MODULES {
            let source = module(stem).unwrap();
            let foreign =
                source.lines().filter(|l| l.trim_start().starts_with("#include")).filter(|l| !l.contains('<'));
            assert_eq!(foreign.count(), 0, "{stem}");
            assert!(source.contains(&format!("#line 1 \"{file}\"")));
            let order = ["#define KERNEL", "struct GemmArgs", "activate("].map(|s| source.find(s));
            assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{stem}: {order:?}");
        }
    }

    #[test]
    fn faults_and_constants_are_seen_in_the_text() {
        let embed = module("embed").unwrap();
        assert!(reports(&embed, "embedding_bf16") && !reports(&module("norm").unwrap(), "rms_norm_f32_f32"));
        assert_eq!(constant_type(&embed, "VEC16"), Some("bool"));
        assert_eq!(constant_type(&embed, "VEC"), None);
        assert_eq!((threads(&embed, "embedding_bf16"), threads(&embed, "embedding")), (Some(256), None));
        assert!(user("// mine\n#include \"tessl.h\"\nKERNEL(k, 32, OUT(float, y, 0)) {}").contains("struct GemmArgs"));
    }
}
