// The tile instructions that the kernels use, as inline functions: the real ones, or with KTC_EMULATE_TILES the same to the bit
// in software, for machines without AMX. The number of a tile register is a template argument.
//
// The real ones are written as assembly, not with the compilers' intrinsics: those of g++ 12 do not say that they read memory, so
// stores to a buffer could move behind the tile load that reads it, and stores to the configuration could vanish. Here every
// access to memory is a barrier for the compiler.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

// The operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t column_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

#ifndef KTC_EMULATE_TILES

// Loading a configuration takes a few hundred cycles, reading it back a few.
KTC_INLINE void tile_configure(const TileConfig& config) {
  TileConfig current;
  asm volatile("sttilecfg %0" : "=m"(current));
  if (_mm512_cmpneq_epi64_mask(_mm512_load_si512(&current), _mm512_load_si512(&config)) == 0) return;
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
KTC_INLINE void tile_release() {
  asm volatile("tilerelease" ::: "memory");
}
template <int kTile>
KTC_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
KTC_INLINE void tile_load(const void* p, std::size_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
KTC_INLINE void tile_store(void* p, std::size_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(row_bytes), "i"(kTile) : "memory");
}
// c += a * b: int32 sums of signed bytes of a by unsigned bytes of b.
template <int kC, int kA, int kB>
KTC_INLINE void tile_dpbsud() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}
// The same with signed bytes of b.
template <int kC, int kA, int kB>
KTC_INLINE void tile_dpbssd() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}
// c += a * b: f32 sums of bf16.
template <int kC, int kA, int kB>
KTC_INLINE void tile_dpbf16ps() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

#else

struct EmulatedTiles {
  TileConfig config;
  alignas(64) std::uint8_t data[8][16][64];
};
thread_local EmulatedTiles emulated_tiles;

KTC_INLINE void tile_clear_all() {
  __builtin_memset(emulated_tiles.data, 0, sizeof emulated_tiles.data);
}
KTC_INLINE void tile_configure(const TileConfig& config) {
  if (__builtin_memcmp(&emulated_tiles.config, &config, sizeof config) == 0) return;
  emulated_tiles.config = config;
  tile_clear_all();
}
KTC_INLINE void tile_release() {
  emulated_tiles.config = TileConfig{};
  tile_clear_all();
}
template <int kTile>
KTC_INLINE void tile_zero() {
  __builtin_memset(emulated_tiles.data[kTile], 0, sizeof emulated_tiles.data[kTile]);
}
template <int kTile>
KTC_INLINE void tile_load(const void* p, std::size_t row_bytes) {
  EmulatedTiles& t = emulated_tiles;
  tile_zero<kTile>();  // rows and bytes beyond the configured ones
  for (std::size_t r = 0; r < t.config.rows[kTile]; ++r)
    __builtin_memcpy(t.data[kTile][r], static_cast<const std::uint8_t*>(p) + r * row_bytes, t.config.column_bytes[kTile]);
}
template <int kTile>
KTC_INLINE void tile_store(void* p, std::size_t row_bytes) {
  const EmulatedTiles& t = emulated_tiles;
  for (std::size_t r = 0; r < t.config.rows[kTile]; ++r)
    __builtin_memcpy(static_cast<std::uint8_t*>(p) + r * row_bytes, t.data[kTile][r], t.config.column_bytes[kTile]);
}

// Shapes that do not fit raise an exception on the real machine.
template <int kC, int kA, int kB>
KTC_INLINE void tile_check_shapes() {
  const TileConfig& config = emulated_tiles.config;
  if (config.rows[kA] != config.rows[kC] || config.column_bytes[kA] != config.rows[kB] * 4 ||
      config.column_bytes[kB] != config.column_bytes[kC] || config.rows[kC] == 0 || config.rows[kB] == 0)
    __builtin_trap();
}

template <int kC, int kA, int kB, typename B>
KTC_INLINE void tile_dot_bytes() {
  tile_check_shapes<kC, kA, kB>();
  EmulatedTiles& t = emulated_tiles;
  for (std::size_t m = 0; m < t.config.rows[kC]; ++m) {
    std::int32_t sum[16];
    __builtin_memcpy(sum, t.data[kC][m], 64);
    for (std::size_t k = 0; k < t.config.rows[kB]; ++k)
      for (std::size_t n = 0; n < 16; ++n)
        for (std::size_t i = 0; i < 4; ++i)
          sum[n] += static_cast<std::int8_t>(t.data[kA][m][4 * k + i]) * static_cast<B>(t.data[kB][k][4 * n + i]);
    __builtin_memcpy(t.data[kC][m], sum, 64);
  }
}
template <int kC, int kA, int kB>
KTC_INLINE void tile_dpbsud() {
  tile_dot_bytes<kC, kA, kB, std::uint8_t>();
}
template <int kC, int kA, int kB>
KTC_INLINE void tile_dpbssd() {
  tile_dot_bytes<kC, kA, kB, std::int8_t>();
}

// Subnormals become zeros of their sign, on the way in and on the way out.
KTC_INLINE __m512 tile_flush(__m512 v) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  const __mmask16 small = _mm512_cmp_ps_mask(_mm512_andnot_ps(sign, v), _mm512_set1_ps(0x1p-126f), _CMP_LT_OQ);
  return _mm512_mask_and_ps(v, small, v, sign);
}
// As the architecture manual defines it: the even and the odd k of one instruction are summed apart by fused multiply-adds, in
// ascending order; the two sums are added, then added to c.
template <int kC, int kA, int kB>
KTC_INLINE void tile_dpbf16ps() {
  tile_check_shapes<kC, kA, kB>();
  EmulatedTiles& t = emulated_tiles;
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (std::size_t m = 0; m < t.config.rows[kC]; ++m) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (std::size_t k = 0; k < t.config.rows[kB]; ++k) {
      int pair;
      __builtin_memcpy(&pair, &t.data[kA][m][4 * k], 4);
      const __m512i x = _mm512_set1_epi32(pair), w = _mm512_load_si512(t.data[kB][k]);
      const auto low_f = [](__m512i v) { return tile_flush(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16))); };
      const auto high_f = [high](__m512i v) { return tile_flush(_mm512_castsi512_ps(_mm512_and_si512(v, high))); };
      even = tile_flush(_mm512_fmadd_ps(low_f(x), low_f(w), even));
      odd = tile_flush(_mm512_fmadd_ps(high_f(x), high_f(w), odd));
    }
    const __m512 sum = tile_flush(_mm512_add_ps(even, odd));
    float* c = reinterpret_cast<float*>(t.data[kC][m]);
    _mm512_store_ps(c, tile_flush(_mm512_add_ps(tile_flush(_mm512_load_ps(c)), sum)));
  }
}

#endif

}  // namespace
}  // namespace ktc::kernels
