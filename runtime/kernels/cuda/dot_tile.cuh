// 16 rows of a weight times up to 8 staged rows of activations: the core of every product with few tokens. It is limited by reading
// the weight: one warp multiplies 16 rows by a share of the columns, the warps of a block share the columns, shares are summed in
// shared memory in a fixed order.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/weight_words.cuh"

namespace ktc::gpu {

constexpr int kDotWarps = 8;     // of a block, at most
constexpr int kDotRows = 16;     // of the weight, per warp
constexpr int kDotTokens = 8;

// Bytes that a lane reads at a time. With groups, one step of a warp (four lanes a row) is at most one group.
template <Format F>
constexpr int lane_bytes(int group) {
  if (F == Format::int4 && group == 64) return 8;
  if (F == Format::int4 && group == 32) return 4;
  return 16;
}

template <int B>
struct Piece;
template <>
struct Piece<16> { using type = uint4; };
template <>
struct Piece<8> { using type = uint2; };
template <>
struct Piece<4> { using type = std::uint32_t; };

// Columns of a step.
template <Format F, int B>
constexpr int step_columns() { return B / 4 * Codes<F>::kPerWord * 4; }

// A lane's pieces of its two rows times its columns of x, added to c: its part of a step. column: staged x of this lane's column group,
// read where `there`.
template <Format F, typename Bytes>
__device__ inline void multiply_pieces(const Bytes& low, const Bytes& high, const __nv_bfloat16* column, bool there, float (&c)[4]) {
  constexpr int kWords = sizeof(Bytes) / 4, kPairs = Codes<F>::kPerWord / 2;
  const std::uint32_t* words_lo = reinterpret_cast<const std::uint32_t*>(&low);
  const std::uint32_t* words_hi = reinterpret_cast<const std::uint32_t*>(&high);
  if constexpr (kPairs == 1) {  // two words are one product
#pragma unroll
    for (int w = 0; w < kWords; w += 2) {
      const std::uint32_t a[4] = {words_lo[w], words_hi[w], words_lo[w + 1], words_hi[w + 1]};
      const uint2 both = *reinterpret_cast<const uint2*>(column + w * 2);
      const std::uint32_t b[2] = {there ? both.x : 0, there ? both.y : 0};
      multiply(c, a, b);
    }
  } else {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      std::uint32_t pairs_lo[kPairs], pairs_hi[kPairs];
      Codes<F>::pairs(words_lo[w], pairs_lo);
      Codes<F>::pairs(words_hi[w], pairs_hi);
#pragma unroll
      for (int p = 0; p < kPairs; p += 2) {
        const std::uint32_t a[4] = {pairs_lo[p], pairs_hi[p], pairs_lo[p + 1], pairs_hi[p + 1]};
        const uint2 both = *reinterpret_cast<const uint2*>(column + w * Codes<F>::kPerWord + p * 2);
        const std::uint32_t b[2] = {there ? both.x : 0, there ? both.y : 0};
        multiply(c, a, b);
      }
    }
  }
}

// One tile: 16 rows times the staged activations. begin() asks for the first pieces, which a kernel may do before its activations are
// there; run() multiplies them and asks for the rest. Both with the same places: codes of this lane's two rows (lane / 4, and 8 further),
// scales likewise, at the first group. Batches of Unroll neighbouring steps: first, first + by, ... as long as there are steps, so that
// what a lane asks for at once lies together.
// Grouped: the weight has a scale per `group` columns.
template <Format F, int B, int Unroll, bool Grouped>
class DotTile {
 public:
  __device__ void begin(const std::byte* lo, const std::byte* hi, const std::byte* scales_lo, const std::byte* scales_hi, int group,
                        int first, int by, int steps) {
    lo_ = lo, hi_ = hi, scales_lo_ = scales_lo, scales_hi_ = scales_hi;
    group_ = group, first_ = first, by_ = by, steps_ = steps;
    fetch(a_, first);
    fetch(b_, first + by);
  }

  // xs: staged activations, [tokens][stride] in the order of stage(). c: the m16n8 accumulator of the lane, to which the tile is added
  // as it is where there are groups or no scales, else with the scale of its rows.
  __device__ void run(const __nv_bfloat16* xs, int stride, int tokens, float (&c)[4]) {
    const int lane = threadIdx.x & 31;
    const __nv_bfloat16* x = xs + ((lane >> 2) < tokens ? lane >> 2 : 0) * stride;
    // While one batch of pieces is used, the next is on its way.
    for (int i = first_; i * Unroll < steps_; i += 2 * by_) {
      use(a_, i, x, tokens, c);
      fetch(a_, i + 2 * by_);
      use(b_, i + by_, x, tokens, c);
      fetch(b_, i + 3 * by_);
    }
    if constexpr (Codes<F>::kScaled && !Grouped) {
      const float scale_lo = scale_at<F>(scales_lo_, false, 0), scale_hi = scale_at<F>(scales_hi_, false, 0);
      c[0] *= scale_lo;
      c[1] *= scale_lo;
      c[2] *= scale_hi;
      c[3] *= scale_hi;
    }
  }

 private:
  using Bytes = typename Piece<B>::type;
  static constexpr int kLaneColumns = B / 4 * Codes<F>::kPerWord;
  struct Batch {
    Bytes low[Unroll], high[Unroll];
    float scale_low[Grouped ? Unroll : 1], scale_high[Grouped ? Unroll : 1];
  };

  __device__ void fetch(Batch& batch, int index) const {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int s = index * Unroll + u;
      if (s >= steps_) break;
      batch.low[u] = __ldcs(reinterpret_cast<const Bytes*>(lo_) + s * 4 + t);
      batch.high[u] = __ldcs(reinterpret_cast<const Bytes*>(hi_) + s * 4 + t);
      if constexpr (Grouped) {
        const int g = s * step_columns<F, B>() / group_;
        batch.scale_low[u] = scale_at<F>(scales_lo_, true, g);
        batch.scale_high[u] = scale_at<F>(scales_hi_, true, g);
      }
    }
  }

  __device__ void use(const Batch& batch, int index, const __nv_bfloat16* x, int tokens, float (&c)[4]) const {
    const int lane = threadIdx.x & 31, t = lane & 3, n = lane >> 2;
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int s = index * Unroll + u;
      if (s >= steps_) break;
      float sum[4] = {0, 0, 0, 0};
      multiply_pieces<F>(batch.low[u], batch.high[u], x + (s * 4 + t) * kLaneColumns, n < tokens, Grouped ? sum : c);
      if constexpr (Grouped) {
        c[0] = fmaf(sum[0], batch.scale_low[u], c[0]);
        c[1] = fmaf(sum[1], batch.scale_low[u], c[1]);
        c[2] = fmaf(sum[2], batch.scale_high[u], c[2]);
        c[3] = fmaf(sum[3], batch.scale_high[u], c[3]);
      }
    }
  }

  const std::byte *lo_, *hi_, *scales_lo_, *scales_hi_;
  int group_, first_, by_, steps_;
  Batch a_, b_;
};

// The codes and scales of one row.
struct RowPlace {
  const std::byte* codes;
  const std::byte* scales;
};
template <Format F>
__device__ RowPlace place_of(const Rows& w, const std::byte* matrix, std::uint32_t row) {
  const std::uint64_t scale_bytes = F == Format::int4 && w.group != 0 ? 2 : 4;
  return {matrix + row * w.row_bytes, matrix + w.scales_offset + static_cast<std::uint64_t>(row) * w.groups * scale_bytes};
}

// Rows of f32, row(r) with r in [0, tokens), to bf16 in shared memory, in the order of the codes, zero up to `stride`.
// Stride: staged_stride(). All threads of the block; the caller synchronises.
template <Format F, typename Row>
__device__ void stage(const Row& row, int tokens, int columns, __nv_bfloat16* xs, int stride) {
  const int pieces = (stride - 8) / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < tokens * pieces; i += blockDim.x) {
    const int r = i / pieces, k = i % pieces * 8;
    const float* x = row(r) + k;
    float v[8];
    if (k + 8 <= columns && (reinterpret_cast<std::uintptr_t>(x) & 15) == 0) {
      const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = k + e < columns ? x[e] : 0.0f;
    }
    std::uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const __nv_bfloat162 pair = F == Format::int4 ? __floats2bfloat162_rn(v[w], v[w + 4]) : __floats2bfloat162_rn(v[2 * w], v[2 * w + 1]);
      words[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
    *reinterpret_cast<uint4*>(xs + r * stride + k) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Columns padded to whole steps, and 8 more so that rows lie in different banks.
__host__ __device__ inline int staged_stride(int columns) { return (columns + 127) / 128 * 128 + 8; }

// Each warp's accumulators to sums[warp][16 rows][8 tokens].
__device__ inline void put_sums(float* sums, int warp, const float (&c)[4]) {
  const int lane = threadIdx.x & 31, row = lane >> 2, token = (lane & 3) * 2;
  float* mine = sums + warp * kDotRows * kDotTokens;
  mine[row * kDotTokens + token] = c[0];
  mine[row * kDotTokens + token + 1] = c[1];
  mine[(row + 8) * kDotTokens + token] = c[2];
  mine[(row + 8) * kDotTokens + token + 1] = c[3];
}
__device__ inline float total(const float* sums, int row, int token, int warps) {
  float f = 0;
#pragma unroll 4
  for (int w = 0; w < warps; ++w) f += sums[(w * kDotRows + row) * kDotTokens + token];
  return f;
}

}  // namespace ktc::gpu
