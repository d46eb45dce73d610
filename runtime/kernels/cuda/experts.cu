// experts: few tokens pair by pair (experts_few.cu); many tokens sorted by matrix, in tiles.
#include "runtime/kernels/cuda/experts_few.h"
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/pair_filter.cuh"
#include "runtime/kernels/cuda/products.cuh"

namespace ktc::gpu {
namespace {

// ------------------------------------------------------------------------------------------------------------ many tokens

constexpr int kSortThreads = 1024, kSortAtOnce = 8;
constexpr unsigned kCombineThreads = 256;  // four columns each
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
  for (std::uint32_t p0 = threadIdx.x; p0 < n; p0 += kSortThreads * kSortAtOnce) {
    int m[kSortAtOnce];  // first all loads, which do not wait for each other
#pragma unroll
    for (int i = 0; i < kSortAtOnce; ++i) {
      const std::uint32_t p = p0 + i * kSortThreads;
      m[i] = p < n ? matrix_of_pair(pairs, first_token + p / pairs.top_k, p % pairs.top_k) : -1;
    }
#pragma unroll
    for (int i = 0; i < kSortAtOnce; ++i) {
      if (p0 + i * kSortThreads < n) matrix[p0 + i * kSortThreads] = m[i];
      if (m[i] >= 0) atomicAdd(&counts[m[i]], 1u);
    }
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
  for (std::uint32_t p0 = threadIdx.x; p0 < n; p0 += kSortThreads * kSortAtOnce) {
    int m[kSortAtOnce];
#pragma unroll
    for (int i = 0; i < kSortAtOnce; ++i) m[i] = p0 + i * kSortThreads < n ? matrix[p0 + i * kSortThreads] : -1;
#pragma unroll
    for (int i = 0; i < kSortAtOnce; ++i) {
      if (m[i] < 0) continue;
      const std::uint32_t p = p0 + i * kSortThreads, at = atomicAdd(&next[m[i]], 1u);
      sources[at] = p / pairs.top_k;
      targets[at] = p;
    }
  }
}

// Columns [first_column, first_column + columns) of out[token] = sum over its pairs, in the order of its ids, of weight * down[pair].
__global__ void __launch_bounds__(kCombineThreads)
    combine(Pairs pairs, std::uint32_t first_token, const std::int32_t* matrix, const float* down, Matrix out, std::uint32_t first_column,
            std::uint32_t columns) {
  __shared__ float factors[kMostTopK];
  __shared__ bool own[kMostTopK];
  wait_for_inputs();
  const std::uint32_t token = blockIdx.x;
  if (threadIdx.x < pairs.top_k) {
    factors[threadIdx.x] = pairs.weights.data[(first_token + token) * pairs.weights.stride + threadIdx.x];
    own[threadIdx.x] = matrix[token * pairs.top_k + threadIdx.x] >= 0;
  }
  __syncthreads();
  const std::uint32_t c = (blockIdx.y * kCombineThreads + threadIdx.x) * 4;
  if (c >= columns) return;
  float* to = out.data + (first_token + token) * out.stride + first_column + c;
  const float* from = down + static_cast<std::uint64_t>(token) * pairs.top_k * columns + c;
  if (c + 4 <= columns && columns % 4 == 0 && (reinterpret_cast<std::uintptr_t>(to) & 15) == 0) {
    float4 f = pairs.accumulate ? *reinterpret_cast<const float4*>(to) : make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (std::uint32_t j = 0; j < pairs.top_k; ++j) {
      if (!own[j]) continue;
      const float4 part = *reinterpret_cast<const float4*>(from + static_cast<std::uint64_t>(j) * columns);
      f = make_float4(fmaf(factors[j], part.x, f.x), fmaf(factors[j], part.y, f.y), fmaf(factors[j], part.z, f.z), fmaf(factors[j], part.w, f.w));
    }
    *reinterpret_cast<float4*>(to) = f;
    return;
  }
  for (std::uint32_t e = 0; e < 4 && c + e < columns; ++e) {
    float f = pairs.accumulate ? to[e] : 0;
    for (std::uint32_t j = 0; j < pairs.top_k; ++j)
      if (own[j]) f = fmaf(factors[j], from[static_cast<std::uint64_t>(j) * columns + e], f);
    to[e] = f;
  }
}

int many(const ExpertsArgs& a, const Pairs& pairs, void* stream) {
  const Rows gate_up = rows_of(a.gate_up), down = rows_of(a.down);
  const std::uint32_t intermediate = gate_up.rows / 2, hidden = down.rows;
  const std::uint32_t at_once = static_cast<std::uint32_t>(gpu_experts_tokens(a.rows, a.top_k, intermediate));
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
  const auto columns = static_cast<std::uint32_t>(gpu_experts_columns(static_cast<std::uint64_t>(at_once) * a.top_k, hidden));
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
    g.out = products;
    g.targets = targets;
    for (std::uint32_t column = 0; column < hidden; column += columns) {
      g.first_n = column;
      g.n = hidden - column < columns ? hidden - column : columns;
      g.out_stride = g.n;
      if (const int error = launch_tile_gemm(a.down.format, g, most, stream)) return error;
      if (const int error = launch(combine, dim3(tokens, ceil_div(g.n, 4 * kCombineThreads)), kCombineThreads, 0, stream, pairs, first, matrix,
                                   products, a.out, column, g.n))
        return error;
    }
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
  const auto fitting = static_cast<std::uint32_t>(work.h / (a.top_k * h_stride * 4));
  const std::uint32_t step = fitting < 2048 ? fitting : 2048;  // pairs are the second dimension of a grid, at most 65535
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
  return a.rows <= kGpuFewRows * 2 ? experts_few(a, pairs, stream) : many(a, pairs, stream);
}

}  // namespace ktc::gpu
