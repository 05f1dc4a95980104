#!/bin/sh
# Tests and measures the wgmma kernels on a Hopper GPU, from a folder with `tessl-lib` (the tests of the library),
# `tessl`, `bench_gemm_sweep`, `bench_nn_kernels`, `gemm_vs_torch.py` and `attention_vs_torch.py`:
#
#   sh run_hopper.sh OUT [PART..]     PART: smoke tests pairs tune more memcheck racecheck; all but the last by default;
#                                     attention, attention_cases, attention_tune, attention_pairs, attention_more,
#                                     attention_memcheck, attention_racecheck
#
# Each part has a time limit, prints a few lines, and leaves its log (and JSON) in OUT. Needs a driver, NVRTC 12.x or
# 13.x, and for pairs a python3 with torch.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
parts=${*:-smoke tests pairs tune more memcheck}
mkdir -p "$out"
chmod +x "$here/tessl-lib" "$here/tessl" "$here/bench_gemm_sweep" "$here/bench_nn_kernels" 2> /dev/null
export TESSL_REQUIRE=cuda RUST_BACKTRACE=1
if [ -z "${TESSL_CUDA_LIB-}" ] && [ ! -e /usr/local/cuda/lib64/libnvrtc.so.13 ]; then
  found=$(python3 -c 'import glob, sys; print(next((h for p in sys.path for h in glob.glob(p + "/nvidia/cu13/lib")), ""))')
  [ -n "$found" ] && export TESSL_CUDA_LIB="$found"
fi
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw --format=csv,noheader

tests() { # limit, filter..
  limit=$1
  shift
  timeout "$limit" "$here/tessl-lib" --test-threads=8 --nocapture "$@" > "$out/log" 2>&1
  status=$?
  grep -E '^skipped|^layout|^rate|panicked|FAILED|^test result' "$out/log" | sort | uniq | head -60
  grep -A3 panicked "$out/log" | head -40
  echo "status $status"
}

attention_bench() { # seconds, name of the JSON, options..
  limit=$1
  name=$2
  shift 2
  timeout $((limit + 40)) python3 "$here/attention_vs_torch.py" --binary "$here/bench_nn_kernels" --budget-s "$limit" \
    --out "$out/$name.json" "$@"
}

for part in $parts; do
  begun=$(date +%s)
  echo "== $part"
  case $part in
  smoke) tests 90 wgmma_tests::every_pair ;;
  tests) tests 240 device::cuda:: ;;
  pairs) timeout 200 python3 "$here/gemm_vs_torch.py" --binary "$here/bench_gemm_sweep" --budget-s 150 --out "$out/pairs.json" ;;
  tune) timeout 180 python3 "$here/gemm_vs_torch.py" --binary "$here/bench_gemm_sweep" --tune --layouts NN --round-ms 10 \
    --shapes ladder,rows_1,rows_64,wide_64,long_k_128,long_k_768,llama_kv --budget-s 140 --out "$out/tune.json" ;;
  more) timeout 120 python3 "$here/gemm_vs_torch.py" --binary "$here/bench_gemm_sweep" --shapes more --layouts NN,NT \
    --budget-s 80 --out "$out/more.json" ;;
  attention) tests 200 attention_tests:: ;;
  attention_cases) timeout 240 "$here/tessl" verify --device cuda --op attention --budget 600M > "$out/log" 2>&1
    status=$?
    tail -25 "$out/log"
    echo "status $status" ;;
  attention_tune) attention_bench 100 attention_tune --tune --round-ms 10 \
    --cases d64_4096,d96_4096_causal,d128_512,d128_4096,d192_4096_causal,d256_4096,d128_16384_causal ;;
  attention_pairs) attention_bench 200 attention_pairs --cases prefill ;;
  attention_more) attention_bench 100 attention_more --cases more,window,decode ;;
  attention_memcheck | attention_racecheck) timeout 200 compute-sanitizer --tool "${part#attention_}" "$here/tessl-lib" \
    --test-threads=1 attention_tests::hidden_nan attention_tests::a_graph 2>&1 | grep -E '=========|^test ' | tail -15 ;;
  memcheck | racecheck) timeout 120 compute-sanitizer --tool "$part" "$here/tessl-lib" --test-threads=1 \
    wgmma_tests::nan_reaches wgmma_tests::a_column_major 2>&1 | grep -E '=========|^test ' | tail -15 ;;
  esac
  [ -f "$out/log" ] && mv "$out/log" "$out/$part.log"
  echo "== $part took $(($(date +%s) - begun)) s"
done
