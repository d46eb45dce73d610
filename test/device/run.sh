#!/usr/bin/env bash
# Every test and benchmark that wants another machine's CPU (AMX) or GPU, in one call, with a short table last.
#
#   test/device/run.sh BUILD      BUILD: a built tree of any preset, carried there; nothing is compiled
#
# The tree must have been built for any x86-64-v2 machine, as all presets do. libtbb.so.12 is looked for beside the tools.
# Exit status 1 when a test failed. The details of everything are in $OUT/run.log (default: a temporary folder).
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: test/device/run.sh BUILD}
out=${OUT:-$(mktemp -d)}
log=$out/run.log
: >"$log"
export LD_LIBRARY_PATH="$build/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
failed=0
table=()

row() { table+=("$(printf '%-34s %-8s %s' "$1" "$2" "$3")"); }

# Runs a GoogleTest binary; the row says how many cases passed, failed and were skipped.
google_test() {
  local name=$1
  [ -x "$build/test/$name" ] || { row "$name" absent "not in this build"; return; }
  local text
  text=$("$build/test/$name" 2>&1)
  local status=$?
  printf '== %s\n%s\n' "$name" "$text" >>"$log"
  local passed skipped
  passed=$(grep -oP '\[  PASSED  \] \K[0-9]+' <<<"$text" | tail -n 1)
  skipped=$(grep -oP '\[  SKIPPED \] \K[0-9]+(?= test)' <<<"$text" | tail -n 1)
  if [ $status -eq 0 ]; then row "$name" ok "${passed:-0} passed, ${skipped:-0} skipped"; else
    row "$name" FAILED "see run.log"
    failed=1
  fi
}

# Compiles nothing: PLAN is a folder made by ktc compile and carried.
greedy() {
  local plan=$1 model=$2
  [ -d "$plan" ] || { row "greedy $(basename "$plan")" absent "no plan at $plan"; return; }
  local script
  for script in greedy logits perplexity; do
    if python3 test/end_to_end/${script}_test.py --bin "$build/bin" --plan "$plan" --model "$model" >>"$log" 2>&1; then
      row "$script $(basename "$plan")" ok "equal to the reference"
    else
      row "$script $(basename "$plan")" FAILED "see run.log"
      failed=1
    fi
  done
}

lscpu >>"$log" 2>&1
command -v nvidia-smi >/dev/null && nvidia-smi >>"$log" 2>&1
for name in base_test formats_test conformance_test panel_conformance_test executor_reference_test executor_bits_test \
            executor_run_test parallel_test device_test gpu_conformance_test; do
  google_test $name
done
# Benchmarks of the GPU print a table of their own; the rows here are those of the targets.
if [ -x "$build/test/handoff_bench" ] && command -v nvidia-smi >/dev/null; then
  for bench in handoff_bench attention_bench; do
    text=$("$build/test/$bench" 2>&1) || failed=1
    printf '== %s\n%s\n' "$bench" "$text" >>"$log"
    while IFS= read -r line; do row "$bench" measured "$line"; done < <(tail -n +2 <<<"$text")
  done
fi
greedy "$build/demo.ktp" models/demo

for plan in "$build"/*.ktp; do
  [ -d "$plan" ] || continue
  result=$("$build/bin/ktc-run" "$plan" --bench 512,64 --json 2>>"$log") || { row "bench $(basename "$plan")" FAILED "see run.log"; failed=1; continue; }
  printf '%s\n' "$result" >>"$log"
  row "bench $(basename "$plan")" ok "$(python3 -c '
import json, sys
s = json.loads(sys.argv[1])["statistics"]
print("prefill %.0f, decode %.0f tokens/s, %d threads, %s" % (
    s["prefill_tokens_per_second"], s["decode_tokens_per_second"], s["threads"], s["isa"]))' "$result")"
done

# Long prompts whose experts are copied through the GPU, and how much of that is beside computation.
for plan in "$build"/*streamed*.ktp; do
  [ -d "$plan" ] || continue
  result=$("$build/bin/ktc-run" "$plan" --bench 8192,8 --json 2>>"$log") || { row "streamed $(basename "$plan")" FAILED "see run.log"; failed=1; continue; }
  printf '%s\n' "$result" >>"$log"
  row "streamed $(basename "$plan")" ok "$(python3 -c '
import json, sys
print("prefill of 8192 tokens: %.0f tokens/s" % json.loads(sys.argv[1])["statistics"]["prefill_tokens_per_second"])' "$result")"
  "$build/bin/ktc-run" "$plan" --bench 8192,2 --repeat 1 --trace "$out/stream.json" >>"$log" 2>&1 &&
    row "overlap $(basename "$plan")" measured "$(python3 test/device/stream_overlap.py "$out/stream.json" | tail -n 1)"
done

printf '\n%s\n' "$(grep -m1 'Model name' "$log" | sed 's/  */ /')"
printf '%s\n' "${table[@]}"
exit $failed
