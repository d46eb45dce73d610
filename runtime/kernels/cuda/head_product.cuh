// One small matrix per head, as MLA has two of: out(t, h)[n] = x(t, h) . w[h][n]. Few tokens: half a warp per row of the matrix,
// 8 columns a lane; many tokens in tiles.
#pragma once

#include "runtime/kernels/cuda/device_common.cuh"
#include "runtime/kernels/cuda/head_tiles.h"
#include "runtime/kernels/cuda/split_product.h"

namespace ktc::gpu {
namespace {

constexpr unsigned kHeadWarps = 4, kHeadRows = 64;  // rows of a block
constexpr unsigned kHeadTokens = 8;                 // tokens that share a pass over the weights
constexpr unsigned kMostHeadColumns = 1024;

struct HeadProduct {
  const float* x;
  std::uint64_t x_stride, x_head;      // from token to token, from head to head
  Weight w;                            // batch: heads
  float* out;
  std::uint64_t out_stride, out_head;
  unsigned tokens;
  bool rounded;                        // x to bf16
};

template <Format kFormat, unsigned kTokens>
__global__ void __launch_bounds__(kHeadWarps * kWarp) head_product_kernel(HeadProduct p) {
  wait_for_inputs();
  __shared__ __align__(16) float xs[kTokens][kMostHeadColumns];
  const unsigned head = blockIdx.y, columns = p.w.columns, padded = ceil_div(columns, 8u) * 8;
  const std::byte* matrix = p.w.data + head * p.w.matrix_bytes;
  const unsigned half = threadIdx.x / 16, lane = threadIdx.x % 16;
  for (unsigned first = blockIdx.z * kTokens; first < p.tokens; first += gridDim.z * kTokens) {
    const unsigned count = p.tokens - first < kTokens ? p.tokens - first : kTokens;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kTokens * padded; i += blockDim.x) {
      const unsigned t = i / padded, c = i % padded;
      const float value = t < count && c < columns ? p.x[(first + t) * p.x_stride + head * p.x_head + c] : 0.0f;
      xs[t][c] = p.rounded ? round_bf16(value) : value;
    }
    __syncthreads();
    for (unsigned i = half; i < kHeadRows; i += 2 * kHeadWarps) {
      const unsigned n = blockIdx.x * kHeadRows + i;  // both halves of a warp take part in the sums below, whatever n is
      float sums[kTokens] = {};
      if (n < p.w.rows) {
#pragma unroll 4
        for (unsigned c = lane * 8; c < columns; c += 16 * 8) {
          float w[8];
          decode8<kFormat>(p.w, matrix, n, c, w);
#pragma unroll
          for (unsigned t = 0; t < kTokens; ++t) {
            const float4 a = *reinterpret_cast<const float4*>(&xs[t][c]), b = *reinterpret_cast<const float4*>(&xs[t][c + 4]);
            sums[t] += a.x * w[0] + a.y * w[1] + a.z * w[2] + a.w * w[3] + b.x * w[4] + b.y * w[5] + b.z * w[6] + b.w * w[7];
          }
        }
      }
#pragma unroll
      for (unsigned t = 0; t < kTokens; ++t) {
        for (unsigned offset = 8; offset > 0; offset /= 2) sums[t] += __shfl_xor_sync(kAllLanes, sums[t], offset);
        if (lane == 0 && t < count && n < p.w.rows) p.out[(first + t) * p.out_stride + head * p.out_head + n] = sums[t];
      }
    }
  }
}

inline int head_product(const HeadProduct& p, void* stream) {
  if (p.tokens == 0) return 0;
  if (p.rounded && p.w.format == Format::bf16 && p.tokens >= kHeadTileTokens)
    return launch_head_tiles({p.x, p.x_stride, p.x_head, p.w, p.out, p.out_stride, p.out_head, p.tokens}, stream);
  if (!p.rounded && p.tokens >= kHeadTileTokens)
    return split_product({{const_cast<float*>(p.x), p.x_stride, p.w.columns}, p.w, p.out, p.out_stride, p.tokens, p.w.batch, p.x_head, p.out_head},
                         stream);
  if (p.w.columns > kMostHeadColumns) return cudaErrorInvalidValue;
  const unsigned passes = ceil_div(p.tokens, kHeadTokens);
  const dim3 grid(ceil_div(p.w.rows, kHeadRows), p.w.batch, passes < 64 ? passes : 64);
  const bool known = for_format(p.w.format, [&]<Format kFormat>() {
    if (p.tokens == 1)
      launch(head_product_kernel<kFormat, 1>, grid, kHeadWarps * kWarp, 0, stream, p);
    else
      launch(head_product_kernel<kFormat, kHeadTokens>, grid, kHeadWarps * kWarp, 0, stream, p);
  });
  return known ? launched() : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace ktc::gpu
