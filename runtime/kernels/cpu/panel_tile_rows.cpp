// From the gated blocks of a tile kernel to the tiles of the next one, on AVX-512. This file alone is compiled with its flags.
#include "runtime/kernels/cpu/panel_body.h"
#include "runtime/kernels/cpu/panel_ints_avx512.h"
#include "runtime/kernels/cpu/vector_avx512.h"

namespace ktc::kernels {
namespace {

// Of the 16 columns of block `b` of one row, zeros from `columns` on.
KTC_INLINE __m512 gated(const float* x, std::size_t b, std::size_t i, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, x + (b * kTileRows + i) * 16);
}

}  // namespace

// As quantise_row, which has the words for it. A block of all rows after the other, which is the order of the memory: it was
// written by other workers, and comes from their caches.
void quantise_tile_avx512(const float* x, std::size_t rows, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                          float* scales, std::int32_t* sums) {
  const std::size_t blocks = (columns + 15) / 16, padded = (columns + 63) / 64 * 4, width = granule == 0 ? padded : granule / 16;
  const __mmask16 last_mask = Ints::first(columns - (blocks - 1) * 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  alignas(64) std::uint32_t most[kTileRows];
  alignas(64) float factor[kTileRows];
  __m512i total[kTileRows];
  KTC_UNROLL for (std::size_t i = 0; i < kTileRows; ++i) total[i] = _mm512_setzero_si512();
  for (std::size_t first = 0; first < padded; first += width, scales += kTileRows) {
    const std::size_t end = at_most(first + width, padded), last = at_most(end, blocks);
    {
      __m512i row_most[kTileRows];
      KTC_UNROLL for (std::size_t i = 0; i < kTileRows; ++i) row_most[i] = _mm512_setzero_si512();
      for (std::size_t b = first; b < last; ++b) {
        const __mmask16 mask = b + 1 == blocks ? last_mask : static_cast<__mmask16>(0xffff);
        KTC_UNROLL for (std::size_t i = 0; i < kTileRows; ++i)
          row_most[i] = _mm512_max_epu32(row_most[i], _mm512_and_si512(_mm512_castps_si512(gated(x, b, i, mask)), magnitude));
      }
      KTC_UNROLL for (std::size_t i = 0; i < kTileRows; ++i) most[i] = _mm512_reduce_max_epu32(row_most[i]);
    }
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const float amax = __builtin_bit_cast(float, most[i]);
      const bool used = i < rows, finite = most[i] < 0x7f800000u, zero = !used || !finite || amax < 0x1p-100f;
      scales[i] = used && !finite ? __builtin_bit_cast(float, 0x7fc00000u) : zero ? 0.0f : amax / 127.0f;
      factor[i] = zero ? 0.0f : 127.0f / amax;
    }
    for (std::size_t b = first; b < end; ++b) {
      std::int8_t* const to = codes + b / 4 * kTileRows * 64 + b % 4 * 16;
      const __mmask16 mask = b >= blocks ? static_cast<__mmask16>(0) : b + 1 == blocks ? last_mask : static_cast<__mmask16>(0xffff);
      KTC_UNROLL for (std::size_t i = 0; i < kTileRows; ++i) {
        // A factor of 0 belongs to codes of 0, also where x is not finite.
        const __mmask16 m = factor[i] == 0.0f ? static_cast<__mmask16>(0) : mask;
        const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(gated(x, b < blocks ? b : 0, i, m), _mm512_set1_ps(factor[i])));
        total[i] = _mm512_add_epi32(total[i], v);
        if (i < rows) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * 64), _mm512_cvtepi32_epi8(v));
      }
    }
  }
  KTC_UNROLL for (std::size_t i = 0; i < kTileRows; ++i) sums[i] = _mm512_reduce_add_epi32(total[i]);
}

void round_tile_avx512(const float* x, std::size_t rows, std::size_t columns, std::uint16_t* values) {
  const std::size_t blocks = (columns + 15) / 16, padded = (columns + 63) / 64 * 4;
  for (std::size_t b = 0; b < padded; ++b) {
    const __mmask16 mask = Ints::first(at_most(columns - at_most(b * 16, columns), 16));
    for (std::size_t i = 0; i < rows; ++i)
      Vec::store(reinterpret_cast<Bf16*>(values) + (b / 4 * kTileRows + i) * 64 + b % 4 * 16, gated(x, b < blocks ? b : 0, i, mask));
  }
}

}  // namespace ktc::kernels
