// Operations on rows: one block (or a few) per row.
#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kNormThreads = 1024;
constexpr unsigned kKeep = 4;  // float4 that a thread keeps between the two passes of a norm

__global__ void rope_table_kernel(RopeTableArgs a) {
  wait_for_inputs();
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
  if (i >= a.half) return;
  double sin, cos;
  sincos(a.positions[t] * double{a.inv_freq[i]}, &sin, &cos);
  a.cos[std::size_t{t} * a.half + i] = static_cast<float>(cos * a.factor);
  a.sin[std::size_t{t} * a.half + i] = static_cast<float>(sin * a.factor);
}

template <Format kFormat>
__global__ void embed_kernel(EmbedArgs a) {
  wait_for_inputs();
  const unsigned r = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (column >= a.out.columns) return;
  const std::int32_t id = a.feed != nullptr && a.feed[r] >= 0 ? a.fed[a.feed[r]] : *row_at(a.ids, r);
  float values[8] = {};
  if (id >= 0 && static_cast<std::uint32_t>(id) < a.w.rows) decode8<kFormat>(a.w, a.w.data, static_cast<std::size_t>(id), column, values);
  float* out = row_at(a.out, r) + column;
  for (unsigned i = 0; i < 8 && column + i < a.out.columns; ++i) out[i] = values[i];
}

__global__ void add_kernel(AddArgs a) {
  wait_for_inputs();
  const unsigned c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (c >= a.out.columns) return;
  float sum = row_at(a.in[0], r)[c];
  for (unsigned i = 1; i < a.count; ++i) sum += row_at(a.in[i], r)[c];
  row_at(a.out, r)[c] = sum;
}
__global__ void add4_kernel(AddArgs a) {
  wait_for_inputs();
  const unsigned c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (c >= a.out.columns / 4) return;
  float4 sum = reinterpret_cast<const float4*>(row_at(a.in[0], r))[c];
  for (unsigned i = 1; i < a.count; ++i) {
    const float4 v = reinterpret_cast<const float4*>(row_at(a.in[i], r))[c];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  reinterpret_cast<float4*>(row_at(a.out, r))[c] = sum;
}

// sum (where kSum) = the inputs added from left to right; out = its norm. count is 1 and sum unused for a plain norm.
template <bool kSum>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(AddNormArgs a) {
  wait_for_inputs();
  __shared__ float shared[kWarp];
  const unsigned r = blockIdx.x, columns = a.out.columns;
  const auto value = [&](unsigned c) {
    float v = row_at(a.in[0], r)[c];
    if (kSum)
      for (unsigned i = 1; i < a.count; ++i) v += row_at(a.in[i], r)[c];
    return v;
  };
  float squares = 0;
  for (unsigned c = threadIdx.x; c < columns; c += blockDim.x) {
    const float v = value(c);
    if (kSum) row_at(a.sum, r)[c] = v;
    squares += v * v;
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(columns) + a.eps);
  // each thread reads what it wrote itself, so a sum that is one of the inputs does no harm
  const float* x = kSum ? row_at(a.sum, r) : row_at(a.in[0], r);
  for (unsigned c = threadIdx.x; c < columns; c += blockDim.x) row_at(a.out, r)[c] = x[c] * factor * a.w[c];
}
template <bool kSum>
__global__ void __launch_bounds__(kNormThreads) norm4_kernel(AddNormArgs a) {
  wait_for_inputs();
  __shared__ float shared[kWarp];
  const unsigned r = blockIdx.x, vectors = a.out.columns / 4;
  float4 keep[kKeep];
  float squares = 0;
#pragma unroll
  for (unsigned k = 0; k < kKeep; ++k) {
    const unsigned c = threadIdx.x + k * blockDim.x;
    if (c >= vectors) break;
    float4 v = reinterpret_cast<const float4*>(row_at(a.in[0], r))[c];
    if (kSum) {
      for (unsigned i = 1; i < a.count; ++i) {
        const float4 other = reinterpret_cast<const float4*>(row_at(a.in[i], r))[c];
        v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
      }
      reinterpret_cast<float4*>(row_at(a.sum, r))[c] = v;
    }
    keep[k] = v;
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(a.out.columns) + a.eps);
#pragma unroll
  for (unsigned k = 0; k < kKeep; ++k) {
    const unsigned c = threadIdx.x + k * blockDim.x;
    if (c >= vectors) break;
    const float4 w = reinterpret_cast<const float4*>(a.w)[c], v = keep[k];
    reinterpret_cast<float4*>(row_at(a.out, r))[c] =
        make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
  }
}

template <bool kSum>
int norm(const AddNormArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  bool vectors = vector_rows(a.out) && aligned16(a.w, 0) && a.out.columns / 4 <= kKeep * kNormThreads;
  for (unsigned i = 0; i < a.count; ++i) vectors = vectors && vector_rows(a.in[i]);
  if (kSum) vectors = vectors && vector_rows(a.sum);
  const unsigned items = vectors ? a.out.columns / 4 : a.out.columns;
  const unsigned wanted = ceil_div(items, kWarp) * kWarp, threads = wanted < kNormThreads ? wanted : kNormThreads;
  if (vectors)
    launch(norm4_kernel<kSum>, a.rows, threads, 0, stream, a);
  else
    launch(norm_kernel<kSum>, a.rows, threads, 0, stream, a);
  return launched();
}

__global__ void select_rows_kernel(SelectRowsArgs a) {
  wait_for_inputs();
  const unsigned c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (c < a.out.columns) row_at(a.out, r)[c] = row_at(a.x, static_cast<std::size_t>(*row_at(a.output_rows, r)))[c];
}

}  // namespace

int rope_table_cuda(const RopeTableArgs& a, void* stream) {
  if (a.tokens == 0 || a.half == 0) return 0;
  launch(rope_table_kernel, dim3(ceil_div(a.half, 64u), a.tokens), 64, 0, stream, a);
  return launched();
}

int embed_cuda(const EmbedArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  const dim3 grid(ceil_div(a.out.columns, 8 * 128u), a.rows);
  const bool known = for_format(a.w.format, [&]<Format kFormat>() { launch(embed_kernel<kFormat>, grid, 128, 0, stream, a); });
  return known ? launched() : cudaErrorInvalidValue;
}

int rms_norm_cuda(const NormArgs& a, void* stream) {
  AddNormArgs args = {};
  args.in[0] = a.x;
  args.count = 1;
  args.w = a.w;
  args.eps = a.eps;
  args.out = a.out;
  args.rows = a.rows;
  return norm<false>(args, stream);
}

int add_norm_cuda(const AddNormArgs& a, void* stream) { return norm<true>(a, stream); }

int add_cuda(const AddArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  bool vectors = vector_rows(a.out);
  for (unsigned i = 0; i < a.count; ++i) vectors = vectors && vector_rows(a.in[i]);
  const unsigned items = vectors ? a.out.columns / 4 : a.out.columns;
  const dim3 grid(ceil_div(items, 256u), a.rows);
  if (vectors)
    launch(add4_kernel, grid, 256, 0, stream, a);
  else
    launch(add_kernel, grid, 256, 0, stream, a);
  return launched();
}

int select_rows_cuda(const SelectRowsArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  launch(select_rows_kernel, dim3(ceil_div(a.out.columns, 256u), a.rows), 256, 0, stream, a);
  return launched();
}

}  // namespace ktc::gpu
