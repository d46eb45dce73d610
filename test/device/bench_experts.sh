#!/usr/bin/env bash
# The expert layers of three models on this machine: bench_experts.sh BUILD_FOLDER [OUT_FOLDER] [ktc-bench flags ...]
# and with other engines beside them: bench_experts.sh BUILD_FOLDER OUT_FOLDER --peers FOLDER [ktc-bench flags ...]
# BUILD_FOLDER holds bin/ktc-bench (a Release build). OUT_FOLDER (default: $OUT, else bench_experts.out) gets a table and a JSON
# file per model. The short table at the end: time per layer and fraction of the nearer ceiling. Takes about 4 minutes on 16
# cores and 30 GiB of memory; stops a model after 150 seconds.
# With --peers (FOLDER from peers/build_peers.sh): ktc-bench and the peers in turn, round by round, with int8, int4/64, int4/row and
# bf16; one table with the ratios of every cell. About 6 minutes and 90 GiB of memory; OUT_FOLDER gets peers.txt, peers.jsonl
# and peers.log. `python3` there needs numpy and torch. More settings: peers/rounds.py --help.
set -euo pipefail
if [ $# -lt 1 ] || [ ! -x "$1/bin/ktc-bench" ]; then
  echo "bench_experts.sh: no bin/ktc-bench in '${1:-}'; usage: bench_experts.sh BUILD_FOLDER [OUT_FOLDER] [flags]" >&2
  exit 2
fi
bench=$1/bin/ktc-bench
out=${2:-${OUT:-bench_experts.out}}
shift $(($# < 2 ? 1 : 2))
mkdir -p "$out"
lscpu | grep -E '^(Model name|CPU\(s\)|Thread|Core|L2|L3|NUMA node\(s\))' | tee "$out/machine.txt"

if [ "${1:-}" = --peers ]; then
  peers=${2:?bench_experts.sh: --peers needs the folder that peers/build_peers.sh made}
  exec python3 "$(dirname "$0")/peers/rounds.py" --bench "$bench" --peers "$peers" --out "$out" -- "${@:3}"
fi

failed=0
model() {  # NAME EXPERTS HIDDEN INTERMEDIATE TOP_K [flags]
  local name=$1
  echo
  echo "== $name"
  timeout 150 "$bench" experts --experts "$2" --hidden "$3" --intermediate "$4" --top-k "$5" --tokens 1,4,16,64,256,1024 \
    --format int8,int4/64,int4/row --json "$out/$name.json" "${@:6}" | tee "$out/$name.txt" || { failed=1; echo "$name failed"; }
}
model qwen3-30b-a3b 128 2048 768 8 "$@"
model qwen3-next-80b 512 2048 512 10 "$@"
model deepseek-v3 256 7168 2048 8 "$@"

echo
echo "us per layer, fraction of the nearer ceiling (r: read bandwidth, c: bare tile loop in L2)"
awk '
  FNR == 1 { n = split(FILENAME, path, "/"); name = path[n]; sub(/\.txt$/, "", name) }
  $1 ~ /^(int8|int4)\// {
    key = name " " $1
    if (!(key in seen)) { seen[key] = 1; order[++keys] = key }
    fraction = $13 == "read" ? $9 : $11
    cell[key, $2] = sprintf("%.0f %.2f%s", $6, fraction, substr($13, 1, 1))
  }
  END {
    printf "%-26s", "tokens per expert"; m = split("1 4 16 64 256 1024", tokens, " ")
    for (i = 1; i <= m; ++i) printf "%15s", tokens[i]; print ""
    for (k = 1; k <= keys; ++k) {
      printf "%-26s", order[k]
      for (i = 1; i <= m; ++i) printf "%15s", cell[order[k], tokens[i]]; print ""
    }
  }' "$out"/qwen3-30b-a3b.txt "$out"/qwen3-next-80b.txt "$out"/deepseek-v3.txt
echo
grep -H '^time over int8' "$out"/{qwen3-30b-a3b,qwen3-next-80b,deepseek-v3}.txt | sed 's|.*/||; s|\.txt:time over int8,| |'
exit $failed
