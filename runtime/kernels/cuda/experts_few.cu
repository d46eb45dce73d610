// Experts of few tokens: gate and up of every pair, then down for every token.
#include "runtime/kernels/cuda/experts_few.h"

#include <type_traits>

#include "runtime/kernels/cuda/products.cuh"
#include "runtime/kernels/cuda/ring.cuh"

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

// The pairs of token blockIdx.y that are this op's, in the order of its ids: all threads of the block call it.
struct OwnPairs {
  int pair[kMostTopK], matrix[kMostTopK], count;
  float weight[kMostTopK];
};
__device__ inline void find_own(const Pairs& pairs, OwnPairs& own) {
  if (threadIdx.x < 32) {
    const std::uint32_t token = blockIdx.y;
    const int m = threadIdx.x < pairs.top_k ? matrix_of_pair(pairs, token, threadIdx.x) : -1;
    const unsigned mine = __ballot_sync(0xffffffffu, m >= 0);
    if (m >= 0) {
      const int at = __popc(mine & ((1u << threadIdx.x) - 1));
      own.pair[at] = static_cast<int>(threadIdx.x);
      own.matrix[at] = m;
      own.weight[at] = pairs.weights.data[token * pairs.weights.stride + threadIdx.x];
    }
    if (threadIdx.x == 0) own.count = __popc(mine);
  }
  __syncthreads();
}
// Column `threadIdx.x` of a tile of the output from sums[share][pair][column].
__device__ inline void add_pairs(const Pairs& pairs, const OwnPairs& own, int shares, const float* sums, const Matrix& out, std::uint32_t column) {
  float& sum = out.data[blockIdx.y * out.stride + column];
  float f = pairs.accumulate ? sum : 0;
  for (int i = 0; i < own.count; ++i) {
    float part = 0;
    for (int share = 0; share < shares; ++share) part += sums[(share * own.count + i) * kDotRows + threadIdx.x];
    f = fmaf(own.weight[i], part, f);
  }
  sum = f;
}

// grid: (blocks that share the tiles, tokens). The pairs of a token are added in the order of its ids.
template <Format F, int B, bool Grouped>
__global__ void __launch_bounds__(kDotWarps * 32)
    token_down(Pairs pairs, const float* h, std::uint64_t h_stride, Rows w, Matrix out) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ OwnPairs own;
  __shared__ float sums[kMostTopK > kDotWarps ? kMostTopK * kDotRows : kDotWarps * kDotRows];
  const std::uint32_t token = blockIdx.y;
  find_own(pairs, own);
  const int count = own.count;
  auto* hs = reinterpret_cast<__nv_bfloat16*>(shared);
  const int stride = staged_stride(static_cast<int>(w.columns));
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const int shares = count == 0 || count >= kDotWarps ? 1 : kDotWarps / count, jobs = count * shares;
  const std::uint32_t tiles = (w.rows + kDotRows - 1) / kDotRows;
  DotTile<F, B, 4, Grouped> dot;
  const auto begin = [&](std::uint32_t tile, int job) {
    const std::uint32_t row = tile * kDotRows + (lane >> 2);
    const std::byte* matrix = w.matrix(own.matrix[job % count]);
    const RowPlace lo = place_of<F>(w, matrix, min(row, w.rows - 1)), hi = place_of<F>(w, matrix, min(row + 8, w.rows - 1));
    dot.begin(lo.codes, hi.codes, lo.scales, hi.scales, static_cast<int>(w.group), job / count, shares, steps);
  };
  if (warp < jobs) begin(blockIdx.x, warp);
  wait_for_inputs();
  stage<F>([&](int i) { return h + (token * pairs.top_k + own.pair[i]) * h_stride; }, count, static_cast<int>(w.columns), hs, stride);
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
    if (threadIdx.x < kDotRows && tile * kDotRows + threadIdx.x < w.rows) add_pairs(pairs, own, shares, sums, out, tile * kDotRows + threadIdx.x);
    __syncthreads();
  }
}

// The same with weights in bf16 and a ring for each warp: the choice is known when this kernel begins, so the rings fill while gate and up
// are still multiplied. Few registers, so that its blocks fit beside those.
template <int kStages>
__global__ void __launch_bounds__(kDotWarps * 32, 4)
    token_down_ring(Pairs pairs, const float* h, std::uint64_t h_stride, Rows w, Matrix out) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ OwnPairs own;
  __shared__ float sums[2][kMostTopK * kDotRows];
  const int warp = threadIdx.x / 32, n = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  WarpRing<kStages> ring(shared + warp * kStages * kStageBytes);
  auto* const hs = reinterpret_cast<__nv_bfloat16*>(shared + kDotWarps * kStages * kStageBytes);
  find_own(pairs, own);
  const int count = own.count, shares = count == 0 || count >= kDotWarps ? 1 : kDotWarps / count, jobs = count * shares;
  const int stride = staged_stride(static_cast<int>(w.columns)), stages = stages_of(w.columns), steps = steps_of(w.columns);
  const std::uint32_t tiles = (w.rows + kDotRows - 1) / kDotRows;

  // A warp's jobs of a tile: a share of a pair's columns each.
  std::uint32_t next = warp < jobs ? blockIdx.x : tiles;
  int next_job = warp, next_stage = 0;
  TileRows rows = {};
  const auto place = [&] {
    rows = tile_rows(w, w.matrix(own.matrix[next_job % count]), next);
    next_stage = next_job / count;
  };
  if (next < tiles) place();
  const auto ask = [&] {
    while (next < tiles && next_stage >= stages) {  // the job has no more
      next_job += kDotWarps;
      if (next_job >= jobs) {
        next_job = warp;
        next += gridDim.x;
      }
      if (next < tiles) place();
    }
    if (next < tiles) {
      ring.ask(rows, next_stage);
      next_stage += shares;
    }
    ring.asked();
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) ask();
  wait_for_inputs();
  stage<Format::bf16>([&](int i) { return h + (blockIdx.y * pairs.top_k + own.pair[i]) * h_stride; }, count, static_cast<int>(w.columns), hs, stride);
  __syncthreads();
  int round = 0;
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++round) {
    float* const mine = sums[round & 1];
    for (int job = warp; job < jobs; job += kDotWarps) {
      float c[4] = {}, d[4] = {};
      for (int s = job / count; s < stages; s += shares) {
        ring.use(hs + job % count * stride, n == 0, s, steps, c, d);
        ask();
      }
      if (t == 0) {
        mine[job * kDotRows + n] = c[0] + d[0];
        mine[job * kDotRows + n + 8] = c[2] + d[2];
      }
    }
    __syncthreads();  // whoever comes back to these sums has passed the next one
    if (threadIdx.x < kDotRows && tile * kDotRows + threadIdx.x < w.rows) add_pairs(pairs, own, shares, mine, out, tile * kDotRows + threadIdx.x);
  }
}

// cudaErrorNotSupported, and nothing is launched, where token_down serves better.
int down_by_rings(const ExpertsArgs& a, const Pairs& pairs, const Rows& down, const float* h, std::uint64_t h_stride, void* stream) {
  const unsigned tiles = ceil_div(down.rows, kDotRows);
  if (a.down.format != Format::bf16 || a.rows * tiles > 2 * multiprocessors()) return cudaErrorNotSupported;
  const std::size_t values = std::size_t{a.top_k} * staged_stride(static_cast<int>(down.columns)) * 2;
  const std::size_t kept = 32 * 1024;  // for sums, and blocks of gate and up beside
  return for_ring_stages(values + kept, [&](auto stages) -> int {
    constexpr auto kernel = token_down_ring<decltype(stages)::value>;
    const std::size_t shared = std::size_t{kDotWarps} * stages * kStageBytes + values;
    if (const int error = allow_shared(kernel, shared)) return error;
    return launch(kernel, dim3(tiles, a.rows), kDotWarps * 32, shared, stream, pairs, h, h_stride, down, a.out);
  });
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
  if (const int error = down_by_rings(a, pairs, down, h, h_stride, stream); error != cudaErrorNotSupported) return error;
  return for_group(a.down.format, a.down.group, [&](auto f, auto g) -> int {
    constexpr auto kernel = token_down<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped>;
    const std::size_t shared = static_cast<std::size_t>(a.top_k) * staged_stride(static_cast<int>(down.columns)) * 2;
    if (const int e = allow_shared(kernel, shared)) return e;
    const unsigned tiles = ceil_div(down.rows, kDotRows), wanted = kMostBlocks / a.rows;
    return launch(kernel, dim3(tiles < wanted ? tiles : wanted, a.rows), kDotWarps * 32, shared, stream, pairs, h, h_stride, down, a.out);
  });
}

}  // namespace ktc::gpu
