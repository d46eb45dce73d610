// Panels of bf16 and fp8 for few rows, on the vectors of the level (Vec, Ints): widened to f32, in the order of the tile
// instructions, so that few and many rows agree. Two multiply-adds do what one vdpbf16ps does, in another order, and no slower
// than the memory. The activations of 64 K are widened once for all 32 features: a multiply-add then takes one from memory, and
// what is left beside it is to widen the weights.
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

// 32 K of one row in f32, as a tile instruction takes them.
struct WideTile {
  float even[16], odd[16];
};

KTC_INLINE void widen(const std::byte* x, WideTile& to) {
  for (std::size_t pair = 0; pair < 16; pair += Vec::kWidth) {
    Ints::Reg v;
    __builtin_memcpy(&v, x + pair * 4, sizeof v);
    Vec::store(to.even + pair, Ints::low_bf16(v));
    Vec::store(to.odd + pair, Ints::high_bf16(v));
  }
}

// c += 32 K of one register of columns for Rows rows. Asks for `lines` lines, a few at a time: all at once would fill the queue
// that the loads need.
template <typename Weights, int Rows, int kLines, typename Prefetch>
KTC_INLINE void add_tile(const std::byte* w, const WideTile* x, float* c, Prefetch& ahead) {
  Vec::Reg even[Rows], odd[Rows];
  KTC_UNROLL for (int m = 0; m < Rows; ++m) even[m] = odd[m] = Vec::zero();
  KTC_UNROLL for (int quad = 0; quad < 8; ++quad) {
    if constexpr (kLines > 0) {
      if (quad % 2 == 0) {
        KTC_UNROLL for (int i = 0; i < kLines / 4; ++i) ahead.line(static_cast<std::size_t>(quad / 2 * (kLines / 4) + i));
      }
    }
    Vec::Reg w_even[2], w_odd[2];
    Weights::load(w, quad, w_even, w_odd);
    KTC_UNROLL for (int i = 0; i < 2; ++i) {
      KTC_UNROLL for (int m = 0; m < Rows; ++m) {
        even[m] = Vec::fma(Vec::set(x[m].even[quad * 2 + i]), w_even[i], even[m]);
        odd[m] = Vec::fma(Vec::set(x[m].odd[quad * 2 + i]), w_odd[i], odd[m]);
      }
    }
  }
  if constexpr (kLines > 0) ahead.pass(kLines);
  KTC_UNROLL for (int m = 0; m < Rows; ++m)
      Vec::store(c + m * 32, Vec::add(Vec::load(c + m * 32), Vec::add(even[m], odd[m])));
}

// 64 K of the panel for all rows.
template <typename Weights, typename Prefetch>
KTC_INLINE void add_block(const PanelArgs& a, std::size_t offset, std::size_t x, float* c, Prefetch& ahead) {
  constexpr std::size_t kWidth = Vec::kWidth;
  constexpr int kLines = static_cast<int>(Weights::kTileBytes * kWidth / 16 / 64);  // that one register of columns reads
  for (std::size_t tile = 0; tile < 2; ++tile, x += 64) {
    WideTile wide[kFewRows];
    for (std::size_t m = 0; m < a.m; ++m) widen(a.rows[m].values + x, wide[m]);
    for (std::size_t column = 0; column < 32; column += kWidth) {
      const std::byte* w =
          a.panel + offset + column / 16 * Weights::kBlockBytes + tile * Weights::kTileBytes + column % 16 * 4;
      const WideTile* row = wide;
      float* to = c + column;
      std::size_t left = a.m;
      const auto take = [&]<int kRows>() __attribute__((always_inline)) {
        if (row == wide)
          add_tile<Weights, kRows, kLines>(w, row, to, ahead);
        else
          add_tile<Weights, kRows, 0>(w, row, to, ahead);
        row += kRows, to += kRows * 32, left -= kRows;
      };
      if constexpr (kFloatRows == 8) {  // one pass: weights are widened, or decoded, once
        if (left == 8) take.template operator()<8>();
        if (left == 7) take.template operator()<7>();
        if (left == 6) take.template operator()<6>();
        if (left == 5) take.template operator()<5>();
      }
      while (left >= 4) take.template operator()<4>();
      if (left == 3) take.template operator()<3>();
      if (left >= 2) take.template operator()<2>();
      if (left != 0) take.template operator()<1>();
    }
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
    for (const std::size_t end = at_most(kb + period, blocks); kb < end; ++kb, offset += 2 * Weights::kBlockBytes)
      add_block<Weights>(a, offset, kb * a.kb_stride, c, ahead);
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
