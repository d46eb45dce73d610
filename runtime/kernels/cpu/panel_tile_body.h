// Panels for many rows on tiles. The same bodies run on AMX (panel_amx.cpp) and on emulated tiles (panel_amx_emulated.cpp).
//
// A call goes through K in outer pieces, so that the activations of one stay in the second cache for all panels, and in inner
// pieces, so that a panel's weights of one stay in the first cache for all rows. Between pieces sums wait in the scratch: int32,
// or f32 in the order of the arithmetic, so the cut changes nothing.
//
// TilePass has the loops and what both kinds of kernel share:
//   WholeTiles    one step of the arithmetic (panel_kernels.h) is all K: sums stay in tiles over an inner piece
//   SteppedTiles  scales along K (panel_tile_steps.h)
// Weights of int4 and fp8, and of int8 where that saves a zero point per step, are first unpacked to signed bytes or bf16, an
// inner piece at a time, which the first cache holds.
#pragma once

#include "runtime/kernels/cpu/amx_tile.h"
#include "runtime/kernels/cpu/panel_tile_output.h"

namespace ktc::kernels {
namespace {

template <Format kFormat, bool kUnpackBytes>
struct TilePass {
  static constexpr bool kInteger = kFormat == Format::int8 || kFormat == Format::int4;
  static constexpr bool kUnpacks = kFormat == Format::int4 || kFormat == Format::fp8 || kUnpackBytes;
  static constexpr std::size_t kBlockBytes = kFormat == Format::int4 ? 512 : kFormat == Format::bf16 ? 2048 : 1024;
  static constexpr std::size_t kTileBytes = kInteger ? 1024 : 2048;  // of a block as tiles, and of 64 K of 16 rows
  static constexpr std::size_t kRowBytes = kInteger ? 64 : 128;      // of 64 activations

  const TileArgs& a;
  const std::size_t blocks, tiles, outer, inner;
  std::byte* const unpacked;
  std::int32_t* const sums;   // [panels or 2][rows][32], or two groups of rows where K is not cut
  bool odd_group = false;
  const std::byte* weights = nullptr;  // of this pass, two blocks per 64 K
  TileAhead panel_ahead, values_ahead;

  KTC_INLINE explicit TilePass(const TileArgs& args)
      : a(args),
        blocks(args.layout->k_blocks),
        tiles((args.m + kTileRows - 1) / kTileRows),
        outer(args.k_outer == 0 ? blocks : at_most(args.k_outer, blocks)),
        inner(args.k_inner == 0 ? outer : at_most(args.k_inner, outer)),
        unpacked(args.scratch + kMostTilePanels * kMostTileRows * 128),
        sums(reinterpret_cast<std::int32_t*>(args.scratch)) {}

  // The sums of the rows from tile t on.
  KTC_INLINE std::int32_t* sums_of(std::size_t p, std::size_t t) {
    if (inner == blocks) {
      odd_group = !odd_group;
      return sums + (odd_group ? 1024 : 0);
    }
    const std::size_t place = outer == blocks ? p % 2 : p;  // two, because the last rows of one panel wait during the next
    return sums + (place * tiles + t) * kTileRows * 32;
  }

  KTC_INLINE static void unpack(const std::byte* from, std::byte* to) {
    if constexpr (kFormat == Format::int4) {
      const __m512i zero = _mm512_set1_epi8(8);
      KTC_UNROLL for (int r = 0; r < 8; ++r) {
        const __m512i v = Ints::load(from + r * 64);
        Ints::store(to + r * 64, _mm512_sub_epi8(Ints::low_nibbles(v), zero));
        Ints::store(to + 512 + r * 64, _mm512_sub_epi8(Ints::high_nibbles(v), zero));
      }
    } else if constexpr (kFormat == Format::int8) {
      const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
      KTC_UNROLL for (int r = 0; r < 16; ++r) Ints::store(to + r * 64, _mm512_xor_si512(Ints::load(from + r * 64), sign));
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

  KTC_INLINE const std::byte* stored(std::size_t p, std::size_t kb) const {
    return a.panels + p * a.layout->panel_bytes + a.layout->head_bytes + kb * 2 * kBlockBytes;
  }
  KTC_INLINE const std::byte* values(std::size_t t, std::size_t kb) const {
    return a.x.values + (t * blocks + kb) * kTileBytes;
  }

  // Asks, over `steps` steps, for the weights of the pass after panel p's K up to `end`; the outer piece is K [k0, k1).
  KTC_INLINE void look_ahead(std::size_t p, std::size_t end, std::size_t k0, std::size_t k1, std::size_t steps) {
    const bool same_panel = end < k1, same_piece = same_panel || p + 1 < a.count, same_call = same_piece || end < blocks;
    const std::size_t k = same_panel ? end : same_piece ? k0 : same_call ? end : 0;
    std::size_t bytes = at_most(inner, blocks - k) * 2 * kBlockBytes, head = k == 0 ? a.layout->head_bytes : 0;
    const std::byte* from = same_panel    ? stored(p, k)
                            : same_piece  ? stored(p + 1, k)
                            : same_call   ? stored(0, k)
                            : a.next_panel == nullptr ? nullptr : a.next_panel + head;
    panel_ahead.start(from == nullptr ? from : from - head, bytes + head, steps);
  }
  KTC_INLINE void look_further() {
    panel_ahead.ask();
    values_ahead.ask();
  }

  // Calls group(p, k, end, t, tiles) for every panel, piece of K and `at_once` tiles; `group` takes steps_each steps per 64 K.
  template <typename Group>
  KTC_INLINE void for_groups(std::size_t at_once, std::size_t steps_each, const Group& group) {
    const std::size_t groups = (tiles + at_once - 1) / at_once;
    values_ahead.start(a.next_values, a.next_value_bytes, groups * steps_each * blocks * a.count);
    for (std::size_t k0 = 0; k0 < blocks; k0 += outer) {
      const std::size_t k1 = at_most(k0 + outer, blocks);
      for (std::size_t p = 0; p < a.count; ++p)
        for (std::size_t k = k0; k < k1; k += inner) {
          const std::size_t end = at_most(k + inner, k1);
          look_ahead(p, end, k0, k1, groups * steps_each * (end - k));
          weights = stored(p, k);
          if constexpr (kUnpacks) {
            for (std::size_t i = 0; i < 2 * (end - k); ++i) unpack(weights + i * kBlockBytes, unpacked + i * kTileBytes);
            weights = unpacked;
          }
          for (std::size_t t = 0; t < tiles; t += at_once) group(p, k, end, t, at_most(at_once, tiles - t));
        }
    }
  }

  // All tiles have the rows of the first one; of an incomplete last tile among several nothing is told to the processor.
  KTC_INLINE void configure(bool halves) const {
    TileConfig config;
    const auto rows = static_cast<std::uint8_t>(at_most(a.m, kTileRows)), weight_rows = static_cast<std::uint8_t>(halves ? 8 : 16);
    for (int t = 0; t < 8; ++t) {
      const bool is_b = t == 3 || t == 7;
      config.rows[t] = is_b ? weight_rows : rows;
      config.column_bytes[t] = t == 2 && halves ? 32 : 64;
    }
    tile_configure(config);
  }
};

// kTiles of rows by kBlocks of features at once. Registers: sums 0, 1, 5, 6; A 2; B 3, 7. On some machines every live register
// beyond a few costs half the rate, so one A and one B register serve wherever the loads allow it.
template <Format kFormat, int kTiles, int kBlocks>
struct WholeTiles : TilePass<kFormat, false> {
  using Pass = TilePass<kFormat, false>;
  static constexpr bool kInteger = Pass::kInteger;
  TileOutput<kFormat, kInteger> output;

  KTC_INLINE explicit WholeTiles(const TileArgs& args) : Pass(args), output(args) {}

  template <int kA, int kB>
  static constexpr int kSum = kB == 0 ? kA : kA == 0 ? 5 : 6;

  template <int kC, int kB>
  KTC_INLINE static void multiply() {
    if constexpr (kFormat == Format::int8) {
      tile_dpbsud<kC, 2, kB>();
    } else if constexpr (kFormat == Format::int4) {
      tile_dpbssd<kC, 2, kB>();
    } else {
      tile_dpbf16ps<kC, 2, kB>();
    }
  }

  template <int T, int B, typename Fn>
  KTC_INLINE static void each_sum(const Fn& fn) {
    fn.template operator()<kSum<0, 0>>(0, 0);
    if constexpr (B == 2) fn.template operator()<kSum<0, 1>>(0, 1);
    if constexpr (T == 2) fn.template operator()<kSum<1, 0>>(1, 0);
    if constexpr (T == 2 && B == 2) fn.template operator()<kSum<1, 1>>(1, 1);
  }

  // One instruction's K for every sum.
  template <int T, int B>
  KTC_INLINE static void multiply_all(const std::byte* a0, const std::byte* a1, const std::byte* b0, const std::byte* b1) {
    if constexpr (B == 1) {
      tile_load<3>(b0, 64);
      tile_load<2>(a0, Pass::kRowBytes);
      multiply<kSum<0, 0>, 3>();
      if constexpr (T == 2) {
        tile_load<2>(a1, Pass::kRowBytes);
        multiply<kSum<1, 0>, 3>();
      }
    } else if constexpr (T == 1) {
      tile_load<2>(a0, Pass::kRowBytes);
      tile_load<3>(b0, 64);
      multiply<kSum<0, 0>, 3>();
      tile_load<3>(b1, 64);
      multiply<kSum<0, 1>, 3>();
    } else {
      tile_load<3>(b0, 64);
      tile_load<7>(b1, 64);
      tile_load<2>(a0, Pass::kRowBytes);
      multiply<kSum<0, 0>, 3>();
      multiply<kSum<0, 1>, 7>();
      tile_load<2>(a1, Pass::kRowBytes);
      multiply<kSum<1, 0>, 3>();
      multiply<kSum<1, 1>, 7>();
    }
  }

  template <int T, int B>
  KTC_INLINE void group(std::size_t p, std::size_t k, std::size_t end, std::size_t t) {
    constexpr std::size_t kTileBytes = Pass::kTileBytes, kSlices = kInteger ? 1 : 2;
    std::int32_t* const c = this->sums_of(p, t);
    const std::size_t steps = (end - k) * (2 / B), rows_per_step = (output.waiting() + steps - 1) / steps;
    for (int block = 0; block < 2; block += B) {
      const auto place = [&](int i, int j) __attribute__((always_inline)) { return c + i * 512 + (block + j) * 16; };
      each_sum<T, B>([&]<int kC>(int i, int j) __attribute__((always_inline)) {
        if (k == 0) {
          tile_zero<kC>();
        } else {
          tile_load<kC>(place(i, j), 128);
        }
      });
      const std::byte *a0 = this->values(t, k), *a1 = this->values(t + (T == 2 ? 1 : 0), k);
      const std::byte* b = this->weights + static_cast<std::size_t>(block) * kTileBytes;
      for (std::size_t kb = k; kb < end; ++kb, a0 += kTileBytes, a1 += kTileBytes, b += 2 * kTileBytes) {
        for (std::size_t s = 0; s < kSlices; ++s)
          multiply_all<T, B>(a0 + s * 64, a1 + s * 64, b + s * 1024, b + kTileBytes + s * 1024);
        this->look_further();
        if (output.waiting() != 0) output.advance(rows_per_step);
      }
      each_sum<T, B>([&]<int kC>(int i, int j) __attribute__((always_inline)) { tile_store<kC>(place(i, j), 128); });
    }
    if (end != this->blocks) return;
    output.finish();
    output.wait(p, t * kTileRows, at_most((t + T) * kTileRows, this->a.m), c);
  }

  KTC_INLINE void run() {
    this->configure(false);
    this->for_groups(kTiles, 2 / kBlocks,
                     [&](std::size_t p, std::size_t k, std::size_t end, std::size_t t, std::size_t n)
                         __attribute__((always_inline)) {
                           if constexpr (kTiles == 1) {
                             group<1, kBlocks>(p, k, end, t);
                           } else if (n == 2) {
                             group<2, kBlocks>(p, k, end, t);
                           } else {
                             group<1, 2>(p, k, end, t);
                           }
                         });
    output.finish();
  }
};

}  // namespace
}  // namespace ktc::kernels
