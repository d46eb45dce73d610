// Attention the plain way: one block per token and head, one warp per key, online softmax. For caches in f32, for shapes that the
// tensor-core kernels do not take, and as what they are tested against.
#pragma once

#include "runtime/kernels/cuda/paged.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kPlainWarps = 4;
constexpr unsigned kMostPlainWidth = 1024;

// s_j = scale * (q[0 .. width_a) . a_j + q[width_a .. width_a + width_b) . b_j), out = softmax(s) values. Values are part a (MLA,
// which has one key for all heads) or part b (GQA, width_b 0).
struct PlainAttention {
  Matrix query, out;             // of all heads, one behind the other
  Cache cache;
  Batch batch;
  unsigned heads, group;         // heads that share a key
  unsigned width_a, width_b, value_width;
  bool value_is_a;
  float scale;
};

template <typename T, unsigned kValues>  // kValues * 32 >= value_width
__global__ void __launch_bounds__(kPlainWarps * kWarp) attend_plain_kernel(PlainAttention p) {
  wait_for_inputs();
  __shared__ float q[kMostPlainWidth + 128], merged[kPlainWarps][kMostPlainWidth], tops[kPlainWarps], sums[kPlainWarps];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, h = blockIdx.x, t = blockIdx.y;
  const unsigned width = p.width_a + p.width_b, key_head = h / p.group;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) q[i] = row_at(p.query, t)[std::size_t{h} * width + i];
  __syncthreads();
  const std::int32_t* pages = pages_of(p.batch, t);
  const unsigned context = static_cast<unsigned>(p.batch.positions[t]) + 1;
  float top = -INFINITY, sum = 0, out[kValues] = {};
  for (unsigned j = warp; j < context; j += kPlainWarps) {
    const T* a = slot_of<T>(p.cache, p.cache.a, pages, key_head, j);
    const T* b = slot_of<T>(p.cache, p.cache.b, pages, key_head, j);
    float score = 0;
    for (unsigned i = lane; i < p.width_a; i += kWarp) score += q[i] * widen(a[i]);
    for (unsigned i = lane; i < p.width_b; i += kWarp) score += q[p.width_a + i] * widen(b[i]);
    score = warp_sum(score) * p.scale;
    const float new_top = fmaxf(top, score), shrink = __expf(top - new_top), weight = __expf(score - new_top);
    top = new_top;
    sum = sum * shrink + weight;
    const T* value = p.value_is_a ? a : b;
#pragma unroll
    for (unsigned i = 0; i < kValues; ++i) {
      const unsigned c = i * kWarp + lane;
      out[i] = out[i] * shrink + (c < p.value_width ? weight * widen(value[c]) : 0.0f);
    }
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
#pragma unroll
  for (unsigned i = 0; i < kValues; ++i)
    if (i * kWarp + lane < p.value_width) merged[warp][i * kWarp + lane] = out[i];
  __syncthreads();
  float most = tops[0], total = 0, factor[kPlainWarps];
  for (unsigned w = 1; w < kPlainWarps; ++w) most = fmaxf(most, tops[w]);
  for (unsigned w = 0; w < kPlainWarps; ++w) {
    factor[w] = tops[w] == -INFINITY ? 0.0f : __expf(tops[w] - most);
    total += sums[w] * factor[w];
  }
  for (unsigned c = threadIdx.x; c < p.value_width; c += blockDim.x) {
    float value = 0;
    for (unsigned w = 0; w < kPlainWarps; ++w) value += factor[w] == 0.0f ? 0.0f : merged[w][c] * factor[w];
    row_at(p.out, t)[std::size_t{h} * p.value_width + c] = value / total;
  }
}

template <typename T>
int attend_plain_as(const PlainAttention& p, void* stream) {
  const dim3 grid(p.heads, p.batch.tokens);
  const auto run = [&](auto kernel) {
    launch(kernel, grid, kPlainWarps * kWarp, 0, stream, p);
    return launched();
  };
  if (p.value_width <= 128) return run(attend_plain_kernel<T, 4>);
  if (p.value_width <= 512) return run(attend_plain_kernel<T, 16>);
  return run(attend_plain_kernel<T, 32>);
}
inline int attend_plain(const PlainAttention& p, void* stream) {
  if (p.batch.tokens == 0) return 0;
  if (p.width_a + p.width_b > kMostPlainWidth + 128 || p.value_width > kMostPlainWidth) return cudaErrorInvalidValue;
  return p.cache.format == Format::bf16 ? attend_plain_as<__nv_bfloat16>(p, stream) : attend_plain_as<float>(p, stream);
}

}  // namespace
}  // namespace ktc::gpu
