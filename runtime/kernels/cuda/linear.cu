// linear: few rows by dot tiles, many rows by tile_gemm, f32 activations the slow way.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

__global__ void round_kernel(Matrix x, std::uint32_t rows, __nv_bfloat16* out, std::uint64_t stride) {
  wait_for_inputs();
  const std::uint32_t r = blockIdx.x;
  for (std::uint32_t k = threadIdx.x; k < stride; k += blockDim.x)
    out[r * stride + k] = __float2bfloat16_rn(k < x.columns ? x.data[r * x.stride + k] : 0.0f);
}

// One tile of 16 features at a time; the warps of a block share the columns.
template <Format F, int B, bool Grouped>
__global__ void __launch_bounds__(kDotWarps * 32) few_kernel(Matrix x, Rows w, const float* bias, Matrix out, int tokens) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* xs = reinterpret_cast<__nv_bfloat16*>(shared);
  const int stride = staged_stride(static_cast<int>(w.columns));
  __shared__ float sums[kDotWarps * kDotRows * kDotTokens];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const std::uint32_t tiles = (w.rows + kDotRows - 1) / kDotRows, soon = blockIdx.x * kDotRows + (lane >> 2);
  prefetch_tile<B>(place_of<F>(w, w.data, min(soon, w.rows - 1)).codes, place_of<F>(w, w.data, min(soon + 8, w.rows - 1)).codes, warp,
                   kDotWarps, steps);
  wait_for_inputs();  // weights do not depend on the kernel before
  stage<F>([&](int r) { return x.data + r * x.stride; }, tokens, static_cast<int>(w.columns), xs, stride);
  __syncthreads();
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint32_t row = tile * kDotRows + (lane >> 2);
    const RowPlace lo = place_of<F>(w, w.data, min(row, w.rows - 1)), hi = place_of<F>(w, w.data, min(row + 8, w.rows - 1));
    float c[4] = {0, 0, 0, 0};
    dot_tile<F, B, 4, Grouped>(lo.codes, hi.codes, lo.scales, hi.scales, static_cast<int>(w.group), warp, kDotWarps, steps, xs, stride,
                               tokens, c);
    put_sums(sums, warp, c);
    __syncthreads();
    for (int i = threadIdx.x; i < kDotRows * tokens; i += blockDim.x) {
      const int r = i % kDotRows, token = i / kDotRows;
      const std::uint32_t feature = tile * kDotRows + r;
      if (feature < w.rows) out.data[token * out.stride + feature] = total(sums, r, token) + (bias != nullptr ? bias[feature] : 0.0f);
    }
    __syncthreads();
  }
}

// The same with [gate; up] rows: a tile is 8 features of h.
template <Format F, int B, bool Grouped>
__global__ void __launch_bounds__(kDotWarps * 32)
    gate_up_kernel(Matrix x, Rows w, float* h, std::uint64_t h_stride, int tokens) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* xs = reinterpret_cast<__nv_bfloat16*>(shared);
  const int stride = staged_stride(static_cast<int>(w.columns));
  __shared__ float sums[kDotWarps * kDotRows * kDotTokens];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const std::uint32_t features = w.rows / 2, tiles = (features + 7) / 8, soon = min(blockIdx.x * 8 + (lane >> 2), features - 1);
  prefetch_tile<B>(place_of<F>(w, w.data, soon).codes, place_of<F>(w, w.data, features + soon).codes, warp, kDotWarps, steps);
  wait_for_inputs();  // weights do not depend on the kernel before
  stage<F>([&](int r) { return x.data + r * x.stride; }, tokens, static_cast<int>(w.columns), xs, stride);
  __syncthreads();
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint32_t feature = min(tile * 8 + (lane >> 2), features - 1);
    const RowPlace gate = place_of<F>(w, w.data, feature), up = place_of<F>(w, w.data, features + feature);
    float c[4] = {0, 0, 0, 0};
    dot_tile<F, B, 4, Grouped>(gate.codes, up.codes, gate.scales, up.scales, static_cast<int>(w.group), warp, kDotWarps, steps, xs,
                               stride, tokens, c);
    put_sums(sums, warp, c);
    __syncthreads();
    for (int i = threadIdx.x; i < 8 * tokens; i += blockDim.x) {
      const int r = i % 8, token = i / 8;
      const std::uint32_t f = tile * 8 + r;
      if (f < features) h[token * h_stride + f] = silu(total(sums, r, token)) * total(sums, r + 8, token);
    }
    __syncthreads();
  }
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

int launch_tile_gemm(Format format, const GemmArgs& args, std::uint32_t most_tiles, void* stream) {
  return for_format(format, [&](auto f) -> int {
    constexpr Format F = decltype(f)::value;
    if (const int error = allow_shared(tile_gemm<F>, kTileShared)) return error;
    const dim3 grid(ceil_div(args.n, args.paired ? kTileN / 2 : kTileN), most_tiles);
    return launch(tile_gemm<F>, grid, kTileThreads, kTileShared, stream, args);
  });
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

int linear_few(const Matrix& x, const Weight& weight, const float* bias, const Matrix& out, std::uint32_t rows, void* stream) {
  const Rows w = rows_of(weight);
  return for_group(weight.format, weight.group, [&](auto f, auto g) -> int {
    constexpr auto kernel = few_kernel<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped>;
    const std::size_t shared = static_cast<std::size_t>(rows) * staged_stride(static_cast<int>(w.columns)) * 2;
    if (const int error = allow_shared(kernel, shared)) return error;
    const unsigned tiles = ceil_div(w.rows, kDotRows);
    return launch(kernel, dim3(tiles < kMostBlocks ? tiles : kMostBlocks), kDotWarps * 32, shared, stream, x, w, bias, out,
                  static_cast<int>(rows));
  });
}

int gate_up_few(const Matrix& x, const Weight& weight, float* h, std::uint64_t h_stride, std::uint32_t rows, void* stream) {
  const Rows w = rows_of(weight);
  return for_group(weight.format, weight.group, [&](auto f, auto g) -> int {
    constexpr auto kernel = gate_up_kernel<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped>;
    const std::size_t shared = static_cast<std::size_t>(rows) * staged_stride(static_cast<int>(w.columns)) * 2;
    if (const int error = allow_shared(kernel, shared)) return error;
    const unsigned tiles = ceil_div(w.rows / 2, 8);
    return launch(kernel, dim3(tiles < kMostBlocks ? tiles : kMostBlocks), kDotWarps * 32, shared, stream, x, w, h, h_stride,
                  static_cast<int>(rows));
  });
}

int linear_cuda(const LinearArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  if (a.activations == Format::f32 || a.w.format == Format::f32) return linear_slow(a, stream);
  if (a.rows <= few_rows(a.w.columns)) return linear_few(a.x, a.w, a.bias, a.out, a.rows, stream);
  const std::uint64_t stride = (a.w.columns + 63) / 64 * 64;
  auto* x = reinterpret_cast<__nv_bfloat16*>(a.scratch.data);
  if (const int error = round_rows(a.x, a.rows, x, stride, stream)) return error;
  GemmArgs g = gemm_args(x, stride, a.w);
  g.rows = a.rows;
  g.n = g.w.rows;
  g.out = a.out.data;
  g.out_stride = a.out.stride;
  g.bias = a.bias;
  return launch_tile_gemm(a.w.format, g, ceil_div(a.rows, kTileM), stream);
}

}  // namespace ktc::gpu
