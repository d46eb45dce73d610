// Panels of integers for few rows where there is no vpdpbusd. On the vectors of the level (Vec, Ints).
//
// vpmaddubsw saturates on weights up to 255, so a weight of 8 bits is split into nibbles, w = low + 16 high: a sum of 8 rows is
// at most 8 * 2 * 15 * 128 = 30720 and fits 16 bits. Then vpmaddwd widens, with the factor 16 for the high nibbles.
#pragma once

#include "runtime/kernels/cpu/panel_body.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kParts = 32 / Vec::kWidth;                // registers of columns of a panel
constexpr std::size_t kPartBytes = Vec::kWidth * 4;             // of one byte row of a block
constexpr std::size_t kPartsPerBlock = kParts / 2;

template <bool kInt4>
struct NibblePanel {
  static constexpr std::size_t kBlockBytes = kInt4 ? 512 : 1024;
  static constexpr std::int32_t kZero = kInt4 ? 8 : 128;

  const PanelArgs& a;
  std::int32_t (&sum)[kFewRows * 32];

  // 32 K of one part of the columns for Rows rows from `first`. `w`: the part in the block, `x`: offset of the activations.
  template <int Rows>
  KTC_INLINE void multiply(const std::byte* w, bool high_half, std::size_t x, std::size_t first, std::size_t part) {
    Ints::Reg low[Rows], high[Rows];
    const std::byte* values[Rows];
    KTC_UNROLL for (int m = 0; m < Rows; ++m) {
      low[m] = high[m] = Ints::zero();
      values[m] = a.rows[first + m].values + x;
    }
    if (!kInt4 && high_half) w += 512;
    KTC_UNROLL for (int r = 0; r < 8; ++r) {
      const Ints::Reg v = Ints::load(w + r * 64);
      if constexpr (kInt4) {
        const Ints::Reg nibbles = high_half ? Ints::high_nibbles(v) : Ints::low_nibbles(v);
        KTC_UNROLL for (int m = 0; m < Rows; ++m)
            low[m] = Ints::add16(low[m], Ints::maddubs(nibbles, Ints::set32(load_i32(values[m] + r * 4))));
      } else {
        const Ints::Reg l = Ints::low_nibbles(v), h = Ints::high_nibbles(v);
        KTC_UNROLL for (int m = 0; m < Rows; ++m) {
          const Ints::Reg xs = Ints::set32(load_i32(values[m] + r * 4));
          low[m] = Ints::add16(low[m], Ints::maddubs(l, xs));
          high[m] = Ints::add16(high[m], Ints::maddubs(h, xs));
        }
      }
    }
    KTC_UNROLL for (int m = 0; m < Rows; ++m) {
      std::int32_t* to = sum + (first + m) * 32 + part * Vec::kWidth;
      Ints::Reg s = Ints::add32(Ints::load(to), Ints::madd(low[m], Ints::set16(1)));
      if constexpr (!kInt4) s = Ints::add32(s, Ints::madd(high[m], Ints::set16(16)));
      Ints::store(to, s);
    }
  }

  KTC_INLINE void half(std::size_t offset, bool high_half, std::size_t x) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::byte* w = a.panel + offset + part / kPartsPerBlock * kBlockBytes + part % kPartsPerBlock * kPartBytes;
      std::size_t m = 0;
      for (; m + 4 <= a.m; m += 4) multiply<4>(w, high_half, x, m, part);
      if (a.m - m >= 2) {
        multiply<2>(w, high_half, x, m, part);
        m += 2;
      }
      if (m < a.m) multiply<1>(w, high_half, x, m, part);
    }
  }

  // Start values: the zero point times the sums [first, end) of 32 K.
  KTC_INLINE void start(std::size_t first, std::size_t end) {
    for (std::size_t m = 0; m < a.m; ++m) {
      std::int32_t total = 0;
      for (std::size_t i = first; i < end; ++i) total += a.rows[m].sums[i];
      for (std::size_t part = 0; part < kParts; ++part)
        Ints::store(sum + m * 32 + part * Vec::kWidth, Ints::set32(-kZero * total));
    }
  }

  KTC_INLINE void finish_step(std::size_t group, std::size_t granule) {
    const bool groups = a.layout->group != 0, granules = a.x_granule != 0;
    for (std::size_t part = 0; part < kParts; ++part) {
      const Bf16* scales = reinterpret_cast<const Bf16*>(a.panel + group * 64) + part * Vec::kWidth;
      const Vec::Reg ws = groups ? Vec::load(scales) : Vec::set(1.0f);
      for (std::size_t m = 0; m < a.m; ++m) {
        const std::size_t at = m * 32 + part * Vec::kWidth;
        const Vec::Reg c = Ints::to_float(Ints::load(sum + at));
        Vec::Reg f = c;
        if (groups || granules) {
          const Vec::Reg scale = granules ? Vec::mul(ws, Vec::set(a.rows[m].scales[granule])) : ws;
          f = Vec::fma(c, scale, Vec::load(a.out + at));
        }
        Vec::store(a.out + at, f);
      }
    }
  }

  KTC_INLINE void run() {
    const Steps steps(a);
    Ahead<2 * kBlockBytes> ahead(a);
    const bool halves = a.layout->group == 32;
    std::size_t offset = a.layout->head_bytes;
    for (std::size_t i = 0; i < a.m * 32; i += Vec::kWidth) Vec::store(a.out + i, Vec::zero());
    for (std::size_t kb = 0; kb < steps.blocks;) {
      const std::size_t first = kb, end = at_most(kb + steps.period, steps.blocks);
      if (!halves) start(first * 2, end * 2);
      for (; kb < end; ++kb, offset += 2 * kBlockBytes) {
        ahead.ask();
        if (halves)
          ahead.template ask<2>();
        else if (a.layout->group != 0 && (kb & steps.group_shift) == 0)
          ahead.template ask<1>();
        if (halves) start(kb * 2, kb * 2 + 1);
        half(offset, false, kb * a.kb_stride);
        if (halves) {
          finish_step(kb * 2, kb >> steps.granule_shift);
          start(kb * 2 + 1, kb * 2 + 2);
        }
        half(offset, true, kb * a.kb_stride + 32);
        if (halves) finish_step(kb * 2 + 1, kb >> steps.granule_shift);
      }
      if (!halves) finish_step(first >> steps.group_shift, first >> steps.granule_shift);
    }
    if (a.layout->group == 0) ahead.template ask<2>();
    const float* ws = reinterpret_cast<const float*>(a.panel);
    for (std::size_t m = 0; m < a.m; ++m)
      for (std::size_t i = 0; i < 32; i += Vec::kWidth) {
        Vec::Reg f = Vec::load(a.out + m * 32 + i);
        if (a.x_granule == 0) f = Vec::mul(f, Vec::set(a.rows[m].scales[0]));
        if (a.layout->group == 0) f = Vec::mul(f, Vec::load(ws + i));
        Vec::store(a.out + m * 32 + i, f);
      }
  }
};

template <bool kInt4>
KTC_INLINE void nibble_panel(const PanelArgs& a) {
  alignas(64) std::int32_t sum[kFewRows * 32];
  NibblePanel<kInt4>{a, sum}.run();
}

}  // namespace
}  // namespace ktc::kernels
