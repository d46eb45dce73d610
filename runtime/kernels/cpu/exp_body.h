// exp and silu on a vector. Each lane depends on its own input alone.
#pragma once

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

// As exp_scalar in scalar_math.h, which has the derivation and the limits, but with fused multiply-adds.
KTC_INLINE Vec::Reg exp(Vec::Reg x) {
  x = Vec::min(Vec::set(89.0f), Vec::max(Vec::set(-104.0f), x));
  const Vec::Reg n = Vec::round(Vec::mul(x, Vec::set(1.44269504f)));
  Vec::Reg r = Vec::fma(n, Vec::set(-0.693145752f), x);
  r = Vec::fma(n, Vec::set(-1.42860677e-6f), r);
  Vec::Reg p = Vec::set(1.0f / 5040.0f);
  p = Vec::fma(p, r, Vec::set(1.0f / 720.0f));
  p = Vec::fma(p, r, Vec::set(1.0f / 120.0f));
  p = Vec::fma(p, r, Vec::set(1.0f / 24.0f));
  p = Vec::fma(p, r, Vec::set(1.0f / 6.0f));
  p = Vec::fma(p, r, Vec::set(0.5f));
  p = Vec::fma(p, Vec::mul(r, r), r);
  return Vec::scale_by_power_of_two(Vec::add(p, Vec::set(1.0f)), n);
}

// x / (1 + e^-x) with the exponent kept negative on both sides; the clamp turns -infinity * 0 into 0.
KTC_INLINE Vec::Reg silu(Vec::Reg x) {
  x = Vec::max(Vec::set(-200.0f), x);
  const Vec::Reg t = exp(Vec::negative_magnitude(x));
  const Vec::Reg one = Vec::set(1.0f);
  return Vec::mul(x, Vec::div(Vec::select_negative(x, t, one), Vec::add(one, t)));
}

KTC_INLINE __m128 silu4(__m128 x) {
  return Vec::low128(silu(Vec::from128(x)));
}

}  // namespace
}  // namespace ktc::kernels
