// attend on vectors: blocks of 64 keys, all heads over a block while its keys and values are in cache.
//
// Blocks count from key 0, so a result depends on the context but neither on the paging nor on the other heads. Scores
// are products as in matmul. A value sum is, per element, out * shrink + p_0 v_0 + p_1 v_1 + … with fused multiply-adds
// in the order of the keys. Keys behind the context have p = 0 and are not read.
#pragma once

#include "runtime/kernels/cpu/matmul_body.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kKeys = 64;        // of a block
constexpr std::size_t kHeadChunk = 128;  // bounds the state on the stack

template <typename T>
struct KeyBlock {
  std::size_t count;
  const T *k1[kKeys], *k2[kKeys], *v[kKeys];
};

// Walks the pages of a sequence block by block.
template <typename T>
struct KeyCursor {
  std::size_t page = 0, slot = 0;

  KTC_INLINE void next(const AttendArgs& a, std::size_t count, KeyBlock<T>& block) {
    block.count = count;
    for (std::size_t j = 0; j < count; ++j) {
      const std::byte* base = a.cache + a.pages[page] * a.page_bytes;
      block.k1[j] = reinterpret_cast<const T*>(base + a.k1_offset) + slot * a.width1;
      block.k2[j] = reinterpret_cast<const T*>(base + a.k2_offset) + slot * a.width2;
      block.v[j] = reinterpret_cast<const T*>(base + a.v_offset) + slot * a.value_width;
      if (++slot == a.page_tokens) {
        slot = 0;
        ++page;
      }
    }
  }
};

struct HeadState {
  alignas(64) float score[kHeadChunk][kKeys];         // then p
  alignas(64) float weight[kHeadChunk][Vec::kWidth];  // sums of p, in lanes until the end
  alignas(64) float top[kHeadChunk], shrink[kHeadChunk];
};

KTC_INLINE void prefetch_row(const void* row, std::size_t bytes) {
  for (std::size_t b = 0; b < bytes; b += 64) _mm_prefetch(static_cast<const char*>(row) + b, _MM_HINT_T1);
}

// score[h .. h + Rows][all keys of the block]; asks for the keys and values of `next` where not null.
template <typename T, int Rows>
KTC_INLINE void score_tile(const AttendArgs& a, const KeyBlock<T>& block, const KeyBlock<T>* next, const float* q,
                           std::size_t h, HeadState& s) {
  constexpr int kColumns = Vec::wide_columns(Rows);
  const float *q1[Rows], *q2[Rows];
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    q1[r] = q + (h + r) * a.q_stride;
    q2[r] = q1[r] + a.width1;
  }
  const __m128 scale = _mm_set1_ps(a.scale);
  for (std::size_t j = 0; j < block.count; j += kColumns) {
    const T *k1[kColumns], *k2[kColumns];
    KTC_UNROLL for (int c = 0; c < kColumns; ++c) {
      const std::size_t key = at_most(j + c, block.count - 1);
      k1[c] = block.k1[key];
      k2[c] = block.k2[key];
    }
    if (next != nullptr) {
      for (std::size_t key = j; key < at_most(j + kColumns, next->count); ++key) {
        prefetch_row(next->k1[key], a.width1 * sizeof(T));
        prefetch_row(next->k2[key], a.width2 * sizeof(T));
        if (a.v_offset != a.k1_offset) prefetch_row(next->v[key], a.value_width * sizeof(T));
      }
    }
    Vec::Reg sum[Rows][kColumns];
    clear(sum);
    const Prefetch none{};
    accumulate<0>(sum, q1, k1, a.width1, none);
    if (a.width2 != 0) accumulate<0>(sum, q2, k2, a.width2, none);
    KTC_UNROLL for (int r = 0; r < Rows; ++r) {
      KTC_UNROLL for (int c = 0; c < kColumns; c += 4) _mm_storeu_ps(
          &s.score[h + r][j + c], _mm_mul_ps(scale, Vec::sum4(sum[r][c], sum[r][c + 1], sum[r][c + 2], sum[r][c + 3])));
    }
  }
}

template <typename T, int Rows>
KTC_INLINE void score_rows(const AttendArgs& a, const KeyBlock<T>& block, const KeyBlock<T>* next, const float* q,
                           std::size_t h, std::size_t rows, HeadState& s) {
  if (rows == Rows) return score_tile<T, Rows>(a, block, next, q, h, s);
  if constexpr (Rows > 1) score_rows<T, Rows - 1>(a, block, next, q, h, rows, s);
}

// Scores of all heads become p = e^(score - top); updates top, shrink and weight. Keys behind the context get p = 0.
KTC_INLINE void softmax_block(HeadState& s, std::size_t heads, std::size_t count, bool first_block) {
  constexpr std::size_t kWidth = Vec::kWidth;
  const std::size_t vectors = (count + kWidth - 1) / kWidth;
  for (std::size_t h = 0; h < heads; ++h) {
    float* score = s.score[h];
    for (std::size_t j = count; j < vectors * kWidth; ++j) score[j] = -__builtin_inff();
    Vec::Reg most = Vec::load(score);
    for (std::size_t i = 1; i < vectors; ++i) most = Vec::max(most, Vec::load(score + i * kWidth));
    const float block_top = Vec::max_of(most);
    const float top = !first_block && s.top[h] > block_top ? s.top[h] : block_top;
    s.shrink[h] = first_block ? 0.0f : s.top[h] - top;
    s.top[h] = top;
  }
  // many heads per exp; what stands behind the last head is computed and never read
  for (std::size_t h = 0; h < heads; h += kWidth) Vec::store(s.shrink + h, exp(Vec::load(s.shrink + h)));
  for (std::size_t h = 0; h < heads; ++h) {
    float* score = s.score[h];
    const Vec::Reg top = Vec::set(s.top[h]);
    Vec::Reg sum = first_block ? Vec::zero() : Vec::mul(Vec::load(s.weight[h]), Vec::set(s.shrink[h]));
    for (std::size_t i = 0; i < vectors; ++i) {
      const Vec::Reg p = exp(Vec::sub(Vec::load(score + i * kWidth), top));
      Vec::store(score + i * kWidth, p);
      sum = Vec::add(sum, p);
    }
    Vec::store(s.weight[h], sum);
  }
}

// out[h .. h + Rows][c .. c + Vectors * W) for one block; with `part` != 0 the one vector has only that many elements.
template <typename T, int Rows, int Vectors, bool Partial>
KTC_INLINE void value_tile(const AttendArgs& a, const KeyBlock<T>& block, float* out, std::size_t h, std::size_t c,
                           std::size_t part, bool first_block, const HeadState& s) {
  static_assert(!Partial || Vectors == 1);
  Vec::Reg sum[Rows][Vectors];
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    const float* o = out + (h + r) * a.out_stride + c;
    const Vec::Reg shrink = Vec::set(s.shrink[h + r]);
    KTC_UNROLL for (int i = 0; i < Vectors; ++i) {
      if (first_block) {
        sum[r][i] = Vec::zero();
      } else if constexpr (Partial) {
        sum[r][i] = Vec::mul(shrink, Vec::load(o, part));
      } else {
        sum[r][i] = Vec::mul(shrink, Vec::load(o + i * Vec::kWidth));
      }
    }
  }
  for (std::size_t j = 0; j < block.count; ++j) {
    const T* v = block.v[j] + c;
    Vec::Reg value[Vectors];
    KTC_UNROLL for (int i = 0; i < Vectors; ++i) {
      if constexpr (Partial) {
        value[i] = Vec::load(v, part);
      } else {
        value[i] = Vec::load(v + i * Vec::kWidth);
      }
    }
    KTC_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec::Reg p = Vec::set(s.score[h + r][j]);
      KTC_UNROLL for (int i = 0; i < Vectors; ++i) sum[r][i] = Vec::fma(p, value[i], sum[r][i]);
    }
  }
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    float* o = out + (h + r) * a.out_stride + c;
    KTC_UNROLL for (int i = 0; i < Vectors; ++i) {
      if constexpr (Partial) {
        Vec::store(o, sum[r][i], part);
      } else {
        Vec::store(o + i * Vec::kWidth, sum[r][i]);
      }
    }
  }
}

template <typename T, int Rows>
KTC_INLINE void value_rows(const AttendArgs& a, const KeyBlock<T>& block, float* out, std::size_t h, std::size_t rows,
                           bool first_block, const HeadState& s) {
  if (rows == Rows) {
    constexpr std::size_t kWidth = Vec::kWidth, kTile = Vec::kValueVectors * kWidth;
    std::size_t c = 0;
    for (; c + kTile <= a.value_width; c += kTile)
      value_tile<T, Rows, Vec::kValueVectors, false>(a, block, out, h, c, 0, first_block, s);
    for (; c + kWidth <= a.value_width; c += kWidth)
      value_tile<T, Rows, 1, false>(a, block, out, h, c, 0, first_block, s);
    if (c < a.value_width) value_tile<T, Rows, 1, true>(a, block, out, h, c, a.value_width - c, first_block, s);
    return;
  }
  if constexpr (Rows > 1) value_rows<T, Rows - 1>(a, block, out, h, rows, first_block, s);
}

KTC_INLINE void divide_row(float* out, float by, std::size_t count) {
  const Vec::Reg divisor = Vec::set(by);
  std::size_t c = 0;
  for (; c + Vec::kWidth <= count; c += Vec::kWidth) Vec::store(out + c, Vec::div(Vec::load(out + c), divisor));
  if (c < count) Vec::store(out + c, Vec::div(Vec::load(out + c, count - c), divisor), count - c);
}

template <typename T>
KTC_INLINE void attend_heads(const AttendArgs& a, const float* q, float* out, std::size_t heads) {
  HeadState state;
  for (float& value : state.shrink) value = 0.0f;
  KeyCursor<T> cursor;
  KeyBlock<T> blocks[2];  // this one and the next, which is prefetched
  cursor.next(a, at_most(a.context, kKeys), blocks[0]);
  for (std::size_t begin = 0, current = 0; begin < a.context; begin += kKeys, current = 1 - current) {
    const KeyBlock<T>& block = blocks[current];
    KeyBlock<T>& following = blocks[1 - current];
    cursor.next(a, begin + kKeys < a.context ? at_most(a.context - begin - kKeys, kKeys) : 0, following);
    for (std::size_t h = 0, rows; h < heads; h += rows) {
      rows = balanced(heads - h, Vec::kTileRows);
      score_rows<T, Vec::kTileRows>(a, block, h == 0 ? &following : nullptr, q, h, rows, state);
    }
    softmax_block(state, heads, block.count, begin == 0);
    for (std::size_t h = 0, rows; h < heads; h += rows) {
      rows = balanced(heads - h, Vec::kValueRows);
      value_rows<T, Vec::kValueRows>(a, block, out, h, rows, begin == 0, state);
    }
  }
  for (std::size_t h = 0; h < heads; ++h) {
    const Vec::Reg none = Vec::zero();
    const float weight = _mm_cvtss_f32(Vec::sum4(Vec::load(state.weight[h]), none, none, none));
    divide_row(out + h * a.out_stride, weight, a.value_width);
  }
}

template <typename T>
KTC_INLINE void attend(const AttendArgs& a) {
  for (std::size_t h = 0; h < a.heads; h += kHeadChunk)
    attend_heads<T>(a, a.q + h * a.q_stride, a.out + h * a.out_stride, at_most(a.heads - h, kHeadChunk));
}

}  // namespace
}  // namespace ktc::kernels
