#!/usr/bin/env bash
# Predicted against measured tokens a second, with rates probed in the same call.
#
#   test/device/check_prediction.sh BUILD OUT [flags]    BUILD/bin: ktc and ktc-run; flags: check_prediction.py --help
#
# Probes this machine, and for every plan of check_prediction.py: predicts (ktc compile --dry-run), compiles and measures
# (ktc-run --bench). OUT gets the target file and prediction.json; the table goes to standard output.
set -euo pipefail
if [ $# -lt 2 ] || [ ! -x "$1/bin/ktc" ] || [ ! -x "$1/bin/ktc-run" ]; then
  echo "check_prediction.sh: no bin/ktc and bin/ktc-run in '${1:-}'; usage: check_prediction.sh BUILD OUT [flags]" >&2
  exit 2
fi
build=$1
out=$2
shift 2
mkdir -p "$out"
export LD_LIBRARY_PATH="$build/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec python3 "$(dirname "$0")/check_prediction.py" --bin "$build/bin" --out "$out" "$@"
