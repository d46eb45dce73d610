#!/usr/bin/env bash
# Makes the folder of peers that bench_experts.sh --peers wants: build_peers.sh WORK OUT
# WORK: a scratch folder (about 1 GiB; what is there already is used again). OUT: the folder to carry, replaced.
# Fetches from PyPI with `python3 -m pip`: the kt-kernel wheel for Python 3.12 (only its AMX extension and the libraries beside
# it are kept) and the source of llama-cpp-python (only ggml's CPU part is compiled, for Sapphire Rapids and newer). The compile
# takes about 5 minutes on one core; nothing is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?usage: build_peers.sh WORK OUT}
out=${2:?usage: build_peers.sh WORK OUT}
kt_version=0.7.2
llama_version=0.3.36
cxx=${CXX:-g++} cc=${CC:-gcc}
jobs=${JOBS:-1}
mkdir -p "$work"
work=$(cd "$work" && pwd)

# kt-kernel: its wheel is 100 MB, of which the AMX extension is 9 MB.
if ! ls "$work"/kt/kt_kernel/_kt_kernel_ext_amx.cpython-312-*.so >/dev/null 2>&1; then
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_35_x86_64 -d "$work/wheels" "kt-kernel==$kt_version"
  mkdir -p "$work/kt"
  unzip -q -o "$work"/wheels/kt_kernel-$kt_version-cp312-*.whl 'kt_kernel/_kt_kernel_ext_*' 'kt_kernel.libs/*' -d "$work/kt"
fi

# ggml: pip would build the package to learn its name, which needs its build system; the sdist alone is wanted.
if [ ! -f "$work/llama/vendor/llama.cpp/ggml/CMakeLists.txt" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q scikit-build-core
  "$work/venv/bin/pip" download -q --no-deps --no-binary=:all: --no-build-isolation -d "$work/sdist" "llama-cpp-python==$llama_version"
  mkdir -p "$work/llama"
  tar -xzf "$work"/sdist/llama_cpp_python-$llama_version.tar.gz -C "$work/llama" --strip-components=1 --wildcards '*/vendor/llama.cpp/ggml/*'
fi

# -mamx only lets ggml's AMX kernels be compiled; the program asks the processor and runs without AMX, too, if it has AVX-512.
ggml=$work/llama/vendor/llama.cpp/ggml
build=$work/build-ggml
touch "$ggml/ggml.pc.in"  # the sdist lacks it, and a build of ggml alone wants it
log=$work/build.log
{
  cmake -S "$ggml" -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DGGML_LLAMAFILE=ON -DGGML_CPU_REPACK=ON \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF \
    -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX_VNNI=ON \
    -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON \
    -DGGML_AMX_TILE=ON -DGGML_AMX_INT8=ON -DGGML_AMX_BF16=ON &&
    cmake --build "$build" -j "$jobs" --target ggml-base ggml-cpu ggml &&
    "$cxx" -std=c++17 -O2 -Wall -Wextra -static-libstdc++ -static-libgcc -I "$ggml/include" "$here/ggml_layer.cpp" \
      -o "$work/ggml_layer" "$build/src/libggml.a" "$build/src/libggml-cpu.a" "$build/src/libggml-base.a" -lpthread -ldl -lm
} >"$log" 2>&1 || { tail -20 "$log" >&2; exit 1; }
strip "$work/ggml_layer"

rm -rf "$out"
mkdir -p "$out/kt_kernel" "$out/kt_kernel.libs"
cp "$work"/kt/kt_kernel/_kt_kernel_ext_amx.cpython-312-*.so "$out/kt_kernel/"
cp "$work"/kt/kt_kernel.libs/* "$out/kt_kernel.libs/"
cp "$work/ggml_layer" "$out/"
du -sh "$out" "$out"/*
