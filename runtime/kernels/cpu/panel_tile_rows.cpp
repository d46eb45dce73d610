// From the gated blocks of a tile kernel to the tiles of the next one, on AVX-512. This file alone is compiled with its flags.
#include "runtime/kernels/cpu/panel_body.h"
#include "runtime/kernels/cpu/panel_ints_avx512.h"
#include "runtime/kernels/cpu/vector_avx512.h"

namespace ktc::kernels {
namespace {

// 16 columns of one row, zeros from `columns` on.
struct GatedRow {
  const float* x;  // of the row in the first block
  std::size_t columns;
  KTC_INLINE __m512 load(std::size_t block) const {
    const std::size_t left = columns - at_most(block * 16, columns);
    return _mm512_maskz_loadu_ps(Ints::first(at_most(left, 16)), x + block * 256);
  }
};

KTC_INLINE std::uint32_t largest(const GatedRow& row, std::size_t first, std::size_t last) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  for (std::size_t b = first; b < last; ++b)
    most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(row.load(b)), magnitude));
  return _mm512_reduce_max_epu32(most);
}

}  // namespace

// As quantise_row, which has the words for it.
void quantise_tile_avx512(const float* x, std::size_t rows, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                          float* scales, std::int32_t* sums) {
  const std::size_t blocks = (columns + 15) / 16, padded = (columns + 63) / 64 * 4, width = granule == 0 ? padded : granule / 16;
  const std::size_t granules = (padded + width - 1) / width;
  for (std::size_t i = 0; i < kTileRows; ++i) {
    sums[i] = 0;
    if (i >= rows) {
      for (std::size_t g = 0; g < granules; ++g) scales[g * kTileRows + i] = 0.0f;
      continue;
    }
    const GatedRow row{x + i * 16, columns};
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t g = 0; g < granules; ++g) {
      const std::size_t first = g * width, last = at_most(first + width, padded);
      const std::uint32_t most = largest(row, first, at_most(last, blocks));
      const float amax = __builtin_bit_cast(float, most);
      const bool finite = most < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
      scales[g * kTileRows + i] = !finite ? __builtin_bit_cast(float, 0x7fc00000u) : zero ? 0.0f : amax / 127.0f;
      const __m512 factor = _mm512_set1_ps(zero ? 0.0f : 127.0f / amax);
      for (std::size_t b = first; b < last; ++b) {
        __m512i v = _mm512_setzero_si512();
        if (!zero && b < blocks) v = _mm512_cvtps_epi32(_mm512_mul_ps(row.load(b), factor));
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + (b / 4 * kTileRows + i) * 64 + b % 4 * 16), _mm512_cvtepi32_epi8(v));
      }
    }
    sums[i] = _mm512_reduce_add_epi32(sum);
  }
}

void round_tile_avx512(const float* x, std::size_t rows, std::size_t columns, std::uint16_t* values) {
  const std::size_t blocks = (columns + 15) / 16, padded = (columns + 63) / 64 * 4;
  for (std::size_t i = 0; i < rows; ++i) {
    const GatedRow row{x + i * 16, columns};
    for (std::size_t b = 0; b < padded; ++b)
      Vec::store(reinterpret_cast<Bf16*>(values) + (b / 4 * kTileRows + i) * 64 + b % 4 * 16,
                 b < blocks ? row.load(b) : _mm512_setzero_ps());
  }
}

}  // namespace ktc::kernels
