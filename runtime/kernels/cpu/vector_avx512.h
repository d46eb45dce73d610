// Sixteen floats: the vocabulary of the shared kernel bodies on AVX-512 F, BW, VL, DQ. Only avx512.cpp includes this.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

struct Vec {
  using Reg = __m512;
  static constexpr std::size_t kWidth = 16;
  // Register tiles out of 32 registers: rows of x by rows of w (products), heads by value vectors (attention).
  static constexpr int kTileRows = 6;
  static constexpr int wide_columns(int rows) { return rows <= 3 ? 8 : 4; }
  static constexpr int kValueRows = 4, kValueVectors = 4;

  KTC_INLINE static __mmask16 first(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

  KTC_INLINE static Reg zero() { return _mm512_setzero_ps(); }
  KTC_INLINE static Reg set(float value) { return _mm512_set1_ps(value); }
  KTC_INLINE static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  KTC_INLINE static Reg load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  // The first n < kWidth elements, zeros behind; nothing behind them is read.
  KTC_INLINE static Reg load(const float* p, std::size_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  KTC_INLINE static Reg load(const Bf16* p, std::size_t n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  KTC_INLINE static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  KTC_INLINE static void store(Bf16* p, Reg v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v)); }
  KTC_INLINE static void store(float* p, Reg v, std::size_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
  KTC_INLINE static void store(Bf16* p, Reg v, std::size_t n) { _mm256_mask_storeu_epi16(p, first(n), narrow(v)); }

  KTC_INLINE static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  KTC_INLINE static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  KTC_INLINE static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  KTC_INLINE static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  KTC_INLINE static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
  KTC_INLINE static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }              // b where either is NaN
  KTC_INLINE static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }              // b where either is NaN
  KTC_INLINE static Reg negative_magnitude(Reg v) { return _mm512_or_ps(v, set(-0.0f)); }
  KTC_INLINE static Reg select_negative(Reg sign, Reg negative, Reg other) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(sign)), other, negative);
  }
  KTC_INLINE static Reg round(Reg v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  KTC_INLINE static Reg scale_by_power_of_two(Reg v, Reg whole) { return _mm512_scalef_ps(v, whole); }
  KTC_INLINE static Reg from128(__m128 v) { return _mm512_zextps128_ps512(v); }
  KTC_INLINE static __m128 low128(Reg v) { return _mm512_castps512_ps128(v); }
  KTC_INLINE static float max_of(Reg v) { return _mm512_reduce_max_ps(v); }

  // The sums of four registers, each with the same tree: lanes (i, i + 8), then + 4, then + 2, then + 1.
  KTC_INLINE static __m128 sum4(Reg a, Reg b, Reg c, Reg d) {
    const Reg ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const Reg cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    Reg v = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    v = add(v, _mm512_permute_ps(v, 0x4e));
    v = add(v, _mm512_permute_ps(v, 0xb1));
    return low128(_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), v));
  }

 private:
  KTC_INLINE static Reg widen(__m256i bf16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
  }
  // Round to nearest even; NaN stays NaN (f32_to_bf16 states it for one element).
  KTC_INLINE static __m256i narrow(Reg v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, _mm512_srli_epi32(rounded, 16), quiet));
  }
};

}  // namespace
}  // namespace ktc::kernels
