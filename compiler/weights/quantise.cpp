#include "compiler/weights/quantise.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "compiler/weights/pack.h"

namespace ktc::compiler {
namespace {

constexpr std::size_t kLanes = 8;        // sums go over lanes, so that vector width does not change them
constexpr std::size_t kAbortStep = 256;  // a candidate is given up after so many weights when it cannot win any more
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to nearest even

// What the search of one group needs.
struct Group {
  const float* w;
  const float* importance;  // null: all 1
  std::size_t n;
  float most;  // largest code
  bool bf16_scale;
};

float rounded_scale(const Group& group, float scale) {
  return group.bf16_scale ? bf16_to_f32(f32_to_bf16(scale)) : scale;
}

bool usable(float scale) {
  return scale >= FLT_MIN && scale <= FLT_MAX;
}

float code_of(float w, float inverse, float most) {
  const float bounded = std::min(std::max(w * inverse, -most), most);
  return (bounded + kRounder) - kRounder;
}

// Weighted squared error of rounding with `scale`; infinity as soon as it exceeds `limit`.
template <bool kWeighted>
double error_with(const Group& group, float scale, double limit) {
  const float inverse = 1.0f / scale, most = group.most;
  double total = 0;
  for (std::size_t begin = 0; begin < group.n; begin += kAbortStep) {
    const std::size_t end = std::min(group.n, begin + kAbortStep);
    float lanes[kLanes] = {};
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (std::size_t l = 0; l < kLanes; ++l) {
        const float w = group.w[i + l], difference = w - code_of(w, inverse, most) * scale;
        const float squared = difference * difference;
        lanes[l] += kWeighted ? squared * group.importance[i + l] : squared;
      }
    for (std::size_t l = 0; i < end; ++i, ++l) {
      const float w = group.w[i], difference = w - code_of(w, inverse, most) * scale;
      const float squared = difference * difference;
      lanes[l] += kWeighted ? squared * group.importance[i] : squared;
    }
    for (const float lane : lanes) total += static_cast<double>(lane);
    if (total > limit) return INFINITY;
  }
  return total;
}

double error_of(const Group& group, float scale, double limit) {
  return group.importance ? error_with<true>(group, scale, limit) : error_with<false>(group, scale, limit);
}

// The scale that fits the codes of `scale` best: sum(i w c) / sum(i c^2).
float least_squares_scale(const Group& group, float scale) {
  const float inverse = 1.0f / scale;
  double product[kLanes] = {}, square[kLanes] = {};
  for (std::size_t i = 0; i < group.n; ++i) {
    const double code = static_cast<double>(code_of(group.w[i], inverse, group.most));
    const double weighted = code * (group.importance ? static_cast<double>(group.importance[i]) : 1.0);
    product[i % kLanes] += weighted * static_cast<double>(group.w[i]);
    square[i % kLanes] += weighted * code;
  }
  double a = 0, b = 0;
  for (std::size_t l = 0; l < kLanes; ++l) a += product[l], b += square[l];
  return b > 0 ? static_cast<float>(a / b) : 0.0f;
}

// Error grows as the square of the scale where nothing is cut, so int8 gains little below 0.8; a row of int4 with
// outliers gains down to a third.
float search(const Group& group, float plain) {
  const bool wide = group.most > static_cast<float>(kMostCodeInt4);
  const float step = wide ? 0.015f : 0.025f, least = wide ? 0.7f : 0.3f;
  float best = plain;
  double best_error = error_of(group, plain, INFINITY);
  const auto consider = [&](float scale) {
    scale = rounded_scale(group, scale);
    if (!usable(scale) || scale == best) return false;
    const double error = error_of(group, scale, best_error);
    if (!(error < best_error)) return false;
    best = scale;
    best_error = error;
    return true;
  };
  for (int i = 1; 1.0f - static_cast<float>(i) * step >= least; ++i)
    consider(plain * (1.0f - static_cast<float>(i) * step));
  for (int round = 0; round < 4; ++round) {
    if (!consider(least_squares_scale(group, best))) break;
  }
  return best;
}

constexpr float kMostE4m3 = 448.0f;

// The nearest E4M3 number to |w| <= 448, ties to even, as its bits.
std::uint8_t e4m3_of(float w) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, w);
  const std::uint8_t sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const float magnitude = std::min(std::abs(w), kMostE4m3);
  if (magnitude < 0x1p-6f)  // multiples of 2^-9; 8 of them are the code of 2^-6
    return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>((magnitude * 512.0f + kRounder) - kRounder));
  std::uint32_t rounded = __builtin_bit_cast(std::uint32_t, magnitude);
  rounded += 0x7ffffu + (rounded >> 20 & 1u);  // to 3 bits of mantissa
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

float e4m3_value(std::uint8_t code) {
  const std::byte byte{code};
  return load_element(models::TensorType::f8_e4m3, &byte, 0);
}

}  // namespace

std::size_t scales_of(const QuantiseSpec& spec, std::size_t columns) {
  return spec.group == 0 ? 1 : (columns + spec.group - 1) / spec.group;
}

RowQuality quantise_row(std::span<const float> weights, std::span<const float> importance, const QuantiseSpec& spec,
                        std::int8_t* codes, float* scales) {
  RowQuality quality;
  const std::size_t per_scale = spec.group == 0 ? std::max<std::size_t>(weights.size(), 1) : spec.group;
  for (std::size_t begin = 0, g = 0; begin < weights.size(); begin += per_scale, ++g) {
    Group group;
    group.w = weights.data() + begin;
    group.importance = importance.empty() ? nullptr : importance.data() + begin;
    group.n = std::min(per_scale, weights.size() - begin);
    const bool fp8 = spec.format == Format::fp8;
    group.most = fp8 ? kMostE4m3 : static_cast<float>(spec.format == Format::int8 ? kMostCodeInt8 : kMostCodeInt4);
    group.bf16_scale = spec.format == Format::int4 && spec.group != 0;

    float largest = 0;
    bool finite = true;
    for (std::size_t i = 0; i < group.n; ++i) {
      finite = finite && std::isfinite(group.w[i]);
      largest = std::max(largest, std::abs(group.w[i]));
    }
    quality.finite = quality.finite && finite;
    float scale = finite ? rounded_scale(group, largest / group.most) : 0.0f;
    if (!usable(scale)) scale = 0.0f;
    if (scale != 0.0f && spec.clip_search && !fp8) scale = search(group, scale);
    scales[g] = scale;
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    for (std::size_t i = 0; i < group.n; ++i) {
      float code = 0.0f;
      if (fp8) {
        const std::uint8_t bits = finite ? e4m3_of(group.w[i] * inverse) : 0;
        codes[begin + i] = static_cast<std::int8_t>(bits);
        code = e4m3_value(bits);
      } else {
        if (finite) code = code_of(group.w[i], inverse, group.most);
        codes[begin + i] = static_cast<std::int8_t>(code);
      }
      const double w = static_cast<double>(group.w[i]);
      const double difference = w - static_cast<double>(code) * static_cast<double>(scale);
      quality.squared_error += difference * difference;
      quality.squared_norm += w * w;
    }
  }
  return quality;
}

}  // namespace ktc::compiler
