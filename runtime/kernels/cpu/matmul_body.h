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

// sum[i][j] += x[i] . w[j] in lanes.
template <typename T, int Rows, int Columns>
KTC_INLINE void accumulate(Vec::Reg (&sum)[Rows][Columns], const float* const (&x)[Rows], const T* const (&w)[Columns],
                           std::size_t k) {
  std::size_t i = 0;
  for (; i + Vec::kWidth <= k; i += Vec::kWidth) {
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

// Rows of x by Columns (4 or 8) rows of w; out[r][g] holds columns 4g .. 4g + 3.
template <typename T, int Rows, int Columns>
KTC_INLINE void products(const float* const (&x)[Rows], const T* const (&w)[Columns], std::size_t k,
                         __m128 (&out)[Rows][Columns / 4]) {
  Vec::Reg sum[Rows][Columns];
  clear(sum);
  accumulate(sum, x, w, k);
  KTC_UNROLL for (int r = 0; r < Rows; ++r) {
    KTC_UNROLL for (int g = 0; g < Columns / 4; ++g) out[r][g] =
        Vec::sum4(sum[r][4 * g], sum[r][4 * g + 1], sum[r][4 * g + 2], sum[r][4 * g + 3]);
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
  static constexpr std::size_t columns(int weights) { return weights; }

  template <int Rows, int Weights>
  KTC_INLINE static void run(const MatmulArgs& a, std::size_t, std::size_t m, std::size_t n) {
    const float* x[Rows];
    KTC_UNROLL for (int r = 0; r < Rows; ++r) x[r] = a.x + mapped(a.x_rows, m + r) * a.x_stride;
    const T* w[Weights];
    const std::size_t valid = at_most(a.n_end - n, Weights);
    KTC_UNROLL for (int c = 0; c < Weights; ++c)  // columns behind the last repeat it
        w[c] = reinterpret_cast<const T*>(a.w + (n + at_most(c, valid - 1)) * a.w_row_bytes);
    __m128 sum[Rows][Weights / 4];
    products(x, w, a.k, sum);
    KTC_UNROLL for (int r = 0; r < Rows; ++r) {
      KTC_UNROLL for (int g = 0; g < Weights / 4; ++g) if (valid > 4u * g)
          finish(a, m + r, n + 4 * g, at_most(valid - 4 * g, 4), sum[r][g]);
    }
  }
};

// One tile of gate_up: half of the rows of w are gate rows, half the up rows that belong to them.
template <typename T>
struct GateUpTile {
  static constexpr std::size_t columns(int weights) { return weights / 2; }

  template <int Rows, int Weights>
  KTC_INLINE static void run(const MatmulArgs& a, std::size_t intermediate, std::size_t m, std::size_t n) {
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
    products(x, w, a.k, sum);
    KTC_UNROLL for (int r = 0; r < Rows; ++r) {
      const __m128 gate = sum[r][0];
      const __m128 up = Weights == 8 ? sum[r][Weights / 4 - 1] : _mm_movehl_ps(gate, gate);
      store4(y_row(a, m + r) + n, _mm_mul_ps(silu4(gate), up), valid);
    }
  }
};

// `rows` (1 .. Vec::kTileRows) becomes a constant.
template <typename Tile, int Rows, int Weights>
KTC_INLINE void run_tile(const MatmulArgs& a, std::size_t intermediate, std::size_t m, std::size_t n,
                         std::size_t rows) {
  if (rows == Rows) return Tile::template run<Rows, Weights>(a, intermediate, m, n);
  if constexpr (Rows > 1) run_tile<Tile, Rows - 1, Weights>(a, intermediate, m, n, rows);
}

// Rows of x that are worked on together: about half of a 1 MiB second-level cache.
KTC_INLINE std::size_t rows_in_cache(std::size_t k) {
  constexpr std::size_t kBytes = 512 * 1024, kLeast = 2 * Vec::kTileRows;
  const std::size_t rows = kBytes / (k * sizeof(float));
  return rows < kLeast ? kLeast : rows;
}

// The few rows of x in registers, many rows of w at once: as many streams as memory likes.
template <typename Tile, int Rows>
KTC_INLINE void multiply_few(const MatmulArgs& a, std::size_t intermediate) {
  constexpr int kWeights = Vec::wide_columns(Rows);
  for (std::size_t n = a.n_begin; n < a.n_end; n += Tile::columns(kWeights))
    Tile::template run<Rows, kWeights>(a, intermediate, 0, n);
}

template <typename Tile>
KTC_INLINE void multiply(const MatmulArgs& a, std::size_t intermediate) {
  if (a.m == 1) return multiply_few<Tile, 1>(a, intermediate);
  if (a.m == 2) return multiply_few<Tile, 2>(a, intermediate);
  if (a.m == 3) return multiply_few<Tile, 3>(a, intermediate);
  constexpr int kWeights = 4;  // Four rows of w stay in the first-level cache while the chunk of x passes
  for (std::size_t first = 0, last; first < a.m; first = last) {
    last = first + balanced(a.m - first, rows_in_cache(a.k));
    for (std::size_t n = a.n_begin; n < a.n_end; n += Tile::columns(kWeights)) {
      for (std::size_t m = first, rows; m < last; m += rows) {
        rows = balanced(last - m, Vec::kTileRows);
        run_tile<Tile, Vec::kTileRows, kWeights>(a, intermediate, m, n, rows);
      }
    }
  }
}

}  // namespace
}  // namespace ktc::kernels
