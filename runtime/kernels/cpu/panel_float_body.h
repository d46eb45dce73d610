// Panels of bf16 and fp8 for few rows, on the vectors of the level (Vec, Ints): widened to f32, in the order of the tile
// instructions, so that few and many rows agree. Two multiply-adds do what one vdpbf16ps does, in another order; memory is slower
// than either.
#pragma once

#include "runtime/kernels/cpu/panel_body.h"

namespace ktc::kernels {
namespace {

constexpr int kFloatRows = Vec::kWidth == 16 ? 8 : 4;  // whose two sums each stay in registers

// Two pairs of K (k, k + 1), (k + 2, k + 3) of one register of columns, as even[pair] and odd[pair].
struct Bf16Weights {
  static constexpr std::size_t kBlockBytes = 2048, kTileBytes = 1024;
  KTC_INLINE static void load(const std::byte* w, int quad, Vec::Reg (&even)[2], Vec::Reg (&odd)[2]) {
    KTC_UNROLL for (int i = 0; i < 2; ++i) {
      const Ints::Reg v = Ints::load(w + (quad * 2 + i) * 64);
      even[i] = Ints::low_bf16(v);
      odd[i] = Ints::high_bf16(v);
    }
  }
};
struct Fp8Weights {
  static constexpr std::size_t kBlockBytes = 1024, kTileBytes = 512;
  KTC_INLINE static void load(const std::byte* w, int quad, Vec::Reg (&even)[2], Vec::Reg (&odd)[2]) {
    Ints::Reg k02, k13;
    Ints::decode_fp8(Ints::load(w + quad * 64), k02, k13);
    even[0] = Ints::low_bf16(k02);
    even[1] = Ints::high_bf16(k02);
    odd[0] = Ints::low_bf16(k13);
    odd[1] = Ints::high_bf16(k13);
  }
};

// c += 32 K of one register of columns for Rows rows.
template <typename Weights, int Rows>
KTC_INLINE void add_tile(const std::byte* w, const PanelRow* rows, std::size_t x, float* c) {
  Vec::Reg even[Rows], odd[Rows];
  const std::byte* values[Rows];
  KTC_UNROLL for (int m = 0; m < Rows; ++m) {
    even[m] = odd[m] = Vec::zero();
    values[m] = rows[m].values + x;
  }
  KTC_UNROLL for (int quad = 0; quad < 8; ++quad) {
    Vec::Reg w_even[2], w_odd[2];
    Weights::load(w, quad, w_even, w_odd);
    KTC_UNROLL for (int i = 0; i < 2; ++i) {
      KTC_UNROLL for (int m = 0; m < Rows; ++m) {
        const Ints::Reg pair = Ints::set32(load_i32(values[m] + quad * 8 + i * 4));
        even[m] = Vec::fma(Ints::low_bf16(pair), w_even[i], even[m]);
        odd[m] = Vec::fma(Ints::high_bf16(pair), w_odd[i], odd[m]);
      }
    }
  }
  KTC_UNROLL for (int m = 0; m < Rows; ++m)
      Vec::store(c + m * 32, Vec::add(Vec::load(c + m * 32), Vec::add(even[m], odd[m])));
}

template <typename Weights>
KTC_INLINE void add_block(const PanelArgs& a, std::size_t offset, std::size_t x, float* c) {
  constexpr std::size_t kWidth = Vec::kWidth;
  for (std::size_t tile = 0; tile < 2; ++tile, x += 64)
    for (std::size_t column = 0; column < 32; column += kWidth) {
      const std::byte* w =
          a.panel + offset + column / 16 * Weights::kBlockBytes + tile * Weights::kTileBytes + column % 16 * 4;
      std::size_t m = 0;
      if constexpr (kFloatRows == 8) {
        if (a.m == 8) {
          add_tile<Weights, 8>(w, a.rows, x, c + column);
          m = 8;
        }
      }
      for (; m + 4 <= a.m; m += 4) add_tile<Weights, 4>(w, a.rows + m, x, c + m * 32 + column);
      if (a.m - m >= 2) {
        add_tile<Weights, 2>(w, a.rows + m, x, c + m * 32 + column);
        m += 2;
      }
      if (m < a.m) add_tile<Weights, 1>(w, a.rows + m, x, c + m * 32 + column);
    }
}

KTC_INLINE void clear(float* p, std::size_t count) {
  for (std::size_t i = 0; i < count; i += Vec::kWidth) Vec::store(p + i, Vec::zero());
}

template <typename Weights>
KTC_INLINE void float_panel(const PanelArgs& a) {
  const bool scaled = a.layout->format == Format::fp8, grouped = a.layout->group != 0;
  const std::size_t blocks = a.layout->k_blocks, period = grouped ? a.layout->group / 64 : blocks, count = a.m * 32;
  Ahead<2 * Weights::kBlockBytes> ahead(a);
  alignas(64) float sums[kFewRows * 32];
  float* c = grouped ? sums : a.out;
  clear(a.out, count);
  std::size_t offset = a.layout->head_bytes;
  for (std::size_t kb = 0; kb < blocks;) {
    const float* ws = reinterpret_cast<const float*>(a.panel) + kb / period * 32;
    if (grouped) {
      clear(sums, count);
      ahead.template ask<2>();
    }
    for (const std::size_t end = at_most(kb + period, blocks); kb < end; ++kb, offset += 2 * Weights::kBlockBytes) {
      ahead.ask();
      add_block<Weights>(a, offset, kb * a.kb_stride, c);
    }
    if (!scaled) continue;
    for (std::size_t i = 0; i < count; i += Vec::kWidth) {
      const Vec::Reg scale = Vec::load(ws + i % 32), sum = Vec::load(c + i);
      Vec::store(a.out + i, grouped ? Vec::fma(sum, scale, Vec::load(a.out + i)) : Vec::mul(sum, scale));
    }
  }
  if (scaled && !grouped) ahead.template ask<2>();
}

}  // namespace
}  // namespace ktc::kernels
