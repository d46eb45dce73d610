// The products of MLA's heads for many tokens, in tiles (tile_gemm.cuh): out(t, h) = x(t, h) . w[h], x rounded to bf16.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

constexpr unsigned kHeadTileTokens = 9;  // from here on tiles are faster, almost empty as they may be

struct HeadTiles {
  const float* x;
  std::uint64_t x_stride, x_head;      // elements from token to token, from head to head
  Weight w;                            // bf16; batch: heads
  float* out;
  std::uint64_t out_stride, out_head;
  unsigned tokens;
};
int launch_head_tiles(const HeadTiles& p, void* stream);

}  // namespace ktc::gpu
