// Eight floats: the vocabulary of the shared kernel bodies on AVX2 and FMA. Only avx2.cpp includes this.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

struct Vec {
  using Reg = __m256;
  static constexpr std::size_t kWidth = 8;
  // Register tiles out of 16 registers: rows of x by rows of w (products), heads by value vectors (attention).
  static constexpr int kTileRows = 3;
  static constexpr int wide_columns(int rows) { return rows <= 1 ? 8 : 4; }
  static constexpr int kValueRows = 4, kValueVectors = 2;

  KTC_INLINE static Reg zero() { return _mm256_setzero_ps(); }
  KTC_INLINE static Reg set(float value) { return _mm256_set1_ps(value); }
  KTC_INLINE static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  KTC_INLINE static Reg load(const Bf16* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  // The first n < kWidth elements, zeros behind; nothing behind them is read.
  KTC_INLINE static Reg load(const float* p, std::size_t n) { return _mm256_maskload_ps(p, first(n)); }
  KTC_INLINE static Reg load(const Bf16* p, std::size_t n) {
    alignas(16) Bf16 part[kWidth] = {};
    for (std::size_t i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
  }
  KTC_INLINE static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  KTC_INLINE static void store(Bf16* p, Reg v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v)); }
  KTC_INLINE static void store(float* p, Reg v, std::size_t n) { _mm256_maskstore_ps(p, first(n), v); }
  KTC_INLINE static void store(Bf16* p, Reg v, std::size_t n) {
    alignas(16) Bf16 part[kWidth];
    store(part, v);
    for (std::size_t i = 0; i < n; ++i) p[i] = part[i];
  }

  KTC_INLINE static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  KTC_INLINE static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  KTC_INLINE static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  KTC_INLINE static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  KTC_INLINE static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
  KTC_INLINE static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }              // b where either is NaN
  KTC_INLINE static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }              // b where either is NaN
  KTC_INLINE static Reg negative_magnitude(Reg v) { return _mm256_or_ps(v, set(-0.0f)); }
  KTC_INLINE static Reg select_negative(Reg sign, Reg negative, Reg other) {
    return _mm256_blendv_ps(other, negative, sign);
  }
  KTC_INLINE static Reg round(Reg v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // In two halves: 2^whole alone may not be a normal number.
  KTC_INLINE static Reg scale_by_power_of_two(Reg v, Reg whole) {
    const __m256i n = _mm256_cvtps_epi32(whole);
    const __m256i half = _mm256_srai_epi32(n, 1);
    return mul(mul(v, power_of_two(half)), power_of_two(_mm256_sub_epi32(n, half)));
  }
  KTC_INLINE static Reg from128(__m128 v) { return _mm256_zextps128_ps256(v); }
  KTC_INLINE static __m128 low128(Reg v) { return _mm256_castps256_ps128(v); }
  KTC_INLINE static float max_of(Reg v) {
    __m128 m = _mm_max_ps(low128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }

  // The sums of four registers, each with the same tree: lanes (i, i + 4), then + 2, then + 1.
  KTC_INLINE static __m128 sum4(Reg a, Reg b, Reg c, Reg d) {
    const Reg ac = add(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
    const Reg bd = add(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
    const Reg v = add(_mm256_unpacklo_ps(ac, bd), _mm256_unpackhi_ps(ac, bd));  // a, b even lanes, a, b odd | c, d
    const __m128 low = low128(v), high = _mm256_extractf128_ps(v, 1);
    return _mm_add_ps(_mm_movelh_ps(low, high), _mm_movehl_ps(high, low));
  }

 private:
  KTC_INLINE static __m256i first(std::size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  KTC_INLINE static Reg power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  KTC_INLINE static Reg widen(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
  }
  // Round to nearest even; NaN stays NaN (f32_to_bf16 states it for one element).
  KTC_INLINE static __m128i narrow(Reg v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
};

}  // namespace
}  // namespace ktc::kernels
