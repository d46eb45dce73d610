// linear: few rows by dot tiles, many rows by tile_gemm or the library (large_product.h), f32 activations the slow way.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/large_product.h"
#include "runtime/kernels/cuda/linear_ring.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

__global__ void round_kernel(Matrix x, std::uint32_t rows, __nv_bfloat16* out, std::uint64_t stride) {
  wait_for_inputs();
  const std::uint32_t r = blockIdx.x;
  for (std::uint32_t k = threadIdx.x; k < stride; k += blockDim.x)
    out[r * stride + k] = __float2bfloat16_rn(k < x.columns ? x.data[r * x.stride + k] : 0.0f);
}

template <Format F>
__global__ void slow_kernel(Matrix x, Rows w, const float* bias, Matrix out, std::uint32_t rows, bool rounded) {
  wait_for_inputs();
  const std::uint32_t n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, r = blockIdx.y, lane = threadIdx.x & 31;
  if (n >= w.rows || r >= rows) return;
  float f = 0;
  for (std::uint32_t k = lane; k < w.columns; k += 32) {
    const float v = x.data[r * x.stride + k];
    f = fmaf(rounded ? __bfloat162float(__float2bfloat16_rn(v)) : v, value_at<F>(w, w.data, n, k), f);
  }
  for (int o = 16; o > 0; o /= 2) f += __shfl_xor_sync(0xffffffffu, f, o);
  if (lane == 0) out.data[r * out.stride + n] = f + (bias != nullptr ? bias[n] : 0.0f);
}

}  // namespace

int round_rows(const Matrix& x, std::uint32_t rows, __nv_bfloat16* out, std::uint64_t out_stride, void* stream) {
  return launch(round_kernel, dim3(rows), 256, 0, stream, x, rows, out, out_stride);
}

int linear_slow(const LinearArgs& a, void* stream) {
  const Rows w = rows_of(a.w);
  const dim3 grid(ceil_div(w.rows, 8), a.rows);
  const bool rounded = a.activations == Format::bf16;
  if (a.w.format == Format::f32) {
    return launch(slow_kernel<Format::f32>, grid, 256, 0, stream, a.x, w, a.bias, a.out, a.rows, rounded);
  }
  return for_format(a.w.format, [&](auto f) -> int {
    return launch(slow_kernel<decltype(f)::value>, grid, 256, 0, stream, a.x, w, a.bias, a.out, a.rows, rounded);
  });
}

int linear_cuda(const LinearArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  if (a.activations == Format::f32 || a.w.format == Format::f32) return linear_slow(a, stream);
  if (const int error = linear_ring(a, stream); error != cudaErrorNotSupported) return error;
  if (a.rows <= few_rows(a.w.columns)) return linear_few(a.x, a.w, a.bias, a.out, a.rows, stream);
  const std::uint64_t stride = (a.w.columns + 63) / 64 * 64;
  auto* x = reinterpret_cast<__nv_bfloat16*>(a.scratch.data);
  if (const int error = round_rows(a.x, a.rows, x, stride, stream)) return error;
  if (a.large != nullptr && a.rows >= kLargeProductRows) {
    const int error = a.large->run(x, a.w.data, a.bias, a.out.data, a.rows, stream);
    if (error != cudaErrorNotSupported) return error;
  }
  GemmArgs g = gemm_args(x, stride, a.w);
  g.rows = a.rows;
  g.n = g.w.rows;
  g.out = a.out.data;
  g.out_stride = a.out.stride;
  g.bias = a.bias;
  return launch_tile_gemm(a.w.format, g, ceil_div(a.rows, kTileM), stream);
}

}  // namespace ktc::gpu
