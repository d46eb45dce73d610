// matmul and gate_up on vectors.
//
// Order of a sum: lane l of one register adds the products k = l, l + W, l + 2W, … by fused multiply-adds, the last
// partial vector with zeros behind; then Vec::sum4 adds the lanes as a tree. Every tile shape does exactly this for
// each of its (row, column) pairs, so a result depends on neither the tile nor the neighbours that shared it.
#pragma once

#include "runtime/kernels/cpu/exp_body.h"
#include "runtime/kernels/cpu/kernels.h"

namespace ktc::kernels {
namespace {

// Two places in memory that are asked for while a tile is worked on, `step` bytes further in every step of its k loop:
// the rows of w that come next. Hardware prefetchers follow a row but know nothing of the next rows.
struct Prefetch {
  const std::byte* at[2];
  std::size_t step;

  template <int Lines>
  KTC_INLINE void ask() {
    KTC_UNROLL for (int l = 0; l < Lines; ++l) {
      _mm_prefetch(reinterpret_cast<const char*>(at[0] + 64 * l), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(at[1] + 64 * l), _MM_HINT_T1);
    }
    at[0] += step;
    at[1] += step;
  }
};

// sum[i][j] += x[i] . w[j] in lanes.
template <int Lines, typename T, int Rows, int Columns>
KTC_INLINE void accumulate(Vec::Reg (&sum)[Rows][Columns], const float* const (&x)[Rows], const T* const (&w)[Columns],
                           std::size_t k, Prefetch prefetch) {
  std::size_t i = 0;
  for (; i + Vec::kWidth <= k; i += Vec::kWidth) {
    prefetch.ask<Lines>();
    Vec::Reg xv[Rows];
    KTC_UNROLL for (int r = 0; r < Rows; ++r) xv[r] = Vec::load(x[r] + i);
    KTC_UNROLL for (int c = 0; c < Columns; ++c) {
      const Vec::Reg wv = Vec::load(w[c] + i);
      KTC_UNROLL for (int r = 0; r < Rows; ++r) sum[r][c] = Vec::fma(xv[r], wv, sum[r][c]);
    }
  }
  if (i == k) return;
  KTC_UNROLL for (int c = 0; c < Columns; ++c) {
    const Vec::Reg wv = Vec::load(w[c] + i, k - i);
    KTC_UNROLL for (int r = 0; r < Rows; ++r) sum[r][c] = Vec::fma(Vec::load(x[r] + i, k - i), wv, sum[r][c]);
  }
}

template <int Rows, int Columns>
KTC_INLINE void clear(Vec::Reg (&sum)[Rows][Columns]) {
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    KTC_UNROLL for (int c = 0; c < Columns; ++c) sum[r][c] = Vec::zero();
  }
}

// Cache lines that one step of a tile of `columns` rows of w reads, halved for the two places of Prefetch.
template <typename T>
constexpr int prefetch_lines(int columns) {
  const int lines = columns * static_cast<int>(Vec::kWidth * sizeof(T)) / 64 / 2;
  return lines < 1 ? 1 : lines;
}

// Rows of x by Columns (4 or 8) rows of w; out[r][g] holds columns 4g .. 4g + 3.
template <typename T, int Rows, int Columns>
KTC_INLINE void products(const float* const (&x)[Rows], const T* const (&w)[Columns], std::size_t k,
                         const Prefetch& prefetch, __m128 (&out)[Rows][Columns / 4]) {
  Vec::Reg sum[Rows][Columns];
  clear(sum);
  accumulate<prefetch_lines<T>(Columns)>(sum, x, w, k, prefetch);
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    KTC_UNROLL for (int g = 0; g < Columns / 4; ++g) {
      out[r][g] = Vec::sum4(sum[r][4 * g], sum[r][4 * g + 1], sum[r][4 * g + 2], sum[r][4 * g + 3]);
    }
  }
}

// The first n of four floats.
KTC_INLINE __m128 load4(const float* p, std::size_t n) {
  if (n >= 4) return _mm_loadu_ps(p);
  float part[4] = {};
  for (std::size_t i = 0; i < n; ++i) part[i] = p[i];
  return _mm_loadu_ps(part);
}
KTC_INLINE void store4(float* p, __m128 v, std::size_t n) {
  if (n >= 4) return _mm_storeu_ps(p, v);
  float part[4];
  _mm_storeu_ps(part, v);
  for (std::size_t i = 0; i < n; ++i) p[i] = part[i];
}

KTC_INLINE std::size_t mapped(const std::uint32_t* rows, std::size_t m) {
  return rows != nullptr ? rows[m] : m;
}
KTC_INLINE float* y_row(const MatmulArgs& a, std::size_t m) {
  return a.y + mapped(a.y_rows, m) * a.y_stride;
}

// Writes four columns (n <= 4 of them valid) of one row.
KTC_INLINE void finish(const MatmulArgs& a, std::size_t m, std::size_t column, std::size_t n, __m128 sum) {
  float* y = y_row(a, m) + column;
  if (a.bias != nullptr) sum = _mm_add_ps(sum, load4(a.bias + column, n));
  if (a.scale != nullptr) sum = _mm_add_ps(load4(y, n), _mm_mul_ps(_mm_set1_ps(a.scale[m]), sum));
  store4(y, sum, n);
}

// One tile of matmul: Rows rows of x from m by Weights rows of w, which are columns n ...
template <typename T>
struct MatmulTile {
  static constexpr bool kGateUp = false;
  static constexpr std::size_t columns(int weights) { return weights; }

  template <int Rows, int Weights>
  KTC_INLINE static void run(const MatmulArgs& a, std::size_t, std::size_t m, std::size_t n, const Prefetch& prefetch) {
    const float* x[Rows];
    KTC_UNROLL for (int r = 0; r < Rows; ++r) x[r] = a.x + mapped(a.x_rows, m + r) * a.x_stride;
    const T* w[Weights];
    const std::size_t valid = at_most(a.n_end - n, Weights);
    KTC_UNROLL for (int c = 0; c < Weights; ++c)  // columns behind the last repeat it
        w[c] = reinterpret_cast<const T*>(a.w + (n + at_most(c, valid - 1)) * a.w_row_bytes);
    __m128 sum[Rows][Weights / 4];
    products(x, w, a.k, prefetch, sum);
    KTC_UNROLL for (int r = 0; r < Rows; ++r) {
      KTC_UNROLL for (int g = 0; g < Weights / 4; ++g) if (valid > 4u * g)
          finish(a, m + r, n + 4 * g, at_most(valid - 4 * g, 4), sum[r][g]);
    }
  }
};

// One tile of gate_up: half of the rows of w are gate rows, half the up rows that belong to them.
template <typename T>
struct GateUpTile {
  static constexpr bool kGateUp = true;
  static constexpr std::size_t columns(int weights) { return weights / 2; }

  template <int Rows, int Weights>
  KTC_INLINE static void run(const MatmulArgs& a, std::size_t intermediate, std::size_t m, std::size_t n,
                             const Prefetch& prefetch) {
    constexpr int kPairs = Weights / 2;
    const float* x[Rows];
    KTC_UNROLL for (int r = 0; r < Rows; ++r) x[r] = a.x + mapped(a.x_rows, m + r) * a.x_stride;
    const T* w[Weights];
    const std::size_t valid = at_most(a.n_end - n, kPairs);
    KTC_UNROLL for (int c = 0; c < kPairs; ++c) {
      const std::size_t row = n + at_most(c, valid - 1);
      w[c] = reinterpret_cast<const T*>(a.w + row * a.w_row_bytes);
      w[kPairs + c] = reinterpret_cast<const T*>(a.w + (intermediate + row) * a.w_row_bytes);
    }
    __m128 sum[Rows][Weights / 4];
    products(x, w, a.k, prefetch, sum);
    KTC_UNROLL for (int r = 0; r < Rows; ++r) {
      const __m128 gate = sum[r][0];
      const __m128 up = Weights == 8 ? sum[r][Weights / 4 - 1] : _mm_movehl_ps(gate, gate);
      store4(y_row(a, m + r) + n, _mm_mul_ps(silu4(gate), up), valid);
    }
  }
};

// `rows` (1 .. Vec::kTileRows) becomes a constant.
template <typename Tile, int Rows, int Weights>
KTC_INLINE void run_tile(const MatmulArgs& a, std::size_t intermediate, std::size_t m, std::size_t n, std::size_t rows,
                         const Prefetch& prefetch) {
  if (rows == Rows) return Tile::template run<Rows, Weights>(a, intermediate, m, n, prefetch);
  if constexpr (Rows > 1) run_tile<Tile, Rows - 1, Weights>(a, intermediate, m, n, rows, prefetch);
}

// Share `index` of `shares` of the Weights rows of w that the tiles at column n read. Behind the last column, one
// harmless line.
template <typename Tile, int Weights>
KTC_INLINE Prefetch next_weights(const MatmulArgs& a, std::size_t intermediate, std::size_t n, std::size_t index,
                                 std::size_t shares) {
  if (n >= a.n_end) return {{a.w, a.w}, 0};
  const std::size_t share = Weights / 2 * a.w_row_bytes / shares;  // of each of the two places
  const std::byte* at = a.w + n * a.w_row_bytes + index * share;
  const std::size_t apart = Tile::kGateUp ? intermediate : Weights / 2;
  return {{at, at + apart * a.w_row_bytes}, share / (a.k / Vec::kWidth + 1)};
}

// The few rows of x in registers, many rows of w at once: as many streams as memory likes.
template <typename Tile, int Rows>
KTC_INLINE void multiply_few(const MatmulArgs& a, std::size_t intermediate) {
  constexpr int kWeights = Vec::wide_columns(Rows);
  constexpr std::size_t kColumns = Tile::columns(kWeights);
  for (std::size_t n = a.n_begin; n < a.n_end; n += kColumns)
    Tile::template run<Rows, kWeights>(a, intermediate, 0, n,
                                       next_weights<Tile, kWeights>(a, intermediate, n + kColumns, 0, 1));
}

// Rows of x that are worked on together: about half of a 1 MiB second-level cache. Every chunk reads w once more, so
// long rows spill into the third level rather than make small chunks.
KTC_INLINE std::size_t rows_in_cache(std::size_t k) {
  constexpr std::size_t kBytes = 512 * 1024, kLeast = 48;
  const std::size_t rows = kBytes / (k * sizeof(float));
  return rows < kLeast ? kLeast : rows;
}

// Many rows of x: a chunk of them passes over eight rows of w. A tile of x meets them four at a time while it is in the
// first-level cache.
template <typename Tile>
KTC_INLINE void multiply_many(const MatmulArgs& a, std::size_t intermediate) {
  constexpr int kWeights = 4, kTiles = 2;
  constexpr std::size_t kColumns = Tile::columns(kWeights), kBlock = kTiles * kColumns;
  for (std::size_t first = 0, last; first < a.m; first = last) {
    last = first + balanced(a.m - first, rows_in_cache(a.k));
    const std::size_t tiles = (last - first + Vec::kTileRows - 1) / Vec::kTileRows;
    for (std::size_t block = a.n_begin; block < a.n_end; block += kBlock) {
      std::size_t m = first, index = 0;
      for (std::size_t tile = 0, rows; tile < tiles; ++tile, m += rows) {
        rows = balanced(last - m, Vec::kTileRows);
        for (std::size_t n = block; n < at_most(block + kBlock, a.n_end); n += kColumns, ++index)
          run_tile<Tile, Vec::kTileRows, kWeights>(
              a, intermediate, m, n, rows,
              next_weights<Tile, kTiles * kWeights>(a, intermediate, block + kBlock, index, tiles * kTiles));
      }
    }
  }
}

template <typename Tile>
KTC_INLINE void multiply(const MatmulArgs& a, std::size_t intermediate) {
  switch (a.m) {
    case 0: return;
    case 1: return multiply_few<Tile, 1>(a, intermediate);
    case 2: return multiply_few<Tile, 2>(a, intermediate);
    case 3: return multiply_few<Tile, 3>(a, intermediate);
    default: return multiply_many<Tile>(a, intermediate);
  }
}

}  // namespace
}  // namespace ktc::kernels
