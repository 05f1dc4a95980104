#!/bin/sh
# Runs the tests of this bundle on a GPU (x86-64 Linux, NVIDIA driver with NVRTC; no Rust needed).
#
#   sh run.sh [FILTER..]          FILTER: parts of test names
#
# TESSL_REQUIRE (cuda unless set) turns "no such device" into a failure. The last line is the sum.
# The programs need the glibc of the machine that built them, or a later one; a loader error about GLIBC_2.xx says so.
set -u
cd "$(dirname "$0")"
chmod +x tests/* bin/* 2>/dev/null
TESSL_REQUIRE=${TESSL_REQUIRE-cuda}
TESSL_SKIP_LOG=$PWD/skips.tsv
RUST_BACKTRACE=${RUST_BACKTRACE-1}
export TESSL_REQUIRE TESSL_SKIP_LOG RUST_BACKTRACE
: > skips.tsv
: > table.txt

echo "commit $(cat commit)"
ldd --version 2>&1 | head -n 1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1
[ -x bin/tessl ] && bin/tessl doctor

passed=0 failed=0 skipped=0
for test in tests/*; do
  name=$(basename "$test")
  start=$(date +%s)
  "$test" --test-threads=1 "$@" > "$name.log" 2>&1
  status=$?
  set_counts() { p=$1 f=$2 s=$3; }
  set_counts $(awk '/^test result:/ { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$name.log")
  # A test program that dies prints no result.
  if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  if [ "$f" -ne 0 ]; then
    grep -v '\.\.\. ok$' "$name.log" | tail -n 60
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  echo "$name: $p passed, $f failed, $s skipped, $(($(date +%s) - start)) s, status $status" >> table.txt
done
sort -u skips.tsv | sed 's/\t/: /; s/^/skipped: /'
cat table.txt
skipped=$((skipped + $(sort -u skips.tsv | wc -l)))
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
