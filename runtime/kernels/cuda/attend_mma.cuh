// What the tensor-core attention kernels share: fragments of m16n8k16, asynchronous copies, and the online softmax of a warp.
//
// Of a fragment of sums (16 rows x 8 columns) a lane holds row lane / 4, columns 2 * (lane % 4) + {0, 1}, and the same of row + 8.
#pragma once

#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/paged.cuh"

namespace ktc::gpu {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

__device__ inline std::uint32_t shared_at(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }
// 16 bytes into shared memory; zeros where `there` is false (from must be readable all the same).
__device__ inline void copy16(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ inline void load_fragments(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ inline void load_fragments_turned(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ inline void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
// high + low are x to 16 bits: two products with bf16 operands then lose next to nothing of an f32 operand.
struct SplitPair {
  std::uint32_t high, low;
};
__device__ inline SplitPair split_bf16(float x, float y) {
  const std::uint32_t high = pack_bf16(x, y);
  return {high, pack_bf16(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u))};
}

// Byte of 16-byte piece `piece` of row `row` where rows are kBytes long: pieces are exchanged so that the eight rows of a matrix of
// ldmatrix lie in different banks. kBytes: a multiple of 128.
template <unsigned kBytes>
__device__ inline std::uint32_t swizzled(unsigned row, unsigned piece) {
  return row * kBytes + ((piece ^ (row & 7)) << 4);
}

// A value's sum or maximum over the four lanes that share a row of a fragment.
__device__ inline float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// Of rows lane / 4 and lane / 4 + 8: maximum so far, in units of log2, and this lane's share of the denominator.
struct SoftmaxRows {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // s: scores of kTiles * 8 keys, in units of log2, minus infinity where there is no key; becomes their weights. Sums of values so
  // far are to be multiplied with `shrink`; returns whether that changes anything in any lane.
  template <unsigned kTiles>
  __device__ bool update(float (&s)[kTiles][4], float (&shrink)[2]) {
    bool grew = false;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float most = s[0][2 * half];
#pragma unroll
      for (unsigned n = 0; n < kTiles; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      most = fmaxf(top[half], row_max(most));
      const float base = most == -INFINITY ? 0.0f : most;  // a row without keys yet: its weights come out as zeros
      shrink[half] = exp2f(top[half] - base);
      grew = grew || most != top[half];
      top[half] = most;
      float added = 0;
#pragma unroll
      for (unsigned n = 0; n < kTiles; ++n)
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) added += s[n][2 * half + i] = exp2f(s[n][2 * half + i] - base);
      sum[half] = sum[half] * shrink[half] + added;
    }
    return __any_sync(kAllLanes, grew);
  }
};

// ----------------------------------------------------------------------------------------------------------------- splits

constexpr unsigned kLeastChunk = 64;

// Keys of a split, at least `least` unless there are fewer: a function of the context alone, so that a token's result does not depend
// on the other tokens.
__device__ inline unsigned chunk_of(unsigned context, unsigned splits, unsigned least = kLeastChunk) {
  return ceil_div(ceil_div(context, splits), least) * least;
}

// Where the splits of `items` tokens' heads leave what they found. Item: token * heads + head.
struct Partials {
  float* sums;     // [items][splits][width], not divided yet
  float2* ends;    // [items][splits]: maximum and denominator

  __device__ Partials(const Scratch& scratch, unsigned items, unsigned splits, unsigned width)
      : sums(reinterpret_cast<float*>(scratch.data)), ends(reinterpret_cast<float2*>(sums + std::size_t{items} * splits * width)) {}
};

// The splits of one head are shared among groups of threads, four columns each; every group reads all of its splits at once, then
// the groups are put together.
constexpr unsigned kMergeThreads = 512, kMergeAtOnce = 4;
template <unsigned kWidth>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(Scratch scratch, Matrix out, const std::int32_t* positions, unsigned splits, unsigned least) {
  constexpr unsigned kLanes = kWidth / 4, kGroups = kMergeThreads / kLanes;
  __shared__ float tops[kGroups], denominators[kGroups];
  __shared__ __align__(16) float sums[kGroups][kWidth];
  const unsigned h = blockIdx.x, t = blockIdx.y, group = threadIdx.x / kLanes, c = threadIdx.x % kLanes * 4;
  const unsigned context = static_cast<unsigned>(positions[t]) + 1, used = ceil_div(context, chunk_of(context, splits, least));
  wait_for_inputs();
  if (used <= 1) return;
  const Partials partials(scratch, gridDim.x * gridDim.y, splits, kWidth);
  const std::size_t item = (std::size_t{t} * gridDim.x + h) * splits;
  float top = -INFINITY, denominator = 0;
  float4 sum = make_float4(0, 0, 0, 0);
  for (unsigned first = group; first < used; first += kGroups * kMergeAtOnce) {
    float2 ends[kMergeAtOnce];
    float4 values[kMergeAtOnce];
#pragma unroll
    for (unsigned k = 0; k < kMergeAtOnce; ++k) {
      const unsigned s = first + k * kGroups;
      ends[k] = s < used ? partials.ends[item + s] : make_float2(-INFINITY, 0);
      values[k] = s < used ? *reinterpret_cast<const float4*>(partials.sums + (item + s) * kWidth + c) : make_float4(0, 0, 0, 0);
    }
    float most = top;
#pragma unroll
    for (unsigned k = 0; k < kMergeAtOnce; ++k) most = fmaxf(most, ends[k].x);
    const float shrink = exp2f(top - most);
    top = most;
    sum.x *= shrink, sum.y *= shrink, sum.z *= shrink, sum.w *= shrink, denominator *= shrink;
#pragma unroll
    for (unsigned k = 0; k < kMergeAtOnce; ++k) {
      const float factor = exp2f(ends[k].x - most);
      sum.x += factor * values[k].x, sum.y += factor * values[k].y, sum.z += factor * values[k].z, sum.w += factor * values[k].w;
      denominator += factor * ends[k].y;
    }
  }
  *reinterpret_cast<float4*>(&sums[group][c]) = sum;
  if (c == 0) {
    tops[group] = top;
    denominators[group] = denominator;
  }
  __syncthreads();
  const unsigned groups = used < kGroups ? used : kGroups;
  for (unsigned i = threadIdx.x; i < kWidth; i += kMergeThreads) {
    float most = tops[0], value = 0, total = 0;
    for (unsigned g = 1; g < groups; ++g) most = fmaxf(most, tops[g]);
#pragma unroll 4
    for (unsigned g = 0; g < groups; ++g) {
      const float factor = exp2f(tops[g] - most);
      value += factor * sums[g][i];
      total += factor * denominators[g];
    }
    row_at(out, t)[std::size_t{h} * kWidth + i] = value / total;
  }
}

template <unsigned kWidth>
int merge_splits(const Scratch& scratch, const Matrix& out, const Batch& batch, unsigned heads, unsigned splits, void* stream,
                 unsigned least = kLeastChunk) {
  if (splits > 1)
    launch(merge_kernel<kWidth>, dim3(heads, batch.tokens), kMergeThreads, 0, stream, scratch, out, batch.positions, splits, least);
  return launched();
}

}  // namespace
}  // namespace ktc::gpu
