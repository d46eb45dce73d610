// Products of few tokens: as fast as the weight can be read. Weights do not depend on the kernel before, so every block has its first
// pieces on their way, or in registers, when its activations come.
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kFewRegisters = 96;  // so that the next kernel's blocks fit beside three of 128 threads
constexpr unsigned kTilesForAll = 264;  // up to here two blocks of kDotWarps an SM do; more tiles are for smaller blocks, all at once

// One tile of 16 features at a time; the warps of a block share the columns. With kGated the rows are [gate; up], a tile is 8 features
// of h, and out = silu(gate) * up.
template <Format F, int B, bool Grouped, bool kGated>
__global__ void __maxnreg__(kFewRegisters) few_kernel(Matrix x, Rows w, const float* bias, Matrix out, int tokens) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* xs = reinterpret_cast<__nv_bfloat16*>(shared);
  __shared__ float sums[kDotWarps * kDotRows * kDotTokens];
  constexpr std::uint32_t kFeatures = kGated ? 8 : kDotRows;  // of out in a tile
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, warps = blockDim.x / 32;
  const int stride = staged_stride(static_cast<int>(w.columns));
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const std::uint32_t features = kGated ? w.rows / 2 : w.rows, tiles = (features + kFeatures - 1) / kFeatures;
  DotTile<F, B, 4, Grouped> dot;
  const auto begin = [&](std::uint32_t tile) {
    const std::uint32_t row = tile * kFeatures + (lane >> 2), low = min(row, features - 1);
    const RowPlace lo = place_of<F>(w, w.data, low), hi = place_of<F>(w, w.data, kGated ? features + low : min(row + 8, features - 1));
    dot.begin(lo.codes, hi.codes, lo.scales, hi.scales, static_cast<int>(w.group), warp, warps, steps);
  };
  begin(blockIdx.x);
  wait_for_inputs();
  stage<F>([&](int r) { return x.data + r * x.stride; }, tokens, static_cast<int>(w.columns), xs, stride);
  __syncthreads();
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float c[4] = {0, 0, 0, 0};
    dot.run(xs, stride, tokens, c);
    if (tile + gridDim.x < tiles) begin(tile + gridDim.x);
    put_sums(sums, warp, c);
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < kFeatures * tokens; i += blockDim.x) {
      const int r = i % kFeatures, token = i / kFeatures;
      const std::uint32_t feature = tile * kFeatures + r;
      if (feature >= features) continue;
      const float f = total(sums, r, token, warps);
      if constexpr (kGated)
        out.data[token * out.stride + feature] = silu(f) * total(sums, r + 8, token, warps);
      else
        out.data[token * out.stride + feature] = f + (bias != nullptr ? bias[feature] : 0.0f);
    }
    __syncthreads();
  }
}

template <bool kGated>
int few(const Matrix& x, const Weight& weight, const float* bias, const Matrix& out, std::uint32_t rows, void* stream) {
  const Rows w = rows_of(weight);
  return for_group(weight.format, weight.group, [&](auto f, auto g) -> int {
    constexpr auto kernel = few_kernel<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped, kGated>;
    const std::size_t shared = static_cast<std::size_t>(rows) * staged_stride(static_cast<int>(w.columns)) * 2;
    if (const int error = allow_shared(kernel, shared)) return error;
    const unsigned tiles = kGated ? ceil_div(w.rows / 2, 8) : ceil_div(w.rows, kDotRows);
    const unsigned warps = tiles <= kTilesForAll ? kDotWarps : kDotWarps / 2;
    return launch(kernel, dim3(tiles < kMostBlocks ? tiles : kMostBlocks), warps * 32, shared, stream, x, w, bias, out, static_cast<int>(rows));
  });
}

}  // namespace

int linear_few(const Matrix& x, const Weight& weight, const float* bias, const Matrix& out, std::uint32_t rows, void* stream) {
  return few<false>(x, weight, bias, out, rows, stream);
}

int gate_up_few(const Matrix& x, const Weight& weight, float* h, std::uint64_t h_stride, std::uint32_t rows, void* stream) {
  return few<true>(x, weight, nullptr, {h, h_stride, weight.rows / 2}, rows, stream);
}

}  // namespace ktc::gpu
