// Experts of few tokens: gate and up of every pair, then down for every token.
#include "runtime/kernels/cuda/experts_few.h"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kUpWarps = 4;
constexpr unsigned kBlocksAtOnce = 528;  // of gate and up: four on every SM of an H200, so that all loads are on their way at once

// grid: (blocks that share the tiles of a pair, pairs). h [pair][h_stride].
template <Format F, int B, bool Grouped>
__global__ void __launch_bounds__(kUpWarps * 32, 4) pair_gate_up(Pairs pairs, Matrix x, Rows w, float* h, std::uint64_t h_stride) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float sums[kUpWarps * kDotRows * kDotTokens];
  wait_then_release();  // so that the next kernel knows the choice of experts when it begins
  const std::uint32_t pair = blockIdx.y, token = pair / pairs.top_k;
  const int m = matrix_of_pair(pairs, token, pair % pairs.top_k);
  if (m < 0) return;
  auto* xs = reinterpret_cast<__nv_bfloat16*>(shared);
  const int stride = staged_stride(static_cast<int>(w.columns));
  const std::byte* matrix = w.matrix(m);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const std::uint32_t features = w.rows / 2, tiles = (features + 7) / 8;
  DotTile<F, B, 4, Grouped> dot;
  const auto begin = [&](std::uint32_t tile) {
    const std::uint32_t feature = min(tile * 8 + (lane >> 2), features - 1);
    const RowPlace gate = place_of<F>(w, matrix, feature), up = place_of<F>(w, matrix, features + feature);
    dot.begin(gate.codes, up.codes, gate.scales, up.scales, static_cast<int>(w.group), warp, kUpWarps, steps);
  };
  begin(blockIdx.x);
  stage<F>([&](int) { return x.data + token * x.stride; }, 1, static_cast<int>(w.columns), xs, stride);
  __syncthreads();
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float c[4] = {0, 0, 0, 0};
    dot.run(xs, stride, 1, c);
    if (tile + gridDim.x < tiles) begin(tile + gridDim.x);
    put_sums(sums, warp, c);
    __syncthreads();
    if (threadIdx.x < 8 && tile * 8 + threadIdx.x < features)
      h[pair * h_stride + tile * 8 + threadIdx.x] = silu(total(sums, threadIdx.x, 0, kUpWarps)) * total(sums, threadIdx.x + 8, 0, kUpWarps);
    __syncthreads();
  }
}

// grid: (blocks that share the tiles, tokens). The pairs of a token are added in the order of its ids.
template <Format F, int B, bool Grouped>
__global__ void __launch_bounds__(kDotWarps * 32)
    token_down(Pairs pairs, const float* h, std::uint64_t h_stride, Rows w, Matrix out) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ int own[kMostTopK], matrices[kMostTopK], count;
  __shared__ float sums[kMostTopK > kDotWarps ? kMostTopK * kDotRows : kDotWarps * kDotRows];
  const std::uint32_t token = blockIdx.y;
  if (threadIdx.x < 32) {
    const int m = threadIdx.x < pairs.top_k ? matrix_of_pair(pairs, token, threadIdx.x) : -1;
    const unsigned mine = __ballot_sync(0xffffffffu, m >= 0);
    if (m >= 0) {
      const int at = __popc(mine & ((1u << threadIdx.x) - 1));
      own[at] = static_cast<int>(threadIdx.x);
      matrices[at] = m;
    }
    if (threadIdx.x == 0) count = __popc(mine);
  }
  __syncthreads();
  auto* hs = reinterpret_cast<__nv_bfloat16*>(shared);
  const int stride = staged_stride(static_cast<int>(w.columns));
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const int shares = count == 0 || count >= kDotWarps ? 1 : kDotWarps / count, jobs = count * shares;
  const std::uint32_t tiles = (w.rows + kDotRows - 1) / kDotRows;
  DotTile<F, B, 4, Grouped> dot;
  const auto begin = [&](std::uint32_t tile, int job) {
    const std::uint32_t row = tile * kDotRows + (lane >> 2);
    const std::byte* matrix = w.matrix(matrices[job % count]);
    const RowPlace lo = place_of<F>(w, matrix, min(row, w.rows - 1)), hi = place_of<F>(w, matrix, min(row + 8, w.rows - 1));
    dot.begin(lo.codes, hi.codes, lo.scales, hi.scales, static_cast<int>(w.group), job / count, shares, steps);
  };
  if (warp < jobs) begin(blockIdx.x, warp);
  wait_for_inputs();
  stage<F>([&](int i) { return h + (token * pairs.top_k + own[i]) * h_stride; }, count, static_cast<int>(w.columns), hs, stride);
  __syncthreads();
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (int job = warp; job < jobs; job += kDotWarps) {
      float c[4] = {0, 0, 0, 0};
      dot.run(hs + job % count * stride, stride, 1, c);
      if (job + kDotWarps < jobs)
        begin(tile, job + kDotWarps);
      else if (tile + gridDim.x < tiles)
        begin(tile + gridDim.x, warp);
      if ((lane & 3) == 0) {
        sums[job * kDotRows + (lane >> 2)] = c[0];
        sums[job * kDotRows + (lane >> 2) + 8] = c[2];
      }
    }
    __syncthreads();
    if (threadIdx.x < kDotRows && tile * kDotRows + threadIdx.x < w.rows) {
      float& sum = out.data[token * out.stride + tile * kDotRows + threadIdx.x];
      float f = pairs.accumulate ? sum : 0;
      for (int i = 0; i < count; ++i) {
        float part = 0;
        for (int share = 0; share < shares; ++share) part += sums[(share * count + i) * kDotRows + threadIdx.x];
        f = fmaf(pairs.weights.data[token * pairs.weights.stride + own[i]], part, f);
      }
      sum = f;
    }
    __syncthreads();
  }
}

}  // namespace

int experts_few(const ExpertsArgs& a, const Pairs& pairs, void* stream) {
  const Rows gate_up = rows_of(a.gate_up), down = rows_of(a.down);
  const std::uint32_t intermediate = gate_up.rows / 2, most = a.rows * a.top_k;
  const auto work = gpu_experts_workspace(a.activations, a.rows, a.top_k, gate_up.columns, intermediate, a.gate_up.batch);
  const std::uint64_t h_stride = (intermediate + 63) / 64 * 64;
  float* h = reinterpret_cast<float*>(a.scratch.data + work.x + work.matrix + work.sorted + work.tiles + work.tile_count);
  if (const int error = for_group(a.gate_up.format, a.gate_up.group, [&](auto f, auto g) -> int {
        constexpr auto kernel = pair_gate_up<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped>;
        const std::size_t shared = static_cast<std::size_t>(staged_stride(static_cast<int>(gate_up.columns))) * 2;
        if (const int e = allow_shared(kernel, shared)) return e;
        const unsigned tiles = ceil_div(intermediate, 8), most_each = kBlocksAtOnce / most < 1 ? 1 : kBlocksAtOnce / most;
        const unsigned each = ceil_div(tiles, ceil_div(tiles, most_each));  // blocks of a pair, all with equally many tiles or one less
        return launch(kernel, dim3(each, most), kUpWarps * 32, shared, stream, pairs, a.x, gate_up, h, h_stride);
      }))
    return error;
  return for_group(a.down.format, a.down.group, [&](auto f, auto g) -> int {
    constexpr auto kernel = token_down<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped>;
    const std::size_t shared = static_cast<std::size_t>(a.top_k) * staged_stride(static_cast<int>(down.columns)) * 2;
    if (const int e = allow_shared(kernel, shared)) return e;
    const unsigned tiles = ceil_div(down.rows, kDotRows), wanted = kMostBlocks / a.rows;
    return launch(kernel, dim3(tiles < wanted ? tiles : wanted, a.rows), kDotWarps * 32, shared, stream, pairs, h, h_stride, down, a.out);
  });
}

}  // namespace ktc::gpu
