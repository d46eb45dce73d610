// Integer vectors of AVX-512 (F, BW, VL, DQ) for the panel kernels. Only translation units with those flags include this.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

struct Ints {
  using Reg = __m512i;

  KTC_INLINE static Reg zero() { return _mm512_setzero_si512(); }
  KTC_INLINE static Reg set32(std::int32_t v) { return _mm512_set1_epi32(v); }
  KTC_INLINE static Reg set16(short v) { return _mm512_set1_epi16(v); }
  KTC_INLINE static Reg load(const void* p) { return _mm512_load_si512(p); }
  KTC_INLINE static void store(void* p, Reg v) { _mm512_store_si512(p, v); }
  KTC_INLINE static Reg low_nibbles(Reg v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  KTC_INLINE static Reg high_nibbles(Reg v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
  KTC_INLINE static Reg maddubs(Reg weights, Reg x) { return _mm512_maddubs_epi16(weights, x); }
  KTC_INLINE static Reg madd(Reg a, Reg b) { return _mm512_madd_epi16(a, b); }
  KTC_INLINE static Reg add16(Reg a, Reg b) { return _mm512_add_epi16(a, b); }
  KTC_INLINE static Reg add32(Reg a, Reg b) { return _mm512_add_epi32(a, b); }
  KTC_INLINE static __m512 to_float(Reg v) { return _mm512_cvtepi32_ps(v); }
  KTC_INLINE static __m512 low_bf16(Reg v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
  KTC_INLINE static __m512 high_bf16(Reg v) {
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  // Words whose low bytes are E4M3 codes, to bf16. Below the smallest normal code a table of m * 2^-9.
  KTC_INLINE static Reg e4m3(Reg v) {
    const Reg magnitude = _mm512_and_si512(_mm512_slli_epi16(v, 4), set16(0x07f0));
    const Reg table = _mm512_broadcast_i32x4(
        _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));  // indices are below 8
    Reg r = _mm512_add_epi16(magnitude, set16(0x3c00));  // the exponents' biases differ by 120
    r = _mm512_mask_permutexvar_epi16(r, _mm512_testn_epi16_mask(v, set16(0x78)), _mm512_srli_epi16(magnitude, 4), table);
    r = _mm512_mask_mov_epi16(r, _mm512_cmpeq_epi16_mask(magnitude, set16(0x07f0)), set16(0x7fc0));
    return _mm512_or_si512(r, _mm512_and_si512(_mm512_slli_epi16(v, 8), set16(static_cast<short>(0x8000u))));
  }
  // Four codes k .. k + 3 in a dword: bf16 of k and k + 2, of k + 1 and k + 3.
  KTC_INLINE static void decode_fp8(Reg v, Reg& k02, Reg& k13) {
    k02 = e4m3(v);
    k13 = e4m3(_mm512_srli_epi16(v, 8));
  }

  KTC_INLINE static std::int32_t total(const std::int32_t* p, std::size_t n) {
    Reg t = zero();
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) t = add32(t, _mm512_loadu_si512(p + i));
    return _mm512_reduce_add_epi32(add32(t, _mm512_maskz_loadu_epi32(first(n - i), p + i)));
  }
  KTC_INLINE static __mmask16 first(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  // The greatest of the bits of |x|: magnitudes compare like their bits, NaN above infinity.
  KTC_INLINE static std::uint32_t largest_magnitude(const float* x, std::size_t n) {
    const Reg magnitude = set32(0x7fffffff);
    Reg most = zero();
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_maskz_loadu_epi32(first(n - i), x + i), magnitude));
    return _mm512_reduce_max_epu32(most);
  }
  // n <= 64 codes and zeros behind; two sums.
  KTC_INLINE static void quantise64(const float* x, std::size_t n, float factor, std::int8_t* codes, std::int32_t* sums) {
    Reg v[4];
    KTC_UNROLL for (int i = 0; i < 4; ++i) {
      const std::size_t left = n - at_most(n, 16u * i);
      const __m512 value = _mm512_maskz_loadu_ps(first(at_most(left, 16)), x + 16 * i);
      v[i] = _mm512_cvtps_epi32(_mm512_mul_ps(value, _mm512_set1_ps(factor)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * i), _mm512_cvtepi32_epi8(v[i]));
    }
    sums[0] = _mm512_reduce_add_epi32(add32(v[0], v[1]));
    sums[1] = _mm512_reduce_add_epi32(add32(v[2], v[3]));
  }
};

}  // namespace
}  // namespace ktc::kernels
