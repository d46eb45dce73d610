// Queries prepared, keys and values appended to the cache.
#include "runtime/kernels/cuda/head_product.cuh"
#include "runtime/kernels/cuda/paged.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kMostDim = 1024;
constexpr unsigned kWarps = 4;

// One warp per token and head; key heads come behind query heads and take their value along.
template <typename T>
__global__ void __launch_bounds__(kWarps * kWarp) gqa_append_kernel(GqaAppendArgs a) {
  wait_for_inputs();
  extern __shared__ float heads[];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, dim = a.head_dim;
  const unsigned t = blockIdx.y, part = blockIdx.x * kWarps + warp;
  if (part >= a.heads + a.kv_heads) return;
  float* head = heads + warp * dim;
  const bool is_key = part >= a.heads;
  const unsigned h = is_key ? part - a.heads : part;
  const float* in = row_at(is_key ? a.k : a.q, t) + std::size_t{h} * dim;
  const float* norm = is_key ? a.k_norm : a.q_norm;
  float squares = 0;
  for (unsigned i = lane; i < dim; i += kWarp) {
    const float value = in[i];
    head[i] = value;
    squares += value * value;
  }
  if (norm != nullptr) {
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + a.norm_eps);
    for (unsigned i = lane; i < dim; i += kWarp) head[i] = head[i] * factor * norm[i];
  }
  __syncwarp();
  if (!is_key) {
    float* out = row_at(a.query, t) + std::size_t{h} * dim;
    for (unsigned i = lane; i < dim; i += kWarp) out[i] = turned(head, a.rope, t, i);
    return;
  }
  const std::int32_t* pages = pages_of(a.batch, t);
  const auto position = static_cast<unsigned>(a.batch.positions[t]);
  T* key = slot_of<T>(a.cache, a.cache.a, pages, h, position);
  T* value = slot_of<T>(a.cache, a.cache.b, pages, h, position);
  const float* v = row_at(a.v, t) + std::size_t{h} * dim;
  for (unsigned i = lane; i < dim; i += kWarp) {
    key[i] = narrow<T>(turned(head, a.rope, t, i));
    value[i] = narrow<T>(v[i]);
  }
}

// Everything but W_UK: rope of the queries' last part, and the cache.
template <typename T>
__global__ void __launch_bounds__(128) mla_append_kernel(MlaAppendArgs a) {
  wait_for_inputs();
  const unsigned t = blockIdx.y;
  if (blockIdx.x == 0) {
    const std::int32_t* pages = pages_of(a.batch, t);
    const auto position = static_cast<unsigned>(a.batch.positions[t]);
    T* latent = slot_of<T>(a.cache, a.cache.a, pages, 0, position);
    T* rope = slot_of<T>(a.cache, a.cache.b, pages, 0, position);
    for (unsigned i = threadIdx.x; i < a.latent_dim; i += blockDim.x) latent[i] = narrow<T>(row_at(a.latent, t)[i]);
    for (unsigned i = threadIdx.x; i < a.rope_dim; i += blockDim.x) rope[i] = narrow<T>(turned(row_at(a.k_rope, t), a.rope, t, i));
    return;
  }
  const unsigned i = (blockIdx.x - 1) * blockDim.x + threadIdx.x, h = i / a.rope_dim, c = i % a.rope_dim;
  if (h >= a.heads) return;
  const float* head = row_at(a.q, t) + std::size_t{h} * (a.nope_dim + a.rope_dim) + a.nope_dim;
  row_at(a.query, t)[std::size_t{h} * (a.latent_dim + a.rope_dim) + a.latent_dim + c] = turned(head, a.rope, t, c);
}

}  // namespace

int gqa_append_cuda(const GqaAppendArgs& a, void* stream) {
  if (a.batch.tokens == 0) return 0;
  if (a.head_dim > kMostDim) return cudaErrorInvalidValue;
  const dim3 grid(ceil_div(a.heads + a.kv_heads, kWarps), a.batch.tokens);
  const std::size_t shared = kWarps * a.head_dim * sizeof(float);
  if (a.cache.format == Format::bf16)
    launch(gqa_append_kernel<__nv_bfloat16>, grid, kWarps * kWarp, shared, stream, a);
  else
    launch(gqa_append_kernel<float>, grid, kWarps * kWarp, shared, stream, a);
  return launched();
}

int mla_append_cuda(const MlaAppendArgs& a, void* stream) {
  if (a.batch.tokens == 0) return 0;
  const dim3 grid(1 + ceil_div(a.heads * a.rope_dim, 128u), a.batch.tokens);
  if (a.cache.format == Format::bf16)
    launch(mla_append_kernel<__nv_bfloat16>, grid, 128, 0, stream, a);
  else
    launch(mla_append_kernel<float>, grid, 128, 0, stream, a);
  if (const int error = launched()) return error;
  HeadProduct product = {};
  product.x = a.q.data;
  product.x_stride = a.q.stride;
  product.x_head = a.nope_dim + a.rope_dim;
  product.w = a.w_uk;
  product.out = a.query.data;
  product.out_stride = a.query.stride;
  product.out_head = a.latent_dim + a.rope_dim;
  product.tokens = a.batch.tokens;
  product.rounded = a.activations == Format::bf16;
  return head_product(product, stream);
}

}  // namespace ktc::gpu
