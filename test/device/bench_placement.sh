#!/usr/bin/env bash
# Which experts on the GPU, and does moving them pay: bench_placement.sh BUILD_FOLDER [OUT_FOLDER] [bench_placement.py flags ...]
# BUILD_FOLDER holds bin/ktc and bin/ktc-run (a Release build). Plans of made-up weights at the shape of Qwen3-Next-80B, whose
# routers choose by Zipf's law: shares of hot experts x strategies, then a workload of topics. OUT_FOLDER (default: $OUT, else
# bench_placement.out) gets placement.json and placement.svg; the tables are printed. About 3 minutes on 16 cores and one GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ $# -lt 1 ] || [ ! -x "$1/bin/ktc-run" ]; then
  echo "bench_placement.sh: no bin/ktc-run in '${1:-}'; usage: bench_placement.sh BUILD_FOLDER [OUT_FOLDER] [flags]" >&2
  exit 2
fi
build=$1
out=${2:-${OUT:-bench_placement.out}}
shift $(($# < 2 ? 1 : 2))
mkdir -p "$out"
export LD_LIBRARY_PATH="$build/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec python3 test/device/bench_placement.py --bin "$build/bin" --out "$out" "$@"
