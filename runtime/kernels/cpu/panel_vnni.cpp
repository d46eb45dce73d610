// Panels of integers at the avx512_vnni level: vpdpbusd takes the weights unsigned and four activations as one broadcast; the
// zero point is in the start value of the accumulators. This file alone is compiled with the level's flags.
#include "runtime/kernels/cpu/panel_body.h"
#include "runtime/kernels/cpu/panel_ints_avx512.h"

namespace ktc::kernels {
namespace {

constexpr int kBlocks = 2;

KTC_INLINE __m512 widen_bf16(const std::byte* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))), 16));
}

// kGroups: weights have scales along K. kGranules: activations have. kHalves (int4): groups of 32, two steps per block.
template <bool kInt4, bool kGroups, bool kGranules, bool kHalves, int M>
struct Few {
  static constexpr int kBlockBytes = kInt4 ? 512 : 1024, kLines = kBlockBytes / 64, kZero = kInt4 ? 8 : 128;
  // Two accumulators hide the latency of the instruction while registers last.
  static constexpr int kChains = M <= 4 && !kHalves ? 2 : 1;
  static constexpr bool kUnshifted = kInt4 && kChains == 2;  // high nibbles are multiplied in place, 16 times their value
  static constexpr bool kStepped = kGroups || kGranules;
  static constexpr bool kSpill = kStepped && M > 6;          // f lives in `out`, for want of registers

  using Prefetch = Ahead<kBlocks * kBlockBytes>;

  const PanelArgs& a;
  const std::byte* values[M];
  __m512i acc[M][kBlocks][kChains];
  __m512 f[M][kBlocks];

  KTC_INLINE void start(int m, std::int32_t sum) {
    KTC_UNROLL for (int p = 0; p < kBlocks; ++p) {
      acc[m][p][0] = _mm512_set1_epi32(-kZero * sum);
      if constexpr (kChains == 2) acc[m][p][1] = _mm512_setzero_si512();
    }
  }

  template <int kHalfBlocks>
  KTC_INLINE std::int32_t sums_of(int m, std::size_t kb) const {
    const std::int32_t* s = a.rows[m].sums + kb * 2;
    std::int32_t t = 0;
    KTC_UNROLL for (int i = 0; i < kHalfBlocks; ++i) t += s[i];
    return t;
  }

  KTC_INLINE void multiply(int m, int p, int chain, __m512i weights, std::size_t at) {
    acc[m][p][chain] = _mm512_dpbusd_epi32(acc[m][p][chain], weights, _mm512_set1_epi32(load_i32(values[m] + at)));
  }

  // One pair of blocks; `at` is the offset of its 64 activations. Four lines of the prefetch with every second line
  // of weights: all at once they would fill the queue that the loads need, and one by one some shapes (K = 2048, four rows of
  // int4) run at half the speed.
  KTC_INLINE void blocks(const std::byte* w, std::size_t at, const Prefetch& ahead) {
    KTC_UNROLL for (int r = 0; r < kLines; ++r) {
      if (r % 2 == 0) {
        KTC_UNROLL for (int i = 0; i < 2 * kBlocks; ++i) ahead.line(static_cast<std::size_t>(r * kBlocks + i));
      }
      KTC_UNROLL for (int p = 0; p < kBlocks; ++p) {
        const __m512i v = Ints::load(w + p * kBlockBytes + r * 64);
        if constexpr (!kInt4) {
          KTC_UNROLL for (int m = 0; m < M; ++m) multiply(m, p, r & (kChains - 1), v, at + r * 4);
        } else {
          const __m512i mask = _mm512_set1_epi8(15), low = _mm512_and_si512(v, mask);
          const __m512i high =
              kUnshifted ? _mm512_andnot_si512(mask, v) : _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
          KTC_UNROLL for (int m = 0; m < M; ++m) {
            multiply(m, p, 0, low, at + r * 4);
            multiply(m, p, kChains - 1, high, at + 32 + r * 4);
          }
        }
      }
    }
  }

  template <bool kHigh>
  KTC_INLINE void half_blocks(const std::byte* w, std::size_t at, const Prefetch& ahead) {
    KTC_UNROLL for (int r = 0; r < kLines; ++r) {
      if (r % 4 == (kHigh ? 2 : 0)) {
        KTC_UNROLL for (int i = 0; i < 2 * kBlocks; ++i) ahead.line(static_cast<std::size_t>((r / 4 * 2 + kHigh) * 2 * kBlocks + i));
      }
      KTC_UNROLL for (int p = 0; p < kBlocks; ++p) {
        const __m512i v = Ints::load(w + p * kBlockBytes + r * 64);
        const __m512i nibbles = _mm512_and_si512(kHigh ? _mm512_srli_epi16(v, 4) : v, _mm512_set1_epi8(15));
        KTC_UNROLL for (int m = 0; m < M; ++m) multiply(m, p, 0, nibbles, at + (kHigh ? 32 : 0) + r * 4);
      }
    }
  }

  KTC_INLINE __m512 sum(int m, int p) const {
    __m512i t = acc[m][p][0];
    if constexpr (kChains == 2)
      t = _mm512_add_epi32(t, kUnshifted ? _mm512_srai_epi32(acc[m][p][1], 4) : acc[m][p][1]);
    return _mm512_cvtepi32_ps(t);
  }

  // Ends a step with the scales of weight group g and activation granule x.
  KTC_INLINE void finish_step(std::size_t g, std::size_t x) {
    KTC_UNROLL for (int p = 0; p < kBlocks; ++p) {
      const __m512 ws = kGroups ? widen_bf16(a.panel + (g * kBlocks + p) * 32) : _mm512_setzero_ps();
      KTC_UNROLL for (int m = 0; m < M; ++m) {
        const __m512 as = kGranules ? _mm512_set1_ps(a.rows[m].scales[x]) : _mm512_setzero_ps();
        const __m512 scale = kGroups && kGranules ? _mm512_mul_ps(ws, as) : kGroups ? ws : as;
        float* out = a.out + m * 32 + p * 16;
        if constexpr (kSpill) {
          _mm512_store_ps(out, _mm512_fmadd_ps(sum(m, p), scale, _mm512_load_ps(out)));
        } else {
          f[m][p] = _mm512_fmadd_ps(sum(m, p), scale, f[m][p]);
        }
      }
    }
  }

  KTC_INLINE void run() {
    const Steps steps(a);
    Prefetch ahead(a);
    constexpr std::size_t kPairLines = kBlocks * kLines;
    const std::size_t stride = a.kb_stride;
    std::size_t offset = a.layout->head_bytes;
    KTC_UNROLL for (int m = 0; m < M; ++m) {
      values[m] = a.rows[m].values;
      KTC_UNROLL for (int p = 0; p < kBlocks; ++p) {
        f[m][p] = _mm512_setzero_ps();
        if constexpr (kSpill) _mm512_store_ps(a.out + m * 32 + p * 16, f[m][p]);
      }
      if constexpr (!kStepped) start(m, Ints::total(a.rows[m].sums, steps.blocks * 2));
    }
    for (std::size_t kb = 0; kb < steps.blocks;) {
      const std::size_t first = kb, end = at_most(kb + steps.period, steps.blocks);
      if constexpr (kHalves) {
        ahead.line(kPairLines);
        ahead.line(kPairLines + 1);
        KTC_UNROLL for (int m = 0; m < M; ++m) start(m, a.rows[m].sums[kb * 2]);
        half_blocks<false>(a.panel + offset, kb * stride, ahead);
        finish_step(kb * 2, kb >> steps.granule_shift);
        KTC_UNROLL for (int m = 0; m < M; ++m) start(m, a.rows[m].sums[kb * 2 + 1]);
        half_blocks<true>(a.panel + offset, kb * stride, ahead);
        finish_step(kb * 2 + 1, kb >> steps.granule_shift);
        ahead.pass(kPairLines + 2);
        offset += kBlocks * kBlockBytes;
        ++kb;
        continue;
      }
      if constexpr (kStepped) {
        if (end - first == 1) {
          KTC_UNROLL for (int m = 0; m < M; ++m) start(m, sums_of<2>(m, first));
        } else {
          KTC_UNROLL for (int m = 0; m < M; ++m) start(m, sums_of<4>(m, first));
        }
      }
      for (; kb < end; ++kb) {
        blocks(a.panel + offset, kb * stride, ahead);
        if constexpr (kGroups) ahead.line(kPairLines);  // of scales, for one or two pairs
        ahead.pass(kGroups ? kPairLines + 1 - (kb & steps.group_shift) : kPairLines);
        offset += kBlocks * kBlockBytes;
      }
      if constexpr (kStepped) finish_step(first >> steps.group_shift, first >> steps.granule_shift);
    }
    if constexpr (!kGroups) ahead.template ask<2>();
    KTC_UNROLL for (int m = 0; m < M; ++m) {
      KTC_UNROLL for (int p = 0; p < kBlocks; ++p) {
        float* out = a.out + m * 32 + p * 16;
        __m512 v = !kStepped ? sum(m, p) : kSpill ? _mm512_load_ps(out) : f[m][p];
        if constexpr (!kGranules) v = _mm512_mul_ps(v, _mm512_set1_ps(a.rows[m].scales[0]));
        if constexpr (!kGroups) v = _mm512_mul_ps(v, _mm512_load_ps(reinterpret_cast<const float*>(a.panel) + p * 16));
        _mm512_store_ps(out, v);
      }
    }
  }
};

template <bool kInt4, bool kGroups, bool kGranules, bool kHalves, int M>
void few(const PanelArgs& a) {
  Few<kInt4, kGroups, kGranules, kHalves, M> kernel{a, {}, {}, {}};
  kernel.run();
}

template <bool kInt4, bool kGroups, bool kGranules, bool kHalves = false>
constexpr PanelFn kByRows[kFewRows] = {
    few<kInt4, kGroups, kGranules, kHalves, 1>, few<kInt4, kGroups, kGranules, kHalves, 2>,
    few<kInt4, kGroups, kGranules, kHalves, 3>, few<kInt4, kGroups, kGranules, kHalves, 4>,
    few<kInt4, kGroups, kGranules, kHalves, 5>, few<kInt4, kGroups, kGranules, kHalves, 6>,
    few<kInt4, kGroups, kGranules, kHalves, 7>, few<kInt4, kGroups, kGranules, kHalves, 8>};

}  // namespace

void panel_int8_few_vnni(const PanelArgs& a) {
  (a.x_granule != 0 ? kByRows<false, false, true> : kByRows<false, false, false>)[a.m - 1](a);
}

void panel_int4_few_vnni(const PanelArgs& a) {
  const bool granules = a.x_granule != 0;
  const PanelFn* table = a.layout->group == 0    ? (granules ? kByRows<true, false, true> : kByRows<true, false, false>)
                         : a.layout->group == 32 ? (granules ? kByRows<true, true, true, true> : kByRows<true, true, false, true>)
                                                 : (granules ? kByRows<true, true, true> : kByRows<true, true, false>);
  table[a.m - 1](a);
}

}  // namespace ktc::kernels
