// What the shared kernel bodies (*_body.h) and the vector vocabularies (vector_*.h) have in common.
//
// Everything in these headers is in an anonymous namespace and none of it calls an inline function of another header:
// the linker keeps one copy of an inline function, and if that copy came from avx512.cpp, the baseline would call it.
// test/conformance/symbols_test.cmake checks the objects.
#pragma once

#include <cstddef>
#include <cstdint>

#define KTC_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define KTC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KTC_UNROLL _Pragma("GCC unroll 16")
#endif

namespace ktc::kernels {
namespace {

struct Bf16 {
  std::uint16_t bits;
};

// Into how many rows the next tile is cut so that the tiles of `rows` are nearly equal and none exceeds `most`.
KTC_INLINE std::size_t balanced(std::size_t rows, std::size_t most) {
  const std::size_t tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

KTC_INLINE std::size_t at_most(std::size_t value, std::size_t limit) {
  return value < limit ? value : limit;
}

}  // namespace
}  // namespace ktc::kernels
