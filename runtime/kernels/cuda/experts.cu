// experts: few tokens pair by pair, as fast as the chosen matrices can be read; many tokens sorted by matrix, in tiles.
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/pair_filter.cuh"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

constexpr std::uint32_t kMostTopK = 32;

// ------------------------------------------------------------------------------------------------------------ few tokens

// grid: (blocks that share the tiles of a pair, pairs). h [pair][h_stride].
template <Format F, int B, bool Grouped>
__global__ void __launch_bounds__(kDotWarps * 32) pair_gate_up(Pairs pairs, Matrix x, Rows w, float* h, std::uint64_t h_stride) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float sums[kDotWarps * kDotRows * kDotTokens];
  wait_for_inputs();
  const std::uint32_t pair = blockIdx.y, token = pair / pairs.top_k;
  const int m = matrix_of_pair(pairs, token, pair % pairs.top_k);
  if (m < 0) return;
  auto* xs = reinterpret_cast<__nv_bfloat16*>(shared);
  const int stride = staged_stride(static_cast<int>(w.columns));
  const std::byte* matrix = w.matrix(m);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int columns = step_columns<F, B>(), steps = (static_cast<int>(w.columns) + columns - 1) / columns;
  const std::uint32_t features = w.rows / 2, tiles = (features + 7) / 8, soon = min(blockIdx.x * 8 + (lane >> 2), features - 1);
  prefetch_tile<B>(place_of<F>(w, matrix, soon).codes, place_of<F>(w, matrix, features + soon).codes, warp, kDotWarps, steps);
  stage<F>([&](int) { return x.data + token * x.stride; }, 1, static_cast<int>(w.columns), xs, stride);
  __syncthreads();
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint32_t feature = min(tile * 8 + (lane >> 2), features - 1);
    const RowPlace gate = place_of<F>(w, matrix, feature), up = place_of<F>(w, matrix, features + feature);
    float c[4] = {0, 0, 0, 0};
    dot_tile<F, B, 4, Grouped>(gate.codes, up.codes, gate.scales, up.scales, static_cast<int>(w.group), warp, kDotWarps, steps, xs,
                               stride, 1, c);
    put_sums(sums, warp, c);
    __syncthreads();
    if (threadIdx.x < 8 && tile * 8 + threadIdx.x < features)
      h[pair * h_stride + tile * 8 + threadIdx.x] = silu(total(sums, threadIdx.x, 0)) * total(sums, threadIdx.x + 8, 0);
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
  wait_for_inputs();
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
  const int shares = count == 0 || count >= kDotWarps ? 1 : kDotWarps / count;
  if (warp < count * shares) {
    const std::byte* matrix = w.matrix(matrices[warp % count]);
    const std::uint32_t soon = blockIdx.x * kDotRows + (lane >> 2);
    prefetch_tile<B>(place_of<F>(w, matrix, min(soon, w.rows - 1)).codes, place_of<F>(w, matrix, min(soon + 8, w.rows - 1)).codes,
                     warp / count, shares, steps);
  }
  stage<F>([&](int i) { return h + (token * pairs.top_k + own[i]) * h_stride; }, count, static_cast<int>(w.columns), hs, stride);
  __syncthreads();
  const std::uint32_t tiles = (w.rows + kDotRows - 1) / kDotRows;
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint32_t row = tile * kDotRows + (lane >> 2);
    for (int job = warp; job < count * shares; job += kDotWarps) {
      const int i = job % count, share = job / count;
      const std::byte* matrix = w.matrix(matrices[i]);
      const RowPlace lo = place_of<F>(w, matrix, min(row, w.rows - 1)), hi = place_of<F>(w, matrix, min(row + 8, w.rows - 1));
      float c[4] = {0, 0, 0, 0};
      dot_tile<F, B, 4, Grouped>(lo.codes, hi.codes, lo.scales, hi.scales, static_cast<int>(w.group), share, shares, steps,
                                 hs + i * stride, stride, 1, c);
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

int few(const ExpertsArgs& a, const Pairs& pairs, void* stream) {
  const Rows gate_up = rows_of(a.gate_up), down = rows_of(a.down);
  const std::uint32_t intermediate = gate_up.rows / 2, most = a.rows * a.top_k;
  const auto work = gpu_experts_workspace(a.activations, a.rows, a.top_k, gate_up.columns, intermediate, a.gate_up.batch);
  const std::uint64_t h_stride = (intermediate + 63) / 64 * 64;
  float* h = reinterpret_cast<float*>(a.scratch.data + work.x + work.matrix + work.sorted + work.tiles + work.tile_count);
  if (const int error = for_group(a.gate_up.format, a.gate_up.group, [&](auto f, auto g) -> int {
        constexpr auto kernel = pair_gate_up<decltype(f)::value, decltype(g)::bytes, decltype(g)::grouped>;
        const std::size_t shared = static_cast<std::size_t>(staged_stride(static_cast<int>(gate_up.columns))) * 2;
        if (const int e = allow_shared(kernel, shared)) return e;
        const unsigned tiles = ceil_div(intermediate, 8), wanted = kMostBlocks / most < 1 ? 1 : kMostBlocks / most;
        return launch(kernel, dim3(tiles < wanted ? tiles : wanted, most), kDotWarps * 32, shared, stream, pairs, a.x, gate_up, h, h_stride);
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

// ------------------------------------------------------------------------------------------------------------ many tokens

constexpr int kSortThreads = 1024;
constexpr std::uint32_t kMostMatrices = 4096;

// Exclusive sums of values[0, n), n <= kMostMatrices, in shared memory; returns the total. All threads of the block call it.
__device__ std::uint32_t exclusive_sums(std::uint32_t* values, std::uint32_t n) {
  __shared__ std::uint32_t partial[kSortThreads];
  const std::uint32_t each = (n + kSortThreads - 1) / kSortThreads, begin = threadIdx.x * each;
  std::uint32_t sum = 0;
  for (std::uint32_t i = begin; i < min(begin + each, n); ++i) sum += values[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 1; step < kSortThreads; step *= 2) {
    const std::uint32_t before = static_cast<int>(threadIdx.x) >= step ? partial[threadIdx.x - step] : 0;
    __syncthreads();
    partial[threadIdx.x] += before;
    __syncthreads();
  }
  std::uint32_t at = partial[threadIdx.x] - sum;
  for (std::uint32_t i = begin; i < min(begin + each, n); ++i) {
    const std::uint32_t value = values[i];
    values[i] = at;
    at += value;
  }
  const std::uint32_t all = partial[kSortThreads - 1];
  __syncthreads();
  return all;
}

// One block: the matrix of every pair, pairs sorted by matrix (sources: token, targets: pair), tiles of at most 128 of them.
// Where a pair lands among those of its matrix is open; no result depends on it.
__global__ void __launch_bounds__(kSortThreads)
    sort_pairs(Pairs pairs, std::uint32_t first_token, std::uint32_t tokens, std::int32_t* matrix, std::uint32_t* sources,
               std::uint32_t* targets, Tile* tiles, std::uint32_t* tile_count) {
  __shared__ std::uint32_t counts[kMostMatrices], next[kMostMatrices];
  wait_for_inputs();
  const std::uint32_t n = tokens * pairs.top_k;
  for (std::uint32_t m = threadIdx.x; m < pairs.matrices; m += kSortThreads) counts[m] = 0;
  __syncthreads();
  for (std::uint32_t p = threadIdx.x; p < n; p += kSortThreads) {
    const int m = matrix_of_pair(pairs, first_token + p / pairs.top_k, p % pairs.top_k);
    matrix[p] = m;
    if (m >= 0) atomicAdd(&counts[m], 1u);
  }
  __syncthreads();
  for (std::uint32_t m = threadIdx.x; m < pairs.matrices; m += kSortThreads) next[m] = counts[m];
  __syncthreads();
  exclusive_sums(next, pairs.matrices);
  // first tile of each matrix, kept in counts after its use
  std::uint32_t firsts[kMostMatrices / kSortThreads], sizes[kMostMatrices / kSortThreads];
  for (std::uint32_t m = threadIdx.x, i = 0; m < pairs.matrices; m += kSortThreads, ++i) {
    firsts[i] = next[m];
    sizes[i] = counts[m];
    counts[m] = (counts[m] + kTileM - 1) / kTileM;
  }
  __syncthreads();
  const std::uint32_t all = exclusive_sums(counts, pairs.matrices);
  for (std::uint32_t m = threadIdx.x, i = 0; m < pairs.matrices; m += kSortThreads, ++i)
    for (std::uint32_t t = 0; t * kTileM < sizes[i]; ++t)
      tiles[counts[m] + t] = {m, firsts[i] + t * kTileM, min(sizes[i] - t * kTileM, static_cast<std::uint32_t>(kTileM))};
  if (threadIdx.x == 0) *tile_count = all;
  for (std::uint32_t p = threadIdx.x; p < n; p += kSortThreads) {
    if (matrix[p] < 0) continue;
    const std::uint32_t at = atomicAdd(&next[matrix[p]], 1u);
    sources[at] = p / pairs.top_k;
    targets[at] = p;
  }
}

// out[token] = sum over its pairs, in the order of its ids, of weight * down[pair].
__global__ void combine(Pairs pairs, std::uint32_t first_token, const std::int32_t* matrix, const float* down, Matrix out) {
  wait_for_inputs();
  const std::uint32_t token = blockIdx.x;
  const float* weights = pairs.weights.data + (first_token + token) * pairs.weights.stride;
  for (std::uint32_t c = blockIdx.y * blockDim.x + threadIdx.x; c < out.columns; c += gridDim.y * blockDim.x) {
    float& sum = out.data[(first_token + token) * out.stride + c];
    float f = pairs.accumulate ? sum : 0;
    for (std::uint32_t j = 0; j < pairs.top_k; ++j) {
      const std::uint64_t p = token * pairs.top_k + j;
      if (matrix[p] >= 0) f = fmaf(weights[j], down[p * out.columns + c], f);
    }
    sum = f;
  }
}

int many(const ExpertsArgs& a, const Pairs& pairs, void* stream) {
  const Rows gate_up = rows_of(a.gate_up), down = rows_of(a.down);
  const std::uint32_t intermediate = gate_up.rows / 2, hidden = down.rows;
  const std::uint32_t at_once = static_cast<std::uint32_t>(gpu_experts_tokens(a.rows, a.top_k, gate_up.columns));
  const auto work = gpu_experts_workspace(a.activations, a.rows, a.top_k, gate_up.columns, intermediate, a.gate_up.batch);
  std::byte* at = a.scratch.data;
  const auto area = [&at](std::uint64_t bytes) { return (at += bytes) - bytes; };
  auto* x = reinterpret_cast<__nv_bfloat16*>(area(work.x));
  auto* matrix = reinterpret_cast<std::int32_t*>(area(work.matrix));
  auto* sources = reinterpret_cast<std::uint32_t*>(area(work.sorted));
  auto* tiles = reinterpret_cast<Tile*>(area(work.tiles));
  auto* tile_count = reinterpret_cast<std::uint32_t*>(area(work.tile_count));
  auto* h = reinterpret_cast<__nv_bfloat16*>(area(work.h));
  auto* products = reinterpret_cast<float*>(area(work.down));
  const std::uint64_t x_stride = (gate_up.columns + 63) / 64 * 64, h_stride = (intermediate + 63) / 64 * 64;
  if (const int error = round_rows(a.x, a.rows, x, x_stride, stream)) return error;
  for (std::uint32_t first = 0; first < a.rows; first += at_once) {
    const std::uint32_t tokens = a.rows - first < at_once ? a.rows - first : at_once;
    std::uint32_t* targets = sources + static_cast<std::uint64_t>(at_once) * a.top_k;
    if (const int error = launch(sort_pairs, dim3(1), kSortThreads, 0, stream, pairs, first, tokens, matrix, sources, targets, tiles, tile_count))
      return error;
    const std::uint32_t all = tokens * a.top_k;
    const std::uint32_t most = all / kTileM + (a.gate_up.batch < all ? a.gate_up.batch : all);
    GemmArgs g = gemm_args(x + first * x_stride, x_stride, a.gate_up);
    g.sources = sources;
    g.tiles = tiles;
    g.tile_count = tile_count;
    g.paired = true;
    g.n = intermediate;
    g.h = h;
    g.h_stride = h_stride;
    if (const int error = launch_tile_gemm(a.gate_up.format, g, most, stream)) return error;
    g = gemm_args(h, h_stride, a.down);
    g.tiles = tiles;
    g.tile_count = tile_count;
    g.n = hidden;
    g.out = products;
    g.out_stride = hidden;
    g.targets = targets;
    if (const int error = launch_tile_gemm(a.down.format, g, most, stream)) return error;
    if (const int error = launch(combine, dim3(tokens, ceil_div(hidden, 1024)), 256, 0, stream, pairs, first, matrix, products, a.out))
      return error;
  }
  return 0;
}

// ------------------------------------------------------------------------------------------------- f32 activations or weights

template <Format F>
__global__ void slow_gate_up(Pairs pairs, Matrix x, Rows w, float* h, std::uint64_t h_stride, std::uint32_t first, bool rounded) {
  wait_for_inputs();
  const std::uint32_t pair = blockIdx.y, token = first + pair / pairs.top_k, lane = threadIdx.x & 31;
  const std::uint32_t feature = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int m = matrix_of_pair(pairs, token, pair % pairs.top_k);
  if (m < 0 || feature >= w.rows / 2) return;
  float gate = 0, up = 0;
  for (std::uint32_t k = lane; k < w.columns; k += 32) {
    float v = x.data[token * x.stride + k];
    if (rounded) v = __bfloat162float(__float2bfloat16_rn(v));
    gate = fmaf(v, value_at<F>(w, w.matrix(m), feature, k), gate);
    up = fmaf(v, value_at<F>(w, w.matrix(m), w.rows / 2 + feature, k), up);
  }
  for (int o = 16; o > 0; o /= 2) {
    gate += __shfl_xor_sync(0xffffffffu, gate, o);
    up += __shfl_xor_sync(0xffffffffu, up, o);
  }
  if (lane != 0) return;
  const float f = gate / (1.0f + expf(-gate)) * up;
  h[pair * h_stride + feature] = rounded ? __bfloat162float(__float2bfloat16_rn(f)) : f;
}

template <Format F>
__global__ void slow_down(Pairs pairs, const float* h, std::uint64_t h_stride, Rows w, Matrix out, std::uint32_t first) {
  wait_for_inputs();
  const std::uint32_t token = first + blockIdx.y, lane = threadIdx.x & 31;
  const std::uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= w.rows) return;
  float f = pairs.accumulate ? out.data[token * out.stride + row] : 0;
  for (std::uint32_t j = 0; j < pairs.top_k; ++j) {
    const int m = matrix_of_pair(pairs, token, j);
    if (m < 0) continue;
    float part = 0;
    for (std::uint32_t k = lane; k < w.columns; k += 32)
      part = fmaf(h[(blockIdx.y * pairs.top_k + j) * h_stride + k], value_at<F>(w, w.matrix(m), row, k), part);
    for (int o = 16; o > 0; o /= 2) part += __shfl_xor_sync(0xffffffffu, part, o);
    f = fmaf(pairs.weights.data[token * pairs.weights.stride + j], part, f);
  }
  if (lane == 0) out.data[token * out.stride + row] = f;
}

template <Format F>
int slow(const ExpertsArgs& a, const Pairs& pairs, void* stream) {
  const Rows gate_up = rows_of(a.gate_up), down = rows_of(a.down);
  const std::uint32_t intermediate = gate_up.rows / 2;
  const auto work = gpu_experts_workspace(a.activations, a.rows, a.top_k, gate_up.columns, intermediate, a.gate_up.batch);
  const std::uint64_t h_stride = (intermediate + 63) / 64 * 64;
  float* h = reinterpret_cast<float*>(a.scratch.data + work.x + work.matrix + work.sorted + work.tiles + work.tile_count);
  const std::uint32_t at_once = static_cast<std::uint32_t>(gpu_experts_tokens(a.rows, a.top_k, gate_up.columns));
  const std::uint32_t step = at_once < 4096 ? at_once : 4096;  // pairs are the second dimension of a grid
  for (std::uint32_t first = 0; first < a.rows; first += step) {
    const std::uint32_t tokens = a.rows - first < step ? a.rows - first : step;
    if (const int error = launch(slow_gate_up<F>, dim3(ceil_div(intermediate, 8), tokens * a.top_k), 256, 0, stream, pairs, a.x, gate_up, h,
                                 h_stride, first, a.activations == Format::bf16))
      return error;
    if (const int error = launch(slow_down<F>, dim3(ceil_div(down.rows, 8), tokens), 256, 0, stream, pairs, h, h_stride, down, a.out, first))
      return error;
  }
  return 0;
}

}  // namespace

int experts_cuda(const ExpertsArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  if (a.top_k > kMostTopK || a.gate_up.batch > kMostMatrices) return cudaErrorNotSupported;
  const Pairs pairs = {a.ids, a.weights, a.filter, a.top_k, a.experts, a.gate_up.batch, a.first, a.accumulate};
  if (a.gate_up.format == Format::f32) return slow<Format::f32>(a, pairs, stream);
  if (a.activations == Format::f32)
    return for_format(a.gate_up.format, [&](auto f) { return slow<decltype(f)::value>(a, pairs, stream); });
  return a.rows <= kGpuFewRows * 2 ? few(a, pairs, stream) : many(a, pairs, stream);
}

}  // namespace ktc::gpu
