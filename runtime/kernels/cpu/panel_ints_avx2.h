// Integer vectors of AVX2 for the panel kernels. Only panel_avx2.cpp includes this.
#pragma once

#include <immintrin.h>

#include "runtime/kernels/cpu/body.h"

namespace ktc::kernels {
namespace {

struct Ints {
  using Reg = __m256i;

  KTC_INLINE static Reg zero() { return _mm256_setzero_si256(); }
  KTC_INLINE static Reg set32(std::int32_t v) { return _mm256_set1_epi32(v); }
  KTC_INLINE static Reg set16(short v) { return _mm256_set1_epi16(v); }
  KTC_INLINE static Reg load(const void* p) { return _mm256_load_si256(static_cast<const Reg*>(p)); }
  KTC_INLINE static void store(void* p, Reg v) { _mm256_store_si256(static_cast<Reg*>(p), v); }
  KTC_INLINE static Reg low_nibbles(Reg v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  KTC_INLINE static Reg high_nibbles(Reg v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
  KTC_INLINE static Reg maddubs(Reg weights, Reg x) { return _mm256_maddubs_epi16(weights, x); }
  KTC_INLINE static Reg madd(Reg a, Reg b) { return _mm256_madd_epi16(a, b); }
  KTC_INLINE static Reg add16(Reg a, Reg b) { return _mm256_add_epi16(a, b); }
  KTC_INLINE static Reg add32(Reg a, Reg b) { return _mm256_add_epi32(a, b); }
  KTC_INLINE static __m256 to_float(Reg v) { return _mm256_cvtepi32_ps(v); }
  KTC_INLINE static __m256 low_bf16(Reg v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
  KTC_INLINE static __m256 high_bf16(Reg v) {
    return _mm256_castsi256_ps(_mm256_and_si256(v, set32(static_cast<int>(0xffff0000u))));
  }

  // Words whose low bytes are E4M3 codes, to bf16. Below the smallest normal code a table of m * 2^-9, byte by byte.
  KTC_INLINE static Reg e4m3(Reg v) {
    const Reg magnitude = _mm256_and_si256(_mm256_slli_epi16(v, 4), set16(0x07f0));
    const Reg low_table = _mm256_setr_epi8(0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                           0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0);
    const Reg high_table = _mm256_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                            0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0);
    const Reg low = _mm256_shuffle_epi8(
        low_table, _mm256_or_si256(_mm256_srli_epi16(magnitude, 4), set16(static_cast<short>(0x8000u))));
    const Reg high = _mm256_shuffle_epi8(high_table, _mm256_or_si256(_mm256_slli_epi16(magnitude, 4), set16(0x0080)));
    const Reg subnormal = _mm256_cmpeq_epi16(_mm256_and_si256(v, set16(0x78)), zero());
    Reg r = _mm256_add_epi16(magnitude, set16(0x3c00));  // the exponents' biases differ by 120
    r = _mm256_blendv_epi8(r, _mm256_or_si256(low, high), subnormal);
    const Reg nan = _mm256_cmpeq_epi16(magnitude, set16(0x07f0));
    r = _mm256_or_si256(r, _mm256_and_si256(nan, set16(0x7fc0)));
    return _mm256_or_si256(r, _mm256_and_si256(_mm256_slli_epi16(v, 8), set16(static_cast<short>(0x8000u))));
  }
  // Four codes k .. k + 3 in a dword: bf16 of k and k + 2, of k + 1 and k + 3.
  KTC_INLINE static void decode_fp8(Reg v, Reg& k02, Reg& k13) {
    k02 = e4m3(v);
    k13 = e4m3(_mm256_srli_epi16(v, 8));
  }

  // The greatest of the bits of |x|: magnitudes compare like their bits, NaN above infinity.
  KTC_INLINE static std::uint32_t largest_magnitude(const float* x, std::size_t n) {
    const __m256 magnitude = _mm256_castsi256_ps(set32(0x7fffffff));
    Reg most = zero();
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8)
      most = _mm256_max_epi32(most, _mm256_castps_si256(_mm256_and_ps(Vec::load(x + i), magnitude)));
    most = _mm256_max_epi32(most, _mm256_castps_si256(_mm256_and_ps(Vec::load(x + i, n - i), magnitude)));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1))));
  }
  // n <= 64 codes and zeros behind; two sums.
  KTC_INLINE static void quantise64(const float* x, std::size_t n, float factor, std::int8_t* codes, std::int32_t* sums) {
    KTC_UNROLL for (int half = 0; half < 2; ++half) {
      Reg v[4];
      KTC_UNROLL for (int i = 0; i < 4; ++i) {
        const std::size_t at = 32u * half + 8u * i, left = n - at_most(n, at);
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(Vec::load(x + at, at_most(left, 8)), _mm256_set1_ps(factor)));
      }
      const Reg bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
      _mm256_storeu_si256(reinterpret_cast<Reg*>(codes + 32 * half),
                          _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
      const Reg sum = add32(add32(v[0], v[1]), add32(v[2], v[3]));
      __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
      sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    }
  }
};

}  // namespace
}  // namespace ktc::kernels
