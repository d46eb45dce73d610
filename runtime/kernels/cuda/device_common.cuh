// What the CUDA kernels share: launches, reductions, and counters for "the last block does the rest".
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/kernels/cuda/dependent_launch.cuh"
#include "runtime/kernels/cuda/gpu_math.h"
#include "runtime/kernels/cuda/kernel_table.h"

namespace ktc::gpu {
namespace {  // of each file: the pools below are too

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

template <typename A, typename B>
__host__ __device__ constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
inline int launched() { return static_cast<int>(cudaPeekAtLastError()); }

// Whether rows may be read 16 bytes at a time.
inline bool aligned16(const void* data, std::uint64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}
inline bool vector_rows(const Matrix& m) { return aligned16(m.data, m.stride * 4) && m.columns % 4 == 0; }

__device__ inline float* row_at(const Matrix& m, std::size_t r) { return m.data + r * m.stride; }
__device__ inline std::int32_t* row_at(const Ids& m, std::size_t r) { return m.data + r * m.stride; }

__device__ inline float warp_sum(float value) {
  for (unsigned offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
__device__ inline float warp_max(float value) {
  for (unsigned offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}
// The sum over a block of whole warps, for every thread. shared: one float per warp; free again after the next barrier.
__device__ inline float block_sum(float value, float* shared) {
  const unsigned warps = blockDim.x / kWarp;
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = threadIdx.x % kWarp < warps ? shared[threadIdx.x % kWarp] : 0.0f;
  return warp_sum(value);
}

// A float as an unsigned number of the same order; -0 and 0 are equal, NaN is not expected.
__device__ inline std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Counters that are zero between kernels: the last block of a launch sets its own back. Each launch (each node of a graph) has a
// place of its own, until kCounters launches later; two kernels that run at once never share one. One pool per file.
constexpr std::uint32_t kCounters = 16384;
struct CounterPool {
  std::atomic<std::uint32_t> next{0};
  std::uint32_t take(std::uint32_t count) {
    std::uint32_t first = next.load(std::memory_order_relaxed), end;
    do {
      end = first + count <= kCounters ? first + count : count;
    } while (!next.compare_exchange_weak(first, end, std::memory_order_relaxed));
    return end - count;
  }
};

// True in every thread of the block that arrives last of `blocks`. What other blocks wrote before is visible then.
__device__ inline bool last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == blocks - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// ------------------------------------------------------------------------------------------------------------- weights

__device__ inline float bf16_bits_to_f32(std::uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float round_bf16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

// The scale of (row, column) of a matrix in gpu_rows.
template <Format kFormat>
__device__ inline float scale_of(const Weight& w, const std::byte* matrix, std::size_t row, std::uint32_t column) {
  const std::byte* scales = matrix + w.rows * w.row_bytes;
  if (w.group == 0) return reinterpret_cast<const float*>(scales)[row];
  const std::size_t at = row * ceil_div(w.columns, w.group) + column / w.group;
  if (kFormat == Format::int4) return bf16_bits_to_f32(reinterpret_cast<const std::uint16_t*>(scales)[at]);
  return reinterpret_cast<const float*>(scales)[at];
}

// Eight neighbours of a row, column a multiple of 8: bytes behind the last column are padding that decodes to something finite.
template <Format kFormat>
__device__ inline void decode8(const Weight& w, const std::byte* matrix, std::size_t row, std::uint32_t column, float (&out)[8]) {
  const std::byte* data = matrix + row * w.row_bytes;
  if constexpr (kFormat == Format::f32) {
    const float4 a = reinterpret_cast<const float4*>(data)[column / 4], b = reinterpret_cast<const float4*>(data)[column / 4 + 1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  } else if constexpr (kFormat == Format::bf16) {
    const uint4 v = reinterpret_cast<const uint4*>(data)[column / 8];
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else if constexpr (kFormat == Format::int4) {
    const std::uint32_t v = reinterpret_cast<const std::uint32_t*>(data)[column / 8];
    const float scale = scale_of<kFormat>(w, matrix, row, column);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(static_cast<int>(v >> (4 * i) & 15) - 8) * scale;
  } else {
    const uint2 v = reinterpret_cast<const uint2*>(data)[column / 8];
    const float scale = scale_of<kFormat>(w, matrix, row, column);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<std::uint8_t>((i < 4 ? v.x : v.y) >> (i % 4 * 8));
      out[i] = (kFormat == Format::int8 ? static_cast<float>(static_cast<std::int8_t>(byte)) : e4m3_to_f32(byte)) * scale;
    }
  }
}

// Calls body.template operator()<Format>() for the format of a weight; false for one that no kernel reads.
template <typename Body>
bool for_format(Format format, const Body& body) {
  switch (format) {
    case Format::f32: return body.template operator()<Format::f32>(), true;
    case Format::bf16: return body.template operator()<Format::bf16>(), true;
    case Format::int8: return body.template operator()<Format::int8>(), true;
    case Format::int4: return body.template operator()<Format::int4>(), true;
    case Format::fp8: return body.template operator()<Format::fp8>(), true;
    default: return false;
  }
}

}  // namespace
}  // namespace ktc::gpu
