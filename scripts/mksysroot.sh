#!/bin/sh
# Makes a sysroot that is good for `cargo check` (metadata only, no code) for a target that rustup cannot add here,
# from Debian's rustc-web and rust-web-src, whose versions agree by packaging:
#
#   sh scripts/mksysroot.sh target/darwin-sysroot aarch64-apple-darwin
#   RUSTC=/usr/bin/rustc CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="--sysroot $PWD/target/darwin-sysroot" \
#     cargo check --target aarch64-apple-darwin
#
# Does nothing when the folder was made by the same compiler. About 30 s, offline, no linker.
set -eu
out=$1
target=$2
src=/usr/lib/rustlib/src/rust/library
version=$(/usr/bin/rustc -vV)
if [ -f "$out/version" ] && [ "$(cat "$out/version")" = "$version" ]; then
  exit 0
fi

rm -rf "$out"
mkdir -p "$out/lib/rustlib/$target/lib"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/.cargo"
# The test and proc_macro crates come with `sysroot`; `cargo check --tests` needs them.
cat > "$work/Cargo.toml" <<END
[package]
name = "sysroot-check"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies.std]
path = "$src/std"
features = ["panic-unwind"]
[dependencies.sysroot]
path = "$src/sysroot"
[patch.crates-io]
rustc-std-workspace-core = { path = "$src/rustc-std-workspace-core" }
rustc-std-workspace-alloc = { path = "$src/rustc-std-workspace-alloc" }
rustc-std-workspace-std = { path = "$src/rustc-std-workspace-std" }
END
cat > "$work/.cargo/config.toml" <<END
[source.crates-io]
replace-with = "packaged"
[source.packaged]
directory = "$src/vendor"
END
cp "$src/Cargo.lock" "$work/"
: > "$work/lib.rs"

cd "$work"
unset CARGO_TARGET_DIR
export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 __CARGO_DEFAULT_LIB_METADATA=sys
export RUSTFLAGS="-Zforce-unstable-if-unmarked -Aunexpected_cfgs"
"${CARGO:-cargo}" check --quiet --release --target "$target" --offline
cp "target/$target/release/deps/"*.rmeta "$out/lib/rustlib/$target/lib/"
echo "$version" > "$out/version"
