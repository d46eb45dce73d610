// Panel kernels of the scalar level: complete (without `many`), portable, and the plainest statement of the arithmetic.
#include <cmath>
#include <cstring>

#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kLanes = 16;

float f32_at(const std::byte* p, std::size_t i) {
  float value;
  std::memcpy(&value, p + 4 * i, 4);
  return value;
}
float bf16_at(const std::byte* p, std::size_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, p + 2 * i, 2);
  return bf16_to_f32(bits);
}
float scale_at(const PanelArgs& a, std::size_t g, std::size_t block, std::size_t lane) {
  const std::byte* scales = a.panel + a.layout->scale_offset(g, block);
  return a.layout->scale_bytes == 2 ? bf16_at(scales, lane) : f32_at(scales, lane);
}

// The code of element (k in 0..31 of half `half` of the block, lane).
int code_int8(const std::byte* block, std::size_t half, std::size_t k, std::size_t lane) {
  return static_cast<int>(block[(half * 8 + k / 4) * 64 + lane * 4 + k % 4]) - 128;
}
int code_int4(const std::byte* block, std::size_t half, std::size_t k, std::size_t lane) {
  const int byte = static_cast<int>(block[k / 4 * 64 + lane * 4 + k % 4]);
  return (half == 0 ? byte & 15 : byte >> 4) - 8;
}

template <int (*Code)(const std::byte*, std::size_t, std::size_t, std::size_t)>
void integers(const PanelArgs& a) {
  const PanelLayout& layout = *a.layout;
  const std::size_t halves = layout.k_blocks * 2, group = layout.group / 32, granule = a.x_granule / 32;  // in halves
  std::size_t step = halves;
  if (group != 0 && group < step) step = group;
  if (granule != 0 && granule < step) step = granule;
  for (std::size_t r = 0; r < a.m; ++r)
    for (std::size_t b = 0; b < 2; ++b) {
      float f[kLanes] = {};
      for (std::size_t first = 0; first < halves; first += step) {
        std::int32_t sum[kLanes] = {};
        for (std::size_t half = first; half < first + step && half < halves; ++half) {
          const std::byte* block = a.panel + layout.block_offset(half / 2, b);
          const std::byte* x = a.rows[r].values + half / 2 * a.kb_stride + half % 2 * 32;
          for (std::size_t k = 0; k < 32; ++k)
            for (std::size_t c = 0; c < kLanes; ++c)
              sum[c] += static_cast<std::int8_t>(x[k]) * Code(block, half % 2, k, c);
        }
        for (std::size_t c = 0; c < kLanes; ++c) {
          const float value = static_cast<float>(sum[c]);
          const float ws = group != 0 ? scale_at(a, first / group, b, c) : 1.0f;
          const float as = granule != 0 ? a.rows[r].scales[first / granule] : 1.0f;
          f[c] = group != 0 || granule != 0 ? std::fmaf(value, ws * as, f[c]) : value;
        }
      }
      for (std::size_t c = 0; c < kLanes; ++c) {
        if (granule == 0) f[c] *= a.rows[r].scales[0];
        if (group == 0) f[c] *= scale_at(a, 0, b, c);
        a.out[r * 32 + b * kLanes + c] = f[c];
      }
    }
}

float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code >> 7) << 31, exponent = code >> 3 & 15, fraction = code & 7;
  std::uint32_t bits;
  if ((code & 0x7f) == 0x7f) {
    bits = 0x7fc00000u;
  } else if (exponent == 0) {
    bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(fraction) * 0x1p-9f);
  } else {
    bits = (exponent + 120) << 23 | fraction << 20;
  }
  return __builtin_bit_cast(float, sign | bits);
}

struct Fp8Table {
  float value[256];
  Fp8Table() {
    for (int code = 0; code < 256; ++code) value[code] = e4m3_to_f32(static_cast<std::uint8_t>(code));
  }
};

// The weight (k in 0..63, lane) of a block.
float weight_bf16(const std::byte* block, const float*, std::size_t k, std::size_t lane) {
  return bf16_at(block + k / 32 * 1024, (k % 32 / 2 * kLanes + lane) * 2 + k % 2);
}
float weight_fp8(const std::byte* block, const float* table, std::size_t k, std::size_t lane) {
  return table[static_cast<std::uint8_t>(block[k / 4 * 64 + lane * 4 + k % 4])];
}

// x * w is exact in f32 (8 bits by at most 8), so x * w + t is what a fused multiply-add gives.
template <float (*Weight)(const std::byte*, const float*, std::size_t, std::size_t)>
void floats(const PanelArgs& a, const float* table) {
  const PanelLayout& layout = *a.layout;
  const bool scaled = layout.format == Format::fp8, grouped = layout.group != 0;
  const std::size_t step = grouped ? layout.group / 64 : layout.k_blocks;  // in blocks
  for (std::size_t r = 0; r < a.m; ++r)
    for (std::size_t b = 0; b < 2; ++b) {
      float f[kLanes] = {}, c[kLanes] = {};
      for (std::size_t first = 0; first < layout.k_blocks; first += step) {
        for (std::size_t l = 0; l < kLanes; ++l) c[l] = 0;
        for (std::size_t kb = first; kb < first + step && kb < layout.k_blocks; ++kb) {
          const std::byte* block = a.panel + layout.block_offset(kb, b);
          const std::byte* x = a.rows[r].values + kb * a.kb_stride;
          for (std::size_t tile = 0; tile < 2; ++tile) {
            float even[kLanes] = {}, odd[kLanes] = {};
            for (std::size_t k = tile * 32; k < tile * 32 + 32; k += 2)
              for (std::size_t l = 0; l < kLanes; ++l) {
                even[l] += bf16_at(x, k) * Weight(block, table, k, l);
                odd[l] += bf16_at(x, k + 1) * Weight(block, table, k + 1, l);
              }
            for (std::size_t l = 0; l < kLanes; ++l) c[l] += even[l] + odd[l];
          }
        }
        if (grouped)
          for (std::size_t l = 0; l < kLanes; ++l) f[l] = std::fmaf(c[l], scale_at(a, first / step, b, l), f[l]);
      }
      for (std::size_t l = 0; l < kLanes; ++l)
        a.out[r * 32 + b * kLanes + l] = grouped ? f[l] : scaled ? c[l] * scale_at(a, 0, b, l) : c[l];
    }
}

// As exp in exp_body.h, operation by operation.
float exp_fused(float x) {
  if (!(x > -104.0f) && x == x) x = -104.0f;
  if (x > 89.0f) x = 89.0f;
  if (x != x) return x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  float r = std::fmaf(n, -0.693145752f, x);
  r = std::fmaf(n, -1.42860677e-6f, r);
  float p = 1.0f / 5040.0f;
  p = std::fmaf(p, r, 1.0f / 720.0f);
  p = std::fmaf(p, r, 1.0f / 120.0f);
  p = std::fmaf(p, r, 1.0f / 24.0f);
  p = std::fmaf(p, r, 1.0f / 6.0f);
  p = std::fmaf(p, r, 0.5f);
  p = std::fmaf(p, r * r, r);
  p = p + 1.0f;
  const std::int32_t whole = static_cast<std::int32_t>(n), half = whole / 2;
  const auto power = [](std::int32_t e) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23); };
  return p * power(half) * power(whole - half);
}

float silu_fused(float x) {
  if (x < -200.0f) x = -200.0f;
  const float t = exp_fused(-std::fabs(x));
  return x * ((std::signbit(x) ? t : 1.0f) / (1.0f + t));
}

}  // namespace

void panel_int8_few_scalar(const PanelArgs& a) {
  integers<code_int8>(a);
}
void panel_int4_few_scalar(const PanelArgs& a) {
  integers<code_int4>(a);
}
void panel_bf16_few_scalar(const PanelArgs& a) {
  floats<weight_bf16>(a, nullptr);
}
void panel_fp8_few_scalar(const PanelArgs& a) {
  static const Fp8Table table;
  floats<weight_fp8>(a, table.value);
}

void quantise_row_scalar(const float* x, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                         std::size_t kb_stride, float* scales, std::int32_t* sums) {
  const std::size_t padded = (columns + 63) / 64 * 64, width = granule == 0 ? padded : granule;
  for (std::size_t first = 0; first < padded; first += width) {
    const std::size_t end = first + width < padded ? first + width : padded;
    std::uint32_t most = 0;  // magnitudes compare like their bits, and NaN is above infinity
    for (std::size_t k = first; k < end && k < columns; ++k) {
      const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, x[k]) & 0x7fffffffu;
      if (magnitude > most) most = magnitude;
    }
    const float amax = __builtin_bit_cast(float, most);
    const bool finite = most < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
    scales[first / width] = !finite ? __builtin_bit_cast(float, 0x7fc00000u) : zero ? 0.0f : amax / 127.0f;
    const float factor = zero ? 0.0f : 127.0f / amax;
    for (std::size_t k = first; k < end; ++k) {
      constexpr float kRound = 12582912.0f;
      const std::int32_t code = zero || k >= columns ? 0 : static_cast<std::int32_t>((x[k] * factor + kRound) - kRound);
      if (k % 32 == 0) sums[k / 32] = 0;
      sums[k / 32] += code;
      codes[k / 64 * kb_stride + k % 64] = static_cast<std::int8_t>(code);
    }
  }
}

void round_row_scalar(const float* x, std::size_t columns, std::uint16_t* values, std::size_t kb_stride) {
  for (std::size_t k = 0; k < (columns + 63) / 64 * 64; ++k) {
    const std::uint16_t bits = k < columns ? f32_to_bf16(x[k]) : 0;
    std::memcpy(reinterpret_cast<std::byte*>(values) + k / 64 * kb_stride + k % 64 * 2, &bits, 2);
  }
}

void quantise_tile_scalar(const float* x, std::size_t rows, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                          float* scales, std::int32_t* sums) {
  const std::size_t padded = (columns + 63) / 64 * 64, width = granule == 0 ? padded : granule;
  const std::size_t granules = (padded + width - 1) / width;
  for (std::size_t i = 0; i < kTileRows; ++i) {
    sums[i] = 0;
    for (std::size_t g = 0; g < granules; ++g) {
      const std::size_t first = g * width, end = first + width < padded ? first + width : padded;
      std::uint32_t most = 0;
      const auto at = [&](std::size_t k) { return i < rows && k < columns ? x[(k / 16 * kTileRows + i) * 16 + k % 16] : 0.0f; };
      for (std::size_t k = first; k < end; ++k) {
        const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, at(k)) & 0x7fffffffu;
        if (magnitude > most) most = magnitude;
      }
      const float amax = __builtin_bit_cast(float, most);
      const bool finite = most < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
      scales[g * kTileRows + i] = !finite ? __builtin_bit_cast(float, 0x7fc00000u) : zero ? 0.0f : amax / 127.0f;
      const float factor = zero ? 0.0f : 127.0f / amax;
      for (std::size_t k = first; i < rows && k < end; ++k) {
        constexpr float kRound = 12582912.0f;
        const std::int32_t code = zero ? 0 : static_cast<std::int32_t>((at(k) * factor + kRound) - kRound);
        sums[i] += code;
        codes[(k / 64 * kTileRows + i) * 64 + k % 64] = static_cast<std::int8_t>(code);
      }
    }
  }
}

void round_tile_scalar(const float* x, std::size_t rows, std::size_t columns, std::uint16_t* values) {
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < (columns + 63) / 64 * 64; ++k)
      values[(k / 64 * kTileRows + i) * 64 + k % 64] =
          k < columns ? f32_to_bf16(x[(k / 16 * kTileRows + i) * 16 + k % 16]) : std::uint16_t{0};
}

void swiglu_scalar(const float* gate_up, float* h) {
  for (std::size_t i = 0; i < kLanes; ++i) h[i] = silu_fused(gate_up[i]) * gate_up[kLanes + i];
}

void accumulate_scalar(const float* x, float scale, std::size_t n, bool first, float* y) {
  for (std::size_t i = 0; i < n; ++i) y[i] = first ? scale * x[i] : std::fmaf(scale, x[i], y[i]);
}

void enter_tiles_none() {}
void leave_tiles_none() {}

}  // namespace ktc::kernels
