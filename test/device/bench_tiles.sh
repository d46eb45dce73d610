#!/usr/bin/env bash
# How tile kernels should be cut and shaped on this machine: bench_tiles.sh BUILD_FOLDER [OUT_FOLDER] [ktc-bench flags ...]
# BUILD_FOLDER holds bin/ktc-bench and test/panel_conformance_test (a Release build). Variants run side by side in the same
# rounds, so their times compare; OUT_FOLDER (default: $OUT, else bench_tiles.out) gets a table and a JSON file per model and
# granule. Last: time of every variant over the default one. Takes about 6 minutes on 16 cores and 30 GiB of memory.
set -euo pipefail
if [ $# -lt 1 ] || [ ! -x "$1/bin/ktc-bench" ]; then
  echo "bench_tiles.sh: no bin/ktc-bench in '${1:-}'; usage: bench_tiles.sh BUILD_FOLDER [OUT_FOLDER] [flags]" >&2
  exit 2
fi
build=$1
out=${2:-${OUT:-bench_tiles.out}}
shift $(($# < 2 ? 1 : 2))
mkdir -p "$out"
export LD_LIBRARY_PATH="$build/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ -x "$build/test/panel_conformance_test" ]; then
  "$build/test/panel_conformance_test" --gtest_filter='*Many*:*Tile*' >"$out/conformance.txt" 2>&1 && echo "tile kernels conform" ||
    { echo "tile kernels FAIL: see $out/conformance.txt"; grep -m 5 -A 6 Failure "$out/conformance.txt" || true; }
fi

failed=0
bench() {  # NAME EXPERTS HIDDEN INTERMEDIATE TOP_K FORMATS TOKENS GRANULE VARIANTS [flags]
  local name=$1 variant flags=()
  for variant in $9; do flags+=(--variant "$variant"); done
  echo
  echo "== $name"
  timeout 110 "$build/bin/ktc-bench" experts --experts "$2" --hidden "$3" --intermediate "$4" --top-k "$5" --format "$6" --tokens "$7" \
    --x-granule "$8" --h-granule "$8" --rounds 5 --gib 4 --json "$out/$name.json" "${flags[@]}" "${@:10}" | tee "$out/$name.txt" ||
    { failed=1; echo "$name failed"; }
}
shapes="default 2x1 1x2 1x1 2x2"
cuts="2x1,inner=4 2x1,inner=16 2x1,inner=0 1x2,inner=12 1x2,inner=16 1x1,inner=16"
work="2x1,up=4 2x1,up=2 2x1,down=1 2x1,down=2 2x1,down=8,sums=2048 2x1,outer=512 2x1,rows=256 2x1,nofetch"
bench q30-row 128 2048 768 8 int8,int4/row,int4/64 16,64,256 0 "$shapes $cuts $work" "$@"
bench v3-row 256 7168 2048 8 int8,int4/64 16,256 0 "$shapes $cuts $work" "$@"
bench q30-64 128 2048 768 8 int8,int4/64 16,256 64 "default 2x1,inner=4 2x1,inner=16 2x1,inner=0 2x1,up=4 2x1,down=1" "$@"
bench q80-row 512 2048 512 10 int8,int4/64 16,256 0 "default 1x2,inner=12 2x1,down=1 2x1,inner=0" "$@"

echo
python3 - "$out"/{q30-row,v3-row,q30-64,q80-row}.json <<'PYTHON'
import json, sys
for path in sys.argv[1:]:
    try:
        result = json.load(open(path))
    except OSError:
        continue
    cases = result["cases"]
    columns = sorted({(c["format"], c["tokens_per_expert"]) for c in cases})
    variants = list(dict.fromkeys(c["variant"] for c in cases))
    print(path.rsplit("/", 1)[-1][:-5], "granule", result["granules"]["x"] or "row", "- time over default; default: us and fraction")
    at = {(c["format"], c["tokens_per_expert"], c["variant"]): c for c in cases}
    print(" " * 24 + "".join(f"{f + ' ' + str(m):>18}" for f, m in columns))
    for v in variants:
        row = ""
        for f, m in columns:
            c, base = at.get((f, m, v)), at[f, m, variants[0]]
            if c is None:
                row += f"{'':>18}"
            elif v == variants[0]:
                row += f"{c['microseconds']['median']:>11.0f} {c['fraction_of_nearer']['median']:.2f}{c['nearer'][0]} "
            else:
                row += f"{c['microseconds']['median'] / base['microseconds']['median']:>17.3f} "
        print(f"{v:<24}{row}")
PYTHON
exit $failed
