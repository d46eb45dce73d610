// The kernels around panels that work on one row: quantise, round, swiglu, accumulate. On the vectors of the level (Vec, Ints).
#pragma once

#include "runtime/kernels/cpu/exp_body.h"
#include "runtime/kernels/cpu/panel_body.h"
#include "runtime/kernels/cpu/rows_body.h"

namespace ktc::kernels {
namespace {

KTC_INLINE void quantise_row(const float* x, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                             std::size_t kb_stride, float* scales, std::int32_t* sums) {
  const std::size_t padded = (columns + 63) / 64 * 64, width = granule == 0 ? padded : granule;
  for (std::size_t first = 0; first < padded; first += width, ++scales) {
    const std::size_t end = at_most(first + width, padded), last = at_most(end, columns);
    const std::uint32_t most = Ints::largest_magnitude(x + first, last - first);
    const float amax = __builtin_bit_cast(float, most);
    const bool finite = most < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
    *scales = !finite ? __builtin_bit_cast(float, 0x7fc00000u) : zero ? 0.0f : amax / 127.0f;
    const float factor = zero ? 0.0f : 127.0f / amax;
    for (std::size_t k = first; k < end; k += 64) {
      const std::size_t n = zero || k >= columns ? 0 : at_most(columns - k, 64);
      Ints::quantise64(x + k, n, factor, codes + k / 64 * kb_stride, sums + k / 32);
    }
  }
}

KTC_INLINE void round_row(const float* x, std::size_t columns, std::uint16_t* values, std::size_t kb_stride) {
  for (std::size_t k = 0; k < columns; k += 64) {
    Bf16* out = reinterpret_cast<Bf16*>(reinterpret_cast<std::byte*>(values) + k / 64 * kb_stride);
    for (std::size_t i = 0; i < 64; i += Vec::kWidth) {
      const std::size_t left = columns - at_most(k + i, columns);
      Vec::store(out + i, left >= Vec::kWidth ? Vec::load(x + k + i) : Vec::load(x + k + i, left));
    }
  }
}

KTC_INLINE void swiglu(const float* gate_up, float* h) {
  for (std::size_t i = 0; i < 16; i += Vec::kWidth)
    Vec::store(h + i, Vec::mul(silu(Vec::load(gate_up + i)), Vec::load(gate_up + 16 + i)));
}

KTC_INLINE void accumulate(const float* x, float scale, std::size_t n, bool first, float* y) {
  const Vec::Reg s = Vec::set(scale);
  if (first) {
    for_vectors(
        n, [=](std::size_t i) { Vec::store(y + i, Vec::mul(s, Vec::load(x + i))); },
        [=](std::size_t i, std::size_t count) { Vec::store(y + i, Vec::mul(s, Vec::load(x + i, count)), count); });
  } else {
    for_vectors(
        n, [=](std::size_t i) { Vec::store(y + i, Vec::fma(s, Vec::load(x + i), Vec::load(y + i))); },
        [=](std::size_t i, std::size_t count) {
          Vec::store(y + i, Vec::fma(s, Vec::load(x + i, count), Vec::load(y + i, count)), count);
        });
  }
}

}  // namespace
}  // namespace ktc::kernels
