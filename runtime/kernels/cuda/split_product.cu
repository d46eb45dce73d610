// A router's scores decide which experts a token takes, and MLA's queries are in f32: such products have the accuracy of f32, and are made
// by tensor cores all the same: a number of 24 bits is the exact sum of three of bf16's 8. x comes in three such parts, and so does w
// unless it is bf16; what is left out of f32 weights is below 2^-24 of a product. Tensor cores round sums a little worse than f32
// additions do, therefore they add up 32 columns only, and these sums are added by ordinary additions.
//
// A block makes 64 rows x 64 features, 64 columns at a time in two stages. Four warps have 16 rows each of the first half of these
// columns, four of the second; the halves are added last. So a row's bits depend on nothing but its values.
#include "runtime/kernels/cuda/device_common.cuh"
#include "runtime/kernels/cuda/split_product.h"
#include "runtime/kernels/cuda/weight_words.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kRows = 64, kFeatures = 64, kDepth = 64, kHalf = kDepth / 2, kSplitThreads = 256;
constexpr unsigned kStride = kDepth + 8;  // of rows in shared memory, so that what a warp reads at once lies in different banks
constexpr unsigned kXBytes = kRows * kStride * 4;
constexpr unsigned kSumStride = kFeatures + 8;

// w in a stage: as bf16, or decoded to f32.
template <Format kFormat>
constexpr bool kExact = kFormat == Format::bf16;
template <Format kFormat>
constexpr unsigned kStageBytes = kXBytes + kFeatures * kStride * (kExact<kFormat> ? 2 : 4);

__device__ inline void copy_async(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

// Two neighbours as three pairs of bf16 whose sum they are.
__device__ inline void split(float2 v, std::uint32_t (&parts)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v.x, v.y);
    parts[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    v.x -= __uint_as_float(parts[i] << 16);
    v.y -= __uint_as_float(parts[i] & 0xffff0000u);
  }
}

template <Format kFormat>
__device__ void fetch(const SplitProduct& a, unsigned row0, unsigned feature0, unsigned k0, std::byte* stage, bool vectors) {
  const float* x = a.x.data + blockIdx.z * a.x_batch;
  const std::byte* w = a.w.data + blockIdx.z * a.w.matrix_bytes;
  float* xs = reinterpret_cast<float*>(stage);
  std::byte* ws = stage + kXBytes;
#pragma unroll
  for (unsigned i = threadIdx.x; i < kRows * kDepth / 4; i += kSplitThreads) {
    const unsigned r = i / (kDepth / 4), c = i % (kDepth / 4) * 4, row = row0 + r, k = k0 + c;
    float* to = xs + r * kStride + c;
    if (vectors) {
      const bool there = row < a.rows && k < a.w.columns;
      copy_async(shared_address(to), there ? x + row * a.x.stride + k : x, there ? 16 : 0);
    } else {
      for (unsigned e = 0; e < 4; ++e) to[e] = row < a.rows && k + e < a.w.columns ? x[row * a.x.stride + k + e] : 0.0f;
    }
  }
#pragma unroll
  for (unsigned i = threadIdx.x; i < kFeatures * kDepth / 8; i += kSplitThreads) {
    const unsigned n = i / (kDepth / 8), c = i % (kDepth / 8) * 8, feature = feature0 + n, k = k0 + c;
    const bool there = feature < a.w.rows && k < a.w.columns;
    if constexpr (kExact<kFormat>) {
      const std::byte* from = w + std::size_t{feature} * a.w.row_bytes + k * 2;  // rows are padded to 64 bytes, with zeros
      copy_async(shared_address(ws + (n * kStride + c) * 2), there ? from : w, there ? 16 : 0);
    } else {
      float v[8] = {};
      if (there) decode8<kFormat>(a.w, w, feature, k, v);
      float* to = reinterpret_cast<float*>(ws) + n * kStride + c;
#pragma unroll
      for (unsigned e = 0; e < 8; ++e) to[e] = k + e < a.w.columns ? v[e] : 0.0f;
    }
  }
}

// grid: (rows / 64, features / 64, products)
template <Format kFormat>
__global__ void __launch_bounds__(kSplitThreads) split_kernel(SplitProduct a, bool vectors) {
  extern __shared__ __align__(16) std::byte shared[];
  wait_for_inputs();
  const unsigned row0 = blockIdx.x * kRows, feature0 = blockIdx.y * kFeatures;
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, half = warp / 4, g = lane / 4, t = lane % 4;
  const unsigned steps = ceil_div(a.w.columns, kDepth), first_row = warp % 4 * 16;
  const auto bring = [&](unsigned s) {
    if (s < steps) fetch<kFormat>(a, row0, feature0, s * kDepth, shared + s % 2 * kStageBytes<kFormat>, vectors);
    asm volatile("cp.async.commit_group;");
  };
  float sums[8][4] = {};
  bring(0);
  for (unsigned s = 0; s < steps; ++s) {
    bring(s + 1);
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    const std::byte* stage = shared + s % 2 * kStageBytes<kFormat>;
    const float* xs = reinterpret_cast<const float*>(stage) + (first_row + g) * kStride + half * kHalf + t * 2;
    const std::byte* ws = stage + kXBytes;
    float c[8][4] = {};
#pragma unroll
    for (unsigned k = 0; k < kHalf; k += 16) {
      std::uint32_t x[3][4];  // by part, as a fragment
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        std::uint32_t parts[3];
        split(*reinterpret_cast<const float2*>(xs + i % 2 * 8 * kStride + k + i / 2 * 8), parts);
#pragma unroll
        for (unsigned p = 0; p < 3; ++p) x[p][i] = parts[p];
      }
#pragma unroll
      for (unsigned j = 0; j < 8; ++j) {
        const unsigned at = (j * 8 + g) * kStride + half * kHalf + k + t * 2;
        if constexpr (kExact<kFormat>) {
          const auto* words = reinterpret_cast<const std::uint32_t*>(ws);
          const std::uint32_t w[2] = {words[at / 2], words[at / 2 + 4]};
#pragma unroll
          for (int p = 2; p >= 0; --p) multiply(c[j], x[p], w);
        } else {
          const float* values = reinterpret_cast<const float*>(ws) + at;
          std::uint32_t low[3], high[3];
          split(*reinterpret_cast<const float2*>(values), low);
          split(*reinterpret_cast<const float2*>(values + 8), high);
#pragma unroll
          for (int order = 2; order >= 0; --order)  // the small ones first
#pragma unroll
            for (int p = 0; p <= order; ++p) multiply(c[j], x[p], {low[order - p], high[order - p]});
        }
      }
    }
#pragma unroll
    for (unsigned j = 0; j < 8; ++j)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) sums[j][i] += c[j][i];
    __syncthreads();
  }
  asm volatile("cp.async.wait_group 0;");
  float* others = reinterpret_cast<float*>(shared);
  const auto place = [&](unsigned j, unsigned i) { return (first_row + g + i / 2 * 8) * kSumStride + j * 8 + t * 2 + i % 2; };
  if (half == 1) {
#pragma unroll
    for (unsigned j = 0; j < 8; ++j)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) others[place(j, i)] = sums[j][i];
  }
  __syncthreads();
  if (half == 1) return;
#pragma unroll
  for (unsigned j = 0; j < 8; ++j)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = row0 + first_row + g + i / 2 * 8, feature = feature0 + j * 8 + t * 2 + i % 2;
      if (row < a.rows && feature < a.w.rows)
        a.out[blockIdx.z * a.out_batch + row * a.out_stride + feature] = sums[j][i] + others[place(j, i)];
    }
}

}  // namespace

int split_product(const SplitProduct& a, void* stream) {
  const bool vectors = vector_rows(a.x) && a.w.columns % 4 == 0 && a.x_batch % 4 == 0;
  int error = 0;
  const bool known = for_format(a.w.format, [&]<Format kFormat>() {
    constexpr unsigned shared = 2 * kStageBytes<kFormat>;
    static_assert(kRows * kSumStride * 4 <= shared);
    error = cudaFuncSetAttribute(split_kernel<kFormat>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != 0) return;
    const dim3 grid(ceil_div(a.rows, kRows), ceil_div(a.w.rows, kFeatures), a.batch);
    error = launch_wide(split_kernel<kFormat>, grid, kSplitThreads, shared, stream, a, vectors);
  });
  return known ? error : cudaErrorInvalidValue;
}

}  // namespace ktc::gpu
