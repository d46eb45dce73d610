// Products of few tokens, as fast as a weight in bf16 can be read. A block on each SM takes tiles of 16 features; its warps share the
// columns. Each warp fills its ring before it waits for the kernel in front: most of the weight is in shared memory when the tokens come.
#include "runtime/kernels/cuda/linear_ring.h"

#include <type_traits>

#include "runtime/kernels/cuda/products.cuh"
#include "runtime/kernels/cuda/ring.cuh"

namespace ktc::gpu {
namespace {

constexpr int kRingThreads = kDotWarps * 32;
constexpr std::uint32_t kLeastColumns = kDotWarps / 2 * kStageColumns;  // else few warps would have work
constexpr std::size_t kSumBytes = 2 * kDotWarps * kDotRows * kDotTokens * sizeof(float);

template <int kStages>
__global__ void __launch_bounds__(kRingThreads, 2) linear_ring_kernel(Matrix x, Rows w, const float* bias, Matrix out, int tokens) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float sums[2][kDotWarps * kDotRows * kDotTokens];
  const int warp = threadIdx.x / 32, n = (threadIdx.x & 31) >> 2;
  WarpRing<kStages> ring(shared + warp * kStages * kStageBytes);
  auto* const xs = reinterpret_cast<__nv_bfloat16*>(shared + kDotWarps * kStages * kStageBytes);
  const int stride = staged_stride(static_cast<int>(w.columns)), stages = stages_of(w.columns), steps = steps_of(w.columns);
  const std::uint32_t tiles = (w.rows + kDotRows - 1) / kDotRows;

  std::uint32_t next = warp < stages ? blockIdx.x : tiles;  // tile
  int next_stage = warp;
  TileRows rows = {};
  if (next < tiles) rows = tile_rows(w, w.data, next);
  const auto ask = [&] {
    if (next < tiles) {
      ring.ask(rows, next_stage);
      next_stage += kDotWarps;
      if (next_stage >= stages) {
        next_stage = warp;
        next += gridDim.x;
        if (next < tiles) rows = tile_rows(w, w.data, next);
      }
    }
    ring.asked();
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) ask();
  wait_for_inputs();
  stage<Format::bf16>([&](int r) { return x.data + r * x.stride; }, tokens, static_cast<int>(w.columns), xs, stride);
  __syncthreads();

  int round = 0;
  const __nv_bfloat16* const own = xs + (n < tokens ? n : 0) * stride;
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++round) {
    float c[4] = {}, d[4] = {};
    for (int s = warp; s < stages; s += kDotWarps) {
      ring.use(own, n < tokens, s, steps, c, d);
      ask();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += d[i];
    float* const mine = sums[round & 1];
    put_sums(mine, warp, c);
    __syncthreads();  // whoever comes back to these sums has passed the next one
    for (int i = threadIdx.x; i < kDotRows * tokens; i += kRingThreads) {
      const int r = i % kDotRows, token = i / kDotRows;
      const std::uint32_t feature = tile * kDotRows + r;
      if (feature < w.rows) out.data[token * out.stride + feature] = total(mine, r, token, kDotWarps) + (bias != nullptr ? bias[feature] : 0.0f);
    }
  }
}

}  // namespace

int linear_ring(const LinearArgs& a, void* stream) {
  if (a.activations != Format::bf16 || a.w.format != Format::bf16 || a.rows > kGpuFewRows || a.w.columns < kLeastColumns)
    return cudaErrorNotSupported;
  const Rows w = rows_of(a.w);
  const unsigned tiles = ceil_div(w.rows, kDotRows), most = multiprocessors();
  const std::size_t x = std::size_t{a.rows} * staged_stride(static_cast<int>(w.columns)) * 2;
  return for_ring_stages(x + kSumBytes, [&](auto stages) -> int {
    constexpr auto kernel = linear_ring_kernel<decltype(stages)::value>;
    const std::size_t shared = std::size_t{kDotWarps} * stages * kStageBytes + x;
    if (const int error = allow_shared(kernel, shared)) return error;
    return launch(kernel, dim3(tiles < most ? tiles : most), kRingThreads, shared, stream, a.x, w, a.bias, a.out, static_cast<int>(a.rows));
  });
}

}  // namespace ktc::gpu
