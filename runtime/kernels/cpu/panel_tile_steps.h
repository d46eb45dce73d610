// Panels for many rows on tiles, with scales along K: every step of the arithmetic ends with its sums scaled and added to f.
//
// One tile of 16 rows by one block of features at a time, so that f stays in 16 vector registers. A tile multiplication takes
// some 50 cycles with its loads, in which the vector units have time to scale the 16 rows of the step before: sums go to one
// of two buffers in turn.
#pragma once

#include "runtime/kernels/cpu/panel_tile_body.h"

namespace ktc::kernels {
namespace {

// kGroups: weights have scales along K. kGranules: activations have. kHalves (int4): groups of 32, two steps per 64 K.
template <Format kFormat, bool kGroups, bool kGranules, bool kHalves>
struct SteppedTiles : TilePass<kFormat, true> {
  using Pass = TilePass<kFormat, true>;
  static constexpr bool kInteger = Pass::kInteger;

  TileOutput<kFormat, false> output;
  std::size_t period;  // 64 K per step
  unsigned group_shift, granule_shift;
  std::size_t granules;
  alignas(64) std::int32_t buffer[2][256] = {};

  KTC_INLINE explicit SteppedTiles(const TileArgs& args) : Pass(args), output(args) {
    std::size_t group = kGroups && !kHalves ? args.layout->group / 64 : 2, granule = kGranules ? args.x_granule / 64 : 2;
    period = kHalves ? 1 : at_most(group, granule);
    group_shift = group == 2 ? 1 : 0;
    granule_shift = granule == 2 ? 1 : 0;
    granules = kGranules ? (this->blocks + granule - 1) / granule : 1;
  }

  KTC_INLINE static void multiply() {
    if constexpr (kInteger) {
      tile_dpbssd<0, 2, 3>();
    } else {
      tile_dpbf16ps<0, 2, 3>();
    }
  }

  // 16 features of one group, in f32.
  KTC_INLINE __m512 weight_scales(std::size_t p, std::size_t g, std::size_t block) const {
    const std::byte* scales = this->a.panels + p * this->a.layout->panel_bytes;
    if constexpr (kFormat == Format::fp8) return _mm512_load_ps(reinterpret_cast<const float*>(scales) + (g * 2 + block) * 16);
    const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales + (g * 2 + block) * 32));
    return Ints::low_bf16(_mm512_cvtepu16_epi32(bits));
  }

  // f += the sums of one step, scaled. `g`: group of the weights. `as`: scales of the tile's rows.
  KTC_INLINE void fold(const std::int32_t* c, __m512 ws, const float* as, __m512* f) const {
    KTC_UNROLL for (int i = 0; i < 16; ++i) {
      const __m512i sums = _mm512_load_si512(c + i * 16);
      const __m512 value = kInteger ? _mm512_cvtepi32_ps(sums) : _mm512_castsi512_ps(sums);
      if constexpr (kGroups && kGranules) {
        f[i] = _mm512_fmadd_ps(value, _mm512_mul_ps(ws, _mm512_set1_ps(as[i])), f[i]);
      } else {
        f[i] = _mm512_fmadd_ps(value, kGroups ? ws : _mm512_set1_ps(as[i]), f[i]);
      }
    }
  }

  KTC_INLINE void group(std::size_t p, std::size_t k, std::size_t end, std::size_t t) {
    constexpr std::size_t kTileBytes = Pass::kTileBytes, kSlices = kInteger ? 1 : 2, kHalfSteps = kHalves ? 2 : 1;
    float* const c = reinterpret_cast<float*>(this->sums_of(p, t));
    const float* const scales = kGranules ? this->a.x.scales + t * granules * kTileRows : nullptr;
    for (std::size_t block = 0; block < 2; ++block) {
      __m512 f[16];
      KTC_UNROLL for (int i = 0; i < 16; ++i) f[i] = k == 0 ? _mm512_setzero_ps() : _mm512_load_ps(c + i * 32 + block * 16);
      const std::byte *x = this->values(t, k), *b = this->weights + block * kTileBytes;
      const auto fold_step = [&](std::size_t step) __attribute__((always_inline)) {
        const std::size_t kb = k + step / kHalfSteps * period;
        const std::size_t g = kHalves ? kb * 2 + step % 2 : kb >> group_shift;
        fold(buffer[step % 2], kGroups ? weight_scales(p, g, block) : _mm512_setzero_ps(),
             kGranules ? scales + (kb >> granule_shift) * kTileRows : nullptr, f);
      };
      std::size_t step = 0;
      for (std::size_t kb = k; kb < end; ++step) {
        tile_zero<0>();
        if constexpr (kHalves) {
          const std::size_t half = step % 2;
          tile_load<3>(b + half * 512, 64);
          tile_load<2>(x + half * 32, Pass::kRowBytes);
          multiply();
          if (half == 1) ++kb, x += kTileBytes, b += 2 * kTileBytes;
        } else {
          for (const std::size_t stop = at_most(kb + period, end); kb < stop; ++kb, x += kTileBytes, b += 2 * kTileBytes)
            for (std::size_t s = 0; s < kSlices; ++s) {
              tile_load<3>(b + s * 1024, 64);
              tile_load<2>(x + s * 64, Pass::kRowBytes);
              multiply();
            }
        }
        tile_store<0>(buffer[step % 2], 64);
        this->look_further();
        if (step != 0) fold_step(step - 1);
      }
      fold_step(step - 1);
      KTC_UNROLL for (int i = 0; i < 16; ++i) _mm512_store_ps(c + i * 32 + block * 16, f[i]);
    }
    if (end != this->blocks) return;
    output.wait(p, t * kTileRows, at_most((t + 1) * kTileRows, this->a.m), c);
    output.finish();
  }

  KTC_INLINE void run() {
    this->configure(kHalves);
    this->for_groups(1, 2 * (kHalves ? 2 : 1), [&](std::size_t p, std::size_t k, std::size_t end, std::size_t t, std::size_t)
                                                   __attribute__((always_inline)) { group(p, k, end, t); });
  }
};

// Not inlined: the shapes of tiles, which these do not have, share one copy.
template <Format kFormat, bool kGroups, bool kGranules, bool kHalves = false>
__attribute__((noinline)) void stepped_tiles(const TileArgs& a) {
  SteppedTiles<kFormat, kGroups, kGranules, kHalves>(a).run();
}

// All kernels of one format, sums without steps in tiles of a shape.
template <Format kFormat, int kTiles, int kBlocks>
KTC_INLINE void tile_panels(const TileArgs& a) {
  const std::uint32_t group = a.layout->group, granule = a.x_granule;
  if constexpr (kFormat == Format::int8) {
    if (granule != 0) return stepped_tiles<kFormat, false, true>(a);
  } else if constexpr (kFormat == Format::int4) {
    if (group == 32) return granule != 0 ? stepped_tiles<kFormat, true, true, true>(a) : stepped_tiles<kFormat, true, false, true>(a);
    if (group != 0) return granule != 0 ? stepped_tiles<kFormat, true, true>(a) : stepped_tiles<kFormat, true, false>(a);
    if (granule != 0) return stepped_tiles<kFormat, false, true>(a);
  } else if constexpr (kFormat == Format::fp8) {
    if (group != 0) return stepped_tiles<kFormat, true, false>(a);
  }
  WholeTiles<kFormat, kTiles, kBlocks>(a).run();
}

// The functions of panel_tiles.h that end in `suffix`.
#define KTC_DEFINE_TILE_KERNELS(suffix, tiles, blocks)                                                     \
  void panel_int8_many_##suffix(const TileArgs& a) { tile_panels<Format::int8, tiles, blocks>(a); }        \
  void panel_int4_many_##suffix(const TileArgs& a) { tile_panels<Format::int4, tiles, blocks>(a); }        \
  void panel_fp8_many_##suffix(const TileArgs& a) { tile_panels<Format::fp8, tiles, blocks>(a); }          \
  void panel_bf16_many_##suffix(const TileArgs& a) { tile_panels<Format::bf16, tiles, blocks>(a); }

}  // namespace
}  // namespace ktc::kernels
