// Scalar functions that hosts and devices compute alike (up to fused multiply-adds).
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/kernels/cuda/pair_filter.h"

namespace ktc::gpu {

KTC_HOST_DEVICE inline float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
#endif
}

KTC_HOST_DEVICE inline float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code >> 7) << 31, exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return float_of(sign | 0x7fc00000u);
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * static_cast<float>(fraction) * (1.0f / 512.0f);
  return float_of(sign | (exponent + 120) << 23 | fraction << 20);
}

// e^x as runtime/kernels/cpu/scalar_math.h: x = n ln 2 + r, Taylor series of degree 7. Not the library's, so that a router
// chooses the same experts on a GPU, on a CPU and under emulation but for the order of its sums.
KTC_HOST_DEVICE inline float exp_plain(float x) {
  if (x != x) return x;
  if (x < -104.0f) return 0.0f;
  if (x > 89.0f) x = 89.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  const std::int32_t whole = static_cast<std::int32_t>(n), half = whole / 2;
  return p * float_of(static_cast<std::uint32_t>(half + 127) << 23) * float_of(static_cast<std::uint32_t>(whole - half + 127) << 23);
}
KTC_HOST_DEVICE inline float sigmoid_plain(float x) {
  const float t = exp_plain(x < 0.0f ? x : -x);
  return (x < 0.0f ? t : 1.0f) / (1.0f + t);
}
KTC_HOST_DEVICE inline float silu_plain(float x) {
  if (x < -200.0f) x = -200.0f;
  return x * sigmoid_plain(x);
}

}  // namespace ktc::gpu
