//! Empty libraries under the names that objc2 links with; their functions are in src/runtime.rs.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    for name in ["objc", "gnustep-base"] {
        fs::write(out.join(format!("lib{name}.a")), "!<arch>\n").expect("OUT_DIR is writable");
    }
    println!("cargo:rustc-link-search=native={}", out.display());
}
