#!/bin/sh
# Makes gen/objc2-metal: the published crate with its link to the Metal framework left to Apple systems. Everywhere
# else rustc refuses to name a framework.
set -eu
cd "$(dirname "$0")"
manifest=$(${CARGO:-cargo} metadata --format-version 1 --locked --manifest-path ../../../Cargo.toml |
  tr ',' '\n' | sed -n 's/^"manifest_path":"\(.*\/objc2-metal-[0-9.]*\/Cargo.toml\)".*$/\1/p' | head -n 1)
test -n "$manifest"
source=$(dirname "$manifest")
if [ -f gen/source ] && [ "$(cat gen/source)" = "$source" ]; then
  exit 0
fi
rm -rf gen
mkdir gen
cp -r "$source" gen/objc2-metal
sed -i 's/^#\[link(name = "Metal", kind = "framework")\]/#[cfg_attr(target_vendor = "apple", link(name = "Metal", kind = "framework"))]/' \
  gen/objc2-metal/src/generated/mod.rs
printf '%s' "$source" > gen/source
