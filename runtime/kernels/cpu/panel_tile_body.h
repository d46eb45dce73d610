// Panels for many rows on tiles. The same body runs on AMX (panel_amx.cpp) and on emulated tiles (panel_amx_emulated.cpp).
//
// Rows go in pairs of tiles. kWide = false: one block of features at a time, 2 x 1, which lives on four tile registers (load B;
// load A0, multiply; load A1 into the same register, multiply): on some machines every live register beyond a few costs half the
// rate. kWide = true: both blocks, 2 x 2 on seven registers, two loads per multiplication fewer. A single tile of rows, or what
// remains of the rows, takes 1 x 2; tiles have as many rows as there are.
//
// A step of the arithmetic (panel_kernels.h) ends with the tiles stored and folded into f in `out`. Weights of int4 and fp8 are
// unpacked to tiles of bytes and bf16: once per panel into the caller's scratch above 32 rows, below it block by block.
#pragma once

#include "runtime/kernels/cpu/amx_tile.h"
#include "runtime/kernels/cpu/panel_body.h"
#include "runtime/kernels/cpu/panel_ints_avx512.h"

namespace ktc::kernels {
namespace {

template <Format kFormat, bool kWide>
struct TilePanel {
  static constexpr bool kInteger = kFormat == Format::int8 || kFormat == Format::int4;
  static constexpr bool kUnpacks = kFormat == Format::int4 || kFormat == Format::fp8;
  static constexpr std::int32_t kZero = kFormat == Format::int8 ? 128 : 8;
  static constexpr std::size_t kBlockBytes = kFormat == Format::int4 ? 512 : kFormat == Format::bf16 ? 2048 : 1024;
  static constexpr std::size_t kTileBytes = kInteger ? 1024 : 2048;  // of a block as tiles
  static constexpr std::size_t kRowBytes = kInteger ? 64 : 128;      // of 64 activations
  static constexpr std::size_t kOnce = 32;                           // above so many rows unpacking once per panel wins

  const PanelArgs& a;
  const Steps steps;
  const bool halves;         // groups of 32: a step is half a tile of 64 K
  const std::size_t slices;  // instructions per block and tile of rows
  const bool once;
  // Prefetch of the next panel, spread over the steps.
  const char* ahead;
  std::size_t ahead_lines, lines_per_step;
  alignas(64) std::byte unpacked[2][2048];
  alignas(64) std::int32_t tile[256];
  std::int32_t totals[32];

  KTC_INLINE explicit TilePanel(const PanelArgs& args)
      : a(args),
        steps(args),
        halves(kFormat == Format::int4 && args.layout->group == 32),
        slices(kInteger && !halves ? 1 : 2),
        once(kUnpacks && args.m > kOnce),
        ahead(reinterpret_cast<const char*>(args.next)),
        ahead_lines(args.next == nullptr ? 0 : args.layout->panel_bytes / 64) {
    const std::size_t groups = (a.m + 31) / 32, passes = kWide ? groups : 2 * groups;
    lines_per_step = ahead_lines / (steps.blocks * passes) + 1;
  }

  KTC_INLINE static void unpack(const std::byte* from, std::byte* to) {
    if constexpr (kFormat == Format::int4) {
      KTC_UNROLL for (int r = 0; r < 8; ++r) {
        const __m512i v = Ints::load(from + r * 64);
        Ints::store(to + r * 64, Ints::low_nibbles(v));
        Ints::store(to + 512 + r * 64, Ints::high_nibbles(v));
      }
    } else if constexpr (kFormat == Format::fp8) {
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      KTC_UNROLL for (int r = 0; r < 16; ++r) {
        __m512i k02, k13;
        Ints::decode_fp8(Ints::load(from + r * 64), k02, k13);
        Ints::store(to + r * 128, _mm512_or_si512(_mm512_andnot_si512(high, k02), _mm512_slli_epi32(k13, 16)));
        Ints::store(to + r * 128 + 64, _mm512_or_si512(_mm512_srli_epi32(k02, 16), _mm512_and_si512(k13, high)));
      }
    }
  }

  KTC_INLINE const std::byte* stored(std::size_t kb, std::size_t block) const {
    return a.panel + a.layout->head_bytes + (kb * 2 + block) * kBlockBytes;
  }
  // Block (kb, block) as tiles; `slot`: which local buffer serves when it must be unpacked now.
  KTC_INLINE const std::byte* block_tiles(std::size_t kb, std::size_t block, int slot) {
    if constexpr (!kUnpacks) return stored(kb, block);
    if (once) return a.scratch + (kb * 2 + block) * kTileBytes;
    unpack(stored(kb, block), unpacked[slot]);
    return unpacked[slot];
  }

  KTC_INLINE void prefetch() {
    const std::size_t n = at_most(lines_per_step, ahead_lines);
    for (std::size_t i = 0; i < n; ++i) _mm_prefetch(ahead + 64 * i, _MM_HINT_T1);
    ahead += 64 * n;
    ahead_lines -= n;
  }

  KTC_INLINE void configure(std::size_t rows0, std::size_t rows1) const {
    TileConfig config;
    const std::uint16_t a_bytes = halves ? 32 : 64;
    const auto r0 = static_cast<std::uint8_t>(rows0), r1 = static_cast<std::uint8_t>(rows1);
    const std::uint8_t rows[8] = {r0, r1, r0, static_cast<std::uint8_t>(halves ? 8 : 16), r1, r0, r1,
                                  static_cast<std::uint8_t>(halves ? 8 : 16)};
    for (int t = 0; t < 8; ++t) {
      config.rows[t] = rows[t];
      config.column_bytes[t] = t == 2 || t == 4 ? a_bytes : 64;
    }
    tile_configure(config);
  }

  // Rows of tiles x blocks of features. Registers: C 0, 1, 5, 6; A 2, and 4 when the second tile has other rows; B 3, 7.
  template <int kTiles, int kBlocks, bool kShared>
  struct Shape {
    static constexpr int c(int i, int j) { return j == 0 ? i : kTiles == 1 ? 1 : 5 + i; }
    static constexpr int kA1 = kShared ? 2 : 4;
    static constexpr int kB1 = kTiles == 1 ? 3 : 7;
  };

  template <int kC, int kA, int kB>
  KTC_INLINE static void multiply() {
    if constexpr (kInteger) {
      tile_dpbsud<kC, kA, kB>();
    } else {
      tile_dpbf16ps<kC, kA, kB>();
    }
  }

  template <int kTiles, int kBlocks, bool kShared>
  KTC_INLINE static void zero() {
    using S = Shape<kTiles, kBlocks, kShared>;
    tile_zero<S::c(0, 0)>();
    if constexpr (kTiles == 2) tile_zero<S::c(1, 0)>();
    if constexpr (kBlocks == 2) tile_zero<S::c(0, 1)>();
    if constexpr (kBlocks == 2 && kTiles == 2) tile_zero<S::c(1, 1)>();
  }

  template <int kTiles, int kBlocks, bool kShared>
  KTC_INLINE static void multiply_all(const std::byte* a0, const std::byte* a1, const std::byte* b0, const std::byte* b1) {
    using S = Shape<kTiles, kBlocks, kShared>;
    tile_load<3>(b0, 64);
    if constexpr (kBlocks == 2 && kTiles == 2) tile_load<S::kB1>(b1, 64);
    tile_load<2>(a0, kRowBytes);
    multiply<S::c(0, 0), 2, 3>();
    if constexpr (kBlocks == 2 && kTiles == 1) tile_load<S::kB1>(b1, 64);
    if constexpr (kBlocks == 2) multiply<S::c(0, 1), 2, S::kB1>();
    if constexpr (kTiles == 2) {
      tile_load<S::kA1>(a1, kRowBytes);
      multiply<S::c(1, 0), S::kA1, 3>();
      if constexpr (kBlocks == 2) multiply<S::c(1, 1), S::kA1, S::kB1>();
    }
  }

  // Folds the sums of one tile into `out`: rows [first, first + count), one block, the step over halves [begin, end).
  KTC_INLINE void fold_integers(std::size_t first, std::size_t count, std::size_t block, std::size_t begin, std::size_t end,
                                const std::int32_t* row_totals) {
    const bool groups = a.layout->group != 0, granules = a.x_granule != 0, last = end == steps.blocks * 2;
    const std::size_t group = halves ? begin : begin / 2 >> steps.group_shift, granule = begin / 2 >> steps.granule_shift;
    __m512 ws = _mm512_setzero_ps();
    if (groups) {
      const std::byte* p = a.panel + (group * 2 + block) * 32;
      ws = Ints::low_bf16(_mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))));
    } else if (last) {
      ws = _mm512_load_ps(reinterpret_cast<const float*>(a.panel) + block * 16);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const PanelRow& row = a.rows[first + i];
      float* out = a.out + (first + i) * 32 + block * 16;
      std::int32_t sum = 0;
      if (groups || granules) {
        for (std::size_t h = begin; h < end; ++h) sum += row.sums[h];
      } else {
        sum = row_totals[i];
      }
      const __m512i whole = _mm512_sub_epi32(_mm512_load_si512(tile + i * 16), _mm512_set1_epi32(kZero * sum));
      __m512 f = _mm512_cvtepi32_ps(whole);
      if (groups || granules) {
        const __m512 as = granules ? _mm512_set1_ps(row.scales[granule]) : _mm512_setzero_ps();
        const __m512 scale = groups && granules ? _mm512_mul_ps(ws, as) : groups ? ws : as;
        f = _mm512_fmadd_ps(f, scale, begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out));
      }
      if (last && !granules) f = _mm512_mul_ps(f, _mm512_set1_ps(row.scales[0]));
      if (last && !groups) f = _mm512_mul_ps(f, ws);
      _mm512_store_ps(out, f);
    }
  }

  KTC_INLINE void fold_floats(std::size_t first, std::size_t count, std::size_t block, std::size_t begin) {
    const bool groups = a.layout->group != 0;
    const std::size_t group = groups ? begin / 2 / steps.period : 0;
    const __m512 ws = _mm512_load_ps(reinterpret_cast<const float*>(a.panel) + (group * 2 + block) * 16);
    for (std::size_t i = 0; i < count; ++i) {
      float* out = a.out + (first + i) * 32 + block * 16;
      const __m512 c = _mm512_castsi512_ps(_mm512_load_si512(tile + i * 16));
      const __m512 before = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out);
      _mm512_store_ps(out, groups ? _mm512_fmadd_ps(c, ws, before) : _mm512_mul_ps(c, ws));
    }
  }

  template <int kC>
  KTC_INLINE void fold(std::size_t first, std::size_t count, std::size_t block, std::size_t begin, std::size_t end,
                       const std::int32_t* row_totals) {
    if constexpr (kFormat == Format::bf16) {
      tile_store<kC>(a.out + first * 32 + block * 16, 128);
    } else {
      tile_store<kC>(tile, 64);
      if constexpr (kInteger) {
        fold_integers(first, count, block, begin, end, row_totals);
      } else {
        fold_floats(first, count, block, begin);
      }
    }
  }

  // Rows [first, first + rows0 + rows1) in kTiles tiles.
  template <int kTiles, int kBlocks, bool kShared>
  KTC_INLINE void group(std::size_t first, std::size_t rows0, std::size_t rows1) {
    using S = Shape<kTiles, kBlocks, kShared>;
    const std::size_t stride = a.kb_stride, blocks = steps.blocks;
    const std::size_t a_slice = halves ? 32 : 64, b_slice = halves ? 512 : 1024;
    const std::byte* a0 = a.rows[first].values;
    const std::byte* a1 = kTiles == 2 ? a.rows[first + 16].values : a0;
    if (kInteger && a.layout->group == 0 && a.x_granule == 0)
      for (std::size_t i = 0; i < rows0 + rows1; ++i) totals[i] = Ints::total(a.rows[first + i].sums, blocks * 2);
    for (std::size_t block = 0; block < 2; block += kBlocks) {
      const auto fold_all = [&](std::size_t begin, std::size_t end) __attribute__((always_inline)) {
        fold<S::c(0, 0)>(first, rows0, block, begin, end, totals);
        if constexpr (kTiles == 2) fold<S::c(1, 0)>(first + 16, rows1, block, begin, end, totals + 16);
        if constexpr (kBlocks == 2) fold<S::c(0, 1)>(first, rows0, 1, begin, end, totals);
        if constexpr (kBlocks == 2 && kTiles == 2) fold<S::c(1, 1)>(first + 16, rows1, 1, begin, end, totals + 16);
      };
      for (std::size_t kb = 0; kb < blocks;) {
        const std::size_t begin = kb, end = at_most(kb + steps.period, blocks);
        zero<kTiles, kBlocks, kShared>();
        for (; kb < end; ++kb) {
          const std::byte* b0 = block_tiles(kb, block, 0);
          const std::byte* b1 = kBlocks == 2 ? block_tiles(kb, 1, 1) : b0;
          for (std::size_t t = 0; t < slices; ++t) {
            multiply_all<kTiles, kBlocks, kShared>(a0 + kb * stride + t * a_slice, a1 + kb * stride + t * a_slice,
                                                   b0 + t * b_slice, b1 + t * b_slice);
            if (halves) {
              fold_all(kb * 2 + t, kb * 2 + t + 1);
              zero<kTiles, kBlocks, kShared>();
            }
          }
          prefetch();
        }
        if (!halves) fold_all(begin * 2, end * 2);
      }
    }
  }

  KTC_INLINE void run() {
    constexpr int kBlocks = kWide ? 2 : 1;
    if (once)
      for (std::size_t i = 0; i < steps.blocks * 2; ++i) unpack(stored(i / 2, i % 2), a.scratch + i * kTileBytes);
    const std::size_t paired = a.m / 32 * 32, rest = a.m - paired;
    if (paired != 0) configure(16, 16);
    for (std::size_t first = 0; first < paired; first += 32) group<2, kBlocks, true>(first, 16, 16);
    if (rest > 16) {
      configure(16, rest - 16);
      group<2, kBlocks, false>(paired, 16, rest - 16);
    } else if (rest != 0) {
      configure(rest, rest);
      group<1, 2, true>(paired, rest, 0);
    }
  }
};

template <Format kFormat, bool kWide>
KTC_INLINE void tile_panel(const PanelArgs& a) {
  TilePanel<kFormat, kWide>(a).run();
}

}  // namespace
}  // namespace ktc::kernels
