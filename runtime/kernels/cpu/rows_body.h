// The kernels that pass over rows once: norm, rope, sum, load, store.
#pragma once

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

// Calls body(offset, n) for whole vectors (n = kWidth) and then for the rest, if any.
template <typename Whole, typename Part>
KTC_INLINE void for_vectors(std::size_t count, Whole whole, Part part) {
  std::size_t c = 0;
  for (; c + Vec::kWidth <= count; c += Vec::kWidth) whole(c);
  if (c < count) part(c, count - c);
}

KTC_INLINE void rms_norm(const float* x, const float* weight, float eps, std::size_t columns, float* out) {
  // four sums hide the latency of the multiply-add; which vector goes where depends on its position alone
  Vec::Reg sum[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  std::size_t c = 0;
  for (; c + 4 * Vec::kWidth <= columns; c += 4 * Vec::kWidth) {
    KTC_UNROLL for (int i = 0; i < 4; ++i) {
      const Vec::Reg v = Vec::load(x + c + i * Vec::kWidth);
      sum[i] = Vec::fma(v, v, sum[i]);
    }
  }
  for (; c + Vec::kWidth <= columns; c += Vec::kWidth) {
    const Vec::Reg v = Vec::load(x + c);
    sum[0] = Vec::fma(v, v, sum[0]);
  }
  if (c < columns) {
    const Vec::Reg v = Vec::load(x + c, columns - c);
    sum[1] = Vec::fma(v, v, sum[1]);
  }
  const Vec::Reg total = Vec::add(Vec::add(sum[0], sum[1]), Vec::add(sum[2], sum[3]));
  const float squares = _mm_cvtss_f32(Vec::sum4(total, Vec::zero(), Vec::zero(), Vec::zero()));
  const float mean = squares / static_cast<float>(columns);
  const Vec::Reg factor = Vec::set(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps))));
  for_vectors(
      columns,
      [=](std::size_t i) { Vec::store(out + i, Vec::mul(Vec::mul(Vec::load(x + i), factor), Vec::load(weight + i))); },
      [=](std::size_t i, std::size_t n) {
        Vec::store(out + i, Vec::mul(Vec::mul(Vec::load(x + i, n), factor), Vec::load(weight + i, n)), n);
      });
}

KTC_INLINE void rope_pair(float& a, float& b, float cos, float sin) {
  const float rotated = a * cos - b * sin;
  b = b * cos + a * sin;
  a = rotated;
}

// Plain loops: the compiler vectorises them, and a head is small.
KTC_INLINE void rope(float* x, const float* cos, const float* sin, std::size_t dim, bool interleaved) {
  const std::size_t half = dim / 2;
  if (interleaved) {
    for (std::size_t i = 0; i < half; ++i) rope_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
  } else {
    for (std::size_t i = 0; i < half; ++i) rope_pair(x[i], x[i + half], cos[i], sin[i]);
  }
}

KTC_INLINE void add(const float* const* inputs, std::size_t count, std::size_t columns, float* out) {
  for_vectors(
      columns,
      [=](std::size_t c) {
        Vec::Reg sum = Vec::load(inputs[0] + c);
        for (std::size_t i = 1; i < count; ++i) sum = Vec::add(sum, Vec::load(inputs[i] + c));
        Vec::store(out + c, sum);
      },
      [=](std::size_t c, std::size_t n) {
        Vec::Reg sum = Vec::load(inputs[0] + c, n);
        for (std::size_t i = 1; i < count; ++i) sum = Vec::add(sum, Vec::load(inputs[i] + c, n));
        Vec::store(out + c, sum, n);
      });
}

// float to float or Bf16, or the way back.
template <typename From, typename To>
KTC_INLINE void convert(const From* src, std::size_t count, To* dst) {
  for_vectors(
      count, [=](std::size_t c) { Vec::store(dst + c, Vec::load(src + c)); },
      [=](std::size_t c, std::size_t n) { Vec::store(dst + c, Vec::load(src + c, n), n); });
}

}  // namespace
}  // namespace ktc::kernels
