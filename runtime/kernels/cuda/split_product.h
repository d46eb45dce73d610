// Products of many rows of f32 with the accuracy of f32, by tensor cores: logits of routers, and MLA's heads where x is not rounded.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// out[b][row][n] = x[b][row] . w[b][n]. w: any format. A row's bits do not depend on the rows beside it.
struct SplitProduct {
  Matrix x;                            // of the first product
  Weight w;
  float* out;
  std::uint64_t out_stride;            // elements
  std::uint32_t rows;
  std::uint32_t batch = 1;
  std::uint64_t x_batch = 0, out_batch = 0;  // elements from product to product
};
int split_product(const SplitProduct& p, void* stream);

}  // namespace ktc::gpu
