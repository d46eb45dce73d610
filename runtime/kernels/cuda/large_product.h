// Products of many rows with bf16 weights by cuBLASLt, which is half a gigabyte and therefore no part of this program: it is opened
// when a plan first has such a product, and where it is absent our own kernels compute (tile_gemm.cuh).
//
// Each product has one algorithm, chosen at open for the largest number of rows; it serves every smaller number too, adds k in one go
// (no split, no workspace), and so a row's result does not depend on the rows beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// Fewer rows are our kernels', which then take no longer.
constexpr std::uint32_t kLargeProductRows = 256;

struct LargeShape {
  std::uint32_t n = 0, k = 0;                       // of the weight; k: columns as they are multiplied, padding included
  std::uint64_t x_stride = 0, w_stride = 0, out_stride = 0;  // elements; multiples of 8, 8 and 4
  bool bias = false;
  std::uint32_t most_rows = 0;
};

// out [rows, n] f32 = x [rows, k] bf16, w [n, k]^T bf16, plus bias f32 [n]. Threading: one at a time. Lives as long as kernels use it.
class LargeProduct {
 public:
  virtual ~LargeProduct() = default;
  // 0, or a cudaError_t; cudaErrorNotSupported: nothing was launched, our kernel has to do it. x, w and out are 16-byte aligned.
  virtual int run(const void* x, const void* w, const float* bias, float* out, std::uint32_t rows, void* stream) const = 0;
};

// For one device, which becomes the current one. Errors: unsupported where the library cannot be opened (once per process; the
// reason is kept) or has no algorithm for the shape.
Expected<std::unique_ptr<LargeProduct>> open_large_product(int ordinal, const LargeShape& shape);
// The library's version, for reports; the error of opening it. Opens it.
Expected<std::string> large_products_version();

}  // namespace ktc::gpu
