#!/usr/bin/env bash
# From a fresh Debian 12 machine to a working ktc:
#   ./bootstrap.sh demo     install what is missing, build, compile models/demo and let it talk
#   ./bootstrap.sh build    install what is missing and build everything (build/release/bin)
#   ./bootstrap.sh test     install what is missing, build everything and run all tests
# Anything after `test` goes to ctest, for example: ./bootstrap.sh test -R lit
set -euo pipefail
cd "$(dirname "$0")"

# cmake and ninja build; clang-22 compiles; mold links; ccache makes the second build quick
packages=(
  cmake ninja-build pkg-config git python3 g++ clang-22 mold ccache
  # the compiler half: MLIR 22 lies in Debian 12's security archive
  libmlir-22-dev mlir-22-tools llvm-22-dev llvm-22-tools libclang-rt-22-dev libyaml-cpp-dev libzstd-dev zlib1g-dev
  # the runtime half
  libtbb-dev libflatbuffers-dev flatbuffers-compiler nlohmann-json3-dev libpcre2-dev libutf8proc-dev libfmt-dev libcli11-dev
  libxxhash-dev
  # the tests
  libgtest-dev libgmock-dev libbenchmark-dev
)

command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] && cuda=1 || cuda=
[ -z "$cuda" ] || packages+=(python3-pip)  # fetches FlashInfer's headers

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() { printf 'bootstrap.sh: %s\n' "$*" >&2; exit 1; }

install_missing() {
  command -v dpkg-query >/dev/null || die "this script knows Debian packages only; install by hand: ${packages[*]}"
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; ask an administrator to install: ${missing[*]}"
    root=(sudo)
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install the packages above; MLIR 22 needs Debian 12 with its security archive enabled"
}

# Builds with CUDA take FlashInfer's headers; without them our own attention kernels serve.
fetch_headers() {
  [ -n "$cuda" ] || return 0
  cmake/fetch_flashinfer.sh || say "without FlashInfer's headers, attention on a GPU has our own kernels alone"
}

# Configures once; later runs let ninja notice what changed.
configure() {
  fetch_headers
  [ -f build/release/build.ninja ] || cmake --preset release >build-configure.log 2>&1 ||
    { tail -n 20 build-configure.log >&2; die "cmake failed; the whole log is in build-configure.log"; }
  rm -f build-configure.log
}

build() {
  configure
  say "building $*"
  cmake --build --preset release "$@" >&2
}

case "${1:-}" in
  demo)
    install_missing
    build --target ktc ktc-run ktc-plan
    bin=build/release/bin plan=build/demo.ktp
    say "\$ ktc compile models/demo --policy placement/policies/exact.yaml -o $plan"
    $bin/ktc compile models/demo --policy placement/policies/exact.yaml -o $plan
    say "\$ ktc-run $plan --prompt \"The Linux kernel\" --max-tokens 64 --temperature 0"
    $bin/ktc-run $plan --prompt "The Linux kernel" --max-tokens 64 --temperature 0
    say "next: ktc-plan dump $plan, ktc-run --help, README.md (the tools are in $bin)"
    ;;
  build)
    install_missing
    build --target all
    ;;
  test)
    shift
    install_missing
    build --target all
    say "testing"
    ctest --preset release "$@"
    ;;
  *)
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 1
    ;;
esac
