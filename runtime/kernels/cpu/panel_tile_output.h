// What a tile kernel does with its sums: scales, then rows, gated blocks or sums over experts (TileResult).
//
// Sums of a group of rows wait in memory while the tiles of the next group are multiplied: a tile multiplication leaves most of
// the vector units idle, so a row or two of the group before is finished after each.
#pragma once

#include "runtime/kernels/cpu/exp_body.h"
#include "runtime/kernels/cpu/panel_body.h"
#include "runtime/kernels/cpu/panel_ints_avx512.h"

namespace ktc::kernels {
namespace {

// kIntegers: sums are int32, of all K; otherwise they are the f of the arithmetic before the last two scales.
template <Format kFormat, bool kIntegers>
struct TileOutput {
  static constexpr bool kScaledRows = kFormat == Format::int8 || kFormat == Format::int4;
  static constexpr bool kScaledFeatures = kFormat != Format::bf16;

  const TileArgs& a;
  const std::byte* head = nullptr;     // scales of the panel whose rows wait
  const std::int32_t* sums = nullptr;  // [rows][32] of them, from row `row`
  std::size_t panel = 0, row = 0, end = 0;

  KTC_INLINE explicit TileOutput(const TileArgs& args) : a(args) {}
  KTC_INLINE std::size_t waiting() const { return end - row; }

  // Rows [first, last) of panel p wait, with their sums.
  KTC_INLINE void wait(std::size_t p, std::size_t first, std::size_t last, const void* group_sums) {
    head = a.panels + p * a.layout->panel_bytes;
    sums = static_cast<const std::int32_t*>(group_sums);
    panel = p;
    row = first;
    end = last;
  }

  KTC_INLINE void store_row(__m512 f0, __m512 f1) const {
    float* out = a.out + row * a.out_stride + panel * 32;
    const std::size_t left = a.columns - at_most(panel * 32, a.columns);
    const __mmask16 m0 = Ints::first(at_most(left, 16)), m1 = Ints::first(at_most(left - at_most(left, 16), 16));
    if (a.bias != nullptr) {
      f0 = _mm512_add_ps(f0, _mm512_maskz_loadu_ps(m0, a.bias + panel * 32));
      f1 = _mm512_add_ps(f1, _mm512_maskz_loadu_ps(m1, a.bias + panel * 32 + 16));
    }
    _mm512_mask_storeu_ps(out, m0, f0);
    _mm512_mask_storeu_ps(out + 16, m1, f1);
  }

  template <TileResult kResult>
  KTC_INLINE void advance_rows(std::size_t rows) {
    const bool by_row = kScaledRows && (kIntegers || a.x_granule == 0), by_feature = kScaledFeatures && (kIntegers || a.layout->group == 0);
    const float* const ws = reinterpret_cast<const float*>(head);
    __m512 ws0 = _mm512_setzero_ps(), ws1 = ws0;
    if (by_feature) ws0 = _mm512_load_ps(ws), ws1 = _mm512_load_ps(ws + 16);
    for (const std::size_t stop = row + at_most(rows, end - row); row < stop; ++row, sums += 32) {
      __m512 f0, f1;
      const std::size_t tile = row / kTileRows, lane = row % kTileRows;
      if constexpr (kIntegers) {
        __m512i c0 = _mm512_load_si512(sums), c1 = _mm512_load_si512(sums + 16);
        if constexpr (kFormat == Format::int8) {  // the weights are unsigned, w + 128
          const __m512i zero = _mm512_set1_epi32(128 * a.x.sums[row]);
          c0 = _mm512_sub_epi32(c0, zero);
          c1 = _mm512_sub_epi32(c1, zero);
        }
        f0 = _mm512_cvtepi32_ps(c0);
        f1 = _mm512_cvtepi32_ps(c1);
      } else {
        f0 = _mm512_load_ps(reinterpret_cast<const float*>(sums));
        f1 = _mm512_load_ps(reinterpret_cast<const float*>(sums) + 16);
      }
      if (by_row) {
        const __m512 scale = _mm512_set1_ps(a.x.scales[row]);
        f0 = _mm512_mul_ps(f0, scale);
        f1 = _mm512_mul_ps(f1, scale);
      }
      if (by_feature) {
        f0 = _mm512_mul_ps(f0, ws0);
        f1 = _mm512_mul_ps(f1, ws1);
      }
      if constexpr (kResult == TileResult::gated) {
        _mm512_store_ps(a.out + tile * a.out_stride + (panel * kTileRows + lane) * 16, Vec::mul(silu(f0), f1));
      } else if constexpr (kResult == TileResult::sums) {
        float* out = a.out + panel * a.out_stride + std::size_t{a.out_row[row]} * 32;
        const __m512 s = _mm512_set1_ps(a.out_scale[row]);
        _mm512_store_ps(out, _mm512_fmadd_ps(s, f0, _mm512_load_ps(out)));
        _mm512_store_ps(out + 16, _mm512_fmadd_ps(s, f1, _mm512_load_ps(out + 16)));
      } else {
        store_row(f0, f1);
      }
    }
  }
  // Not inlined: the loops around it are small, and nothing of theirs is in vector registers.
  __attribute__((noinline)) void advance(std::size_t rows) {
    switch (a.result) {
      case TileResult::gated: return advance_rows<TileResult::gated>(rows);
      case TileResult::sums: return advance_rows<TileResult::sums>(rows);
      case TileResult::rows: return advance_rows<TileResult::rows>(rows);
    }
  }
  KTC_INLINE void finish() {
    if (row != end) advance(end - row);
  }
};

// Lines asked for from the second cache, a few after each multiplication.
struct TileAhead {
  const char* at = nullptr;
  std::size_t lines = 0, per_step = 0;

  KTC_INLINE void start(const std::byte* from, std::size_t bytes, std::size_t steps) {
    at = reinterpret_cast<const char*>(from);
    lines = from == nullptr ? 0 : bytes / 64;
    per_step = lines / steps + 1;
  }
  KTC_INLINE void ask() {
    const std::size_t n = at_most(per_step, lines);
    for (std::size_t i = 0; i < n; ++i) _mm_prefetch(at + 64 * i, _MM_HINT_T1);
    at += 64 * n;
    lines -= n;
  }
};

}  // namespace
}  // namespace ktc::kernels
