#!/bin/sh
# Makes a sysroot with which Debian's rustc-web builds for arm64 Linux: its standard library for that architecture, of the
# same version, is a package of the same archive. Programs run under qemu-user.
#
#   sh scripts/arm64_std.sh target/arm64-sysroot
#
# Does nothing when the folder was made for the same compiler. Needs the network.
set -eu
out=$1
target=aarch64-unknown-linux-gnu
version=$(dpkg-query --show --showformat '${Version}' rustc-web)
if [ -f "$out/version" ] && [ "$(cat "$out/version")" = "$version" ]; then
  exit 0
fi

rm -rf "$out"
mkdir -p "$out/lists/partial" "$out/cache/archives/partial"
out=$(cd "$out" && pwd)
# Lists of their own: the machine's packages stay those of one architecture.
apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State::status=/dev/null -o Dir::State::Lists="$out/lists" -o Dir::Cache="$out/cache" "$@"
}
apt update
(cd "$out" && apt download "libstd-rust-web-dev=$version")
dpkg-deb -x "$out"/libstd-rust-web-dev_*.deb "$out/package"
mv "$out/package/usr/lib" "$out/lib"
[ -d "$out/lib/rustlib/$target" ]
rm -rf "$out/package" "$out/lists" "$out/cache" "$out"/*.deb
echo "$version" > "$out/version"
