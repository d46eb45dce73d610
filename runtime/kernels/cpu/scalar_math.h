// exp, sigmoid and silu of the scalar level and of routing.
//
// Not libm: its expf differs in the last bit between processors with and without FMA, and a router's choice must not.
#pragma once

#include <cstdint>

namespace ktc::kernels {

// e^x with a relative error below 2e-7 wherever the result is a normal number; gradual below, 0 from x = -104 on,
// infinity from 88.73 on, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series to degree 7
// (remainder below 6e-9), then scaled by 2^n in two halves, because 2^n alone may not be a normal number.
inline float exp_scalar(float x) {
  if (x != x) return x;
  if (x < -104.0f) return 0.0f;
  if (x > 89.0f) x = 89.0f;
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;  // the high part has 15 bits: n * high is exact
  constexpr float kRound = 12582912.0f;                               // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * kLog2E + kRound) - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  const std::int32_t whole = static_cast<std::int32_t>(n), half = whole / 2;
  const auto power = [](std::int32_t e) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(whole - half);
}

// 1 / (1 + e^-x), without overflow on either side.
inline float sigmoid_scalar(float x) {
  const float t = exp_scalar(x < 0.0f ? x : -x);
  return (x < 0.0f ? t : 1.0f) / (1.0f + t);
}

// x * sigmoid(x). The clamp turns -infinity * 0 into 0: e^-200 is 0 already.
inline float silu_scalar(float x) {
  if (x < -200.0f) x = -200.0f;
  return x * sigmoid_scalar(x);
}

}  // namespace ktc::kernels
