#!/usr/bin/env bash
# Headers of FlashInfer's attention kernels (Apache-2.0) from its wheel, for builds with CUDA:
#
#   cmake/fetch_flashinfer.sh [FOLDER]      default: build/third_party, where cmake/KtcCuda.cmake looks for them
#
# Nothing of the wheel runs; its dependencies are not taken. 62 MB are downloaded once, 2 MB stay. Needs python3 with pip.
# Exit status 1, and a line that says why, when there is no network or the wheel is not the one that is named here.
set -euo pipefail
version=0.7.2.post1
sha256=bfdc18b9e1e4d8d0730fe4343dc0e284cd0c160086de80f99888bc4867922d49
folder=${1:-$(dirname "$0")/../build/third_party}
target=$folder/flashinfer-$version
[ -f "$target/LICENSE" ] && exit 0  # written last

fail() { printf 'fetch_flashinfer.sh: %s\n' "$*" >&2; exit 1; }
mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
printf 'flashinfer-python==%s --hash=sha256:%s\n' "$version" "$sha256" >"$work/requirements.txt"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
  --dest "$work" -r "$work/requirements.txt" >"$work/log" 2>&1 ||
  fail "pip could not download flashinfer-python $version: $(grep -m 1 ERROR "$work/log" || tail -n 1 "$work/log")"
python3 - "$work" "$work/out" <<'PYTHON'
import glob, os, re, sys, zipfile
work, out = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
for name in wheel.namelist():
    header = re.fullmatch(r"flashinfer/data/include/(flashinfer/(attention/)?[^/]+\.(cuh|h))", name)
    licence = re.fullmatch(r"[^/]+\.dist-info/(?:licenses/)?(LICENSE|NOTICE)", name)
    if not header and not licence:
        continue
    to = os.path.join(out, "include" if header else "", (header or licence)[1])
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with open(to, "wb") as f:
        f.write(wheel.read(name))
PYTHON
[ -f "$work/out/LICENSE" ] && [ -f "$work/out/include/flashinfer/attention/prefill.cuh" ] || fail "the wheel lacks what is needed of it"
rm -rf "$target"
mv "$work/out" "$target"
