// attend on vectors: blocks of 64 keys, all heads of all rows over a block while its keys and values are in cache.
//
// Blocks count from key 0, so a result depends on the context but neither on the paging nor on the other heads and rows. Scores
// are products as in matmul. A value sum is, per element, out * shrink + p_0 v_0 + p_1 v_1 + … with fused multiply-adds
// in the order of the keys. Keys behind the context have p = 0 and are not read.
#pragma once

#include "runtime/kernels/cpu/matmul_body.h"

namespace ktc::kernels {
namespace {

constexpr std::size_t kKeys = 64;        // of a block
constexpr std::size_t kHeadChunk = kMostAttendRows;  // bounds the state on the stack; heads of all rows

template <typename T>
struct KeyBlock {
  std::size_t count;
  const T *k1[kKeys], *k2[kKeys], *v[kKeys];
};

// Walks the pages of a sequence block by block.
template <typename T>
struct KeyCursor {
  std::size_t page = 0, slot = 0;

  KTC_INLINE KeyCursor(const AttendArgs& a, std::size_t key) : page(key / a.page_tokens), slot(key % a.page_tokens) {}

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
  const float* q[kHeadChunk];
  float* out[kHeadChunk];
  alignas(64) float score[kHeadChunk][kKeys];         // then p
  alignas(64) float weight[kHeadChunk][Vec::kWidth];  // sums of p, in lanes until the end
  alignas(64) float top[kHeadChunk], shrink[kHeadChunk + Vec::kWidth];  // a vector of shrink may begin at the last head
};

KTC_INLINE void prefetch_row(const void* row, std::size_t bytes) {
  for (std::size_t b = 0; b < bytes; b += 64) _mm_prefetch(static_cast<const char*>(row) + b, _MM_HINT_T1);
}

// score[h .. h + Rows][all keys of the block]; asks for the keys and values of `next` where not null.
template <typename T, int Rows>
KTC_INLINE void score_tile(const AttendArgs& a, const KeyBlock<T>& block, const KeyBlock<T>* next, std::size_t h,
                           HeadState& s) {
  constexpr int kColumns = Vec::wide_columns(Rows);
  const float *q1[Rows], *q2[Rows];
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    q1[r] = s.q[h + r];
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
KTC_INLINE void score_rows(const AttendArgs& a, const KeyBlock<T>& block, const KeyBlock<T>* next, std::size_t h,
                           std::size_t rows, HeadState& s) {
  if (rows == Rows) return score_tile<T, Rows>(a, block, next, h, s);
  if constexpr (Rows > 1) score_rows<T, Rows - 1>(a, block, next, h, rows, s);
}

// Scores of heads [begin, end) become p = e^(score - top); updates top, shrink and weight. Keys behind the context get p = 0.
KTC_INLINE void softmax_block(HeadState& s, std::size_t begin, std::size_t end, std::size_t count, bool first_block) {
  constexpr std::size_t kWidth = Vec::kWidth;
  const std::size_t vectors = (count + kWidth - 1) / kWidth;
  for (std::size_t h = begin; h < end; ++h) {
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
  for (std::size_t h = begin; h < end; h += kWidth) Vec::store(s.shrink + h, exp(Vec::load(s.shrink + h)));
  for (std::size_t h = begin; h < end; ++h) {
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
KTC_INLINE void value_tile(const KeyBlock<T>& block, std::size_t h, std::size_t c, std::size_t part, bool first_block,
                           const HeadState& s) {
  static_assert(!Partial || Vectors == 1);
  Vec::Reg sum[Rows][Vectors];
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    const float* o = s.out[h + r] + c;
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
    float* o = s.out[h + r] + c;
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
KTC_INLINE void value_rows(const AttendArgs& a, const KeyBlock<T>& block, std::size_t h, std::size_t rows, bool first_block,
                           const HeadState& s) {
  if (rows == Rows) {
    constexpr std::size_t kWidth = Vec::kWidth, kTile = Vec::kValueVectors * kWidth;
    std::size_t c = 0;
    for (; c + kTile <= a.value_width; c += kTile)
      value_tile<T, Rows, Vec::kValueVectors, false>(block, h, c, 0, first_block, s);
    for (; c + kWidth <= a.value_width; c += kWidth)
      value_tile<T, Rows, 1, false>(block, h, c, 0, first_block, s);
    if (c < a.value_width) value_tile<T, Rows, 1, true>(block, h, c, a.value_width - c, first_block, s);
    return;
  }
  if constexpr (Rows > 1) value_rows<T, Rows - 1>(a, block, h, rows, first_block, s);
}

KTC_INLINE void divide_row(float* out, float by, std::size_t count) {
  const Vec::Reg divisor = Vec::set(by);
  std::size_t c = 0;
  for (; c + Vec::kWidth <= count; c += Vec::kWidth) Vec::store(out + c, Vec::div(Vec::load(out + c), divisor));
  if (c < count) Vec::store(out + c, Vec::div(Vec::load(out + c, count - c), divisor), count - c);
}

// Heads [begin, end) over the keys [from, to) of this part, counted from its first.
template <typename T>
KTC_INLINE void attend_keys(const AttendArgs& a, std::size_t from, std::size_t to, std::size_t begin, std::size_t end,
                            HeadState& state) {
  if (from >= to) return;
  KeyCursor<T> cursor(a, a.first + from);
  KeyBlock<T> blocks[2];  // this one and the next, which is prefetched
  cursor.next(a, at_most(to - from, kKeys), blocks[0]);
  for (std::size_t key = from, current = 0; key < to; key += kKeys, current = 1 - current) {
    const KeyBlock<T>& block = blocks[current];
    KeyBlock<T>& following = blocks[1 - current];
    cursor.next(a, key + kKeys < to ? at_most(to - key - kKeys, kKeys) : 0, following);
    for (std::size_t h = begin, rows; h < end; h += rows) {
      rows = balanced(end - h, Vec::kTileRows);
      score_rows<T, Vec::kTileRows>(a, block, h == begin ? &following : nullptr, h, rows, state);
    }
    softmax_block(state, begin, end, block.count, key == 0);
    for (std::size_t h = begin, rows; h < end; h += rows) {
      rows = balanced(end - h, Vec::kValueRows);
      value_rows<T, Vec::kValueRows>(a, block, h, rows, key == 0, state);
    }
  }
}

// `heads` heads from `head` on, of all rows. Rows share the blocks that all of them see to the end; the rest is each row's own.
template <typename T>
KTC_INLINE void attend_heads(const AttendArgs& a, std::size_t head, std::size_t heads) {
  HeadState state;
  for (float& value : state.shrink) value = 0.0f;
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t h = 0; h < heads; ++h) {
      state.q[r * heads + h] = a.q + r * a.q_row_stride + (head + h) * a.q_stride;
      state.out[r * heads + h] = a.out + r * a.out_row_stride + (head + h) * a.out_stride;
    }
  const auto keys_of = [&](std::size_t r) { return at_most(a.context + r - a.first, a.most); };
  const std::size_t shared = a.rows == 1 ? keys_of(0) : keys_of(0) / kKeys * kKeys;
  attend_keys<T>(a, 0, shared, 0, a.rows * heads, state);
  if (a.rows > 1)
    for (std::size_t r = 0; r < a.rows; ++r) attend_keys<T>(a, shared, keys_of(r), r * heads, (r + 1) * heads, state);
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t i = r * heads + h;
      const Vec::Reg none = Vec::zero();
      const float weight = _mm_cvtss_f32(Vec::sum4(Vec::load(state.weight[i]), none, none, none));
      if (a.top != nullptr) {
        a.top[r * a.heads + head + h] = state.top[i];
        a.weight[r * a.heads + head + h] = weight;
      } else {
        divide_row(state.out[i], weight, a.value_width);
      }
    }
}

template <typename T>
KTC_INLINE void attend(const AttendArgs& a) {
  if (a.rows > 1) return attend_heads<T>(a, 0, a.heads);
  for (std::size_t h = 0; h < a.heads; h += kHeadChunk) attend_heads<T>(a, h, at_most(a.heads - h, kHeadChunk));
}

KTC_INLINE float exp_of(float x) {
  const Vec::Reg none = Vec::zero();
  return _mm_cvtss_f32(Vec::low128(Vec::add(exp(Vec::set(x)), none)));
}

KTC_INLINE void attend_join(const AttendJoinArgs& a) {
  for (std::size_t h = 0; h < a.heads; ++h) {
    float* out = a.out + h * a.out_stride;
    if (a.part != nullptr) {
      const float* part = a.part + h * a.part_stride;
      const float most = a.part_top[h] > a.top[h] ? a.part_top[h] : a.top[h];
      const float shrink = exp_of(a.top[h] - most), factor = exp_of(a.part_top[h] - most);
      a.top[h] = most;
      a.weight[h] = shrink * a.weight[h] + factor * a.part_weight[h];
      const Vec::Reg s = Vec::set(shrink), f = Vec::set(factor);
      std::size_t c = 0;
      for (; c + Vec::kWidth <= a.width; c += Vec::kWidth)
        Vec::store(out + c, Vec::fma(f, Vec::load(part + c), Vec::mul(s, Vec::load(out + c))));
      if (const std::size_t n = a.width - c; n != 0)
        Vec::store(out + c, Vec::fma(f, Vec::load(part + c, n), Vec::mul(s, Vec::load(out + c, n))), n);
    }
    if (a.divide) divide_row(out, a.weight[h], a.width);
  }
}

}  // namespace
}  // namespace ktc::kernels
