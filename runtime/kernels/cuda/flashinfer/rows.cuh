// Rows of heads that change between f32 and bf16 where they lie: the bf16 values of a head take the first half of its place. One warp
// owns a head, reads all of it and then writes.
#pragma once

#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

constexpr unsigned kRowWarps = 4;  // of a block

// head: kWidth values, 16-byte aligned; kWidth a multiple of 64.
template <unsigned kWidth>
__device__ inline void round_head_in_place(float* head, unsigned lane) {
  constexpr unsigned kPairs = kWidth / 2 / kWarp;
  float2 value[kPairs];
#pragma unroll
  for (unsigned i = 0; i < kPairs; ++i) value[i] = reinterpret_cast<const float2*>(head)[i * kWarp + lane];
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < kPairs; ++i)
    reinterpret_cast<__nv_bfloat162*>(head)[i * kWarp + lane] = __floats2bfloat162_rn(value[i].x, value[i].y);
}
template <unsigned kWidth>
__device__ inline void widen_head_in_place(float* head, unsigned lane) {
  constexpr unsigned kPairs = kWidth / 2 / kWarp;
  __nv_bfloat162 value[kPairs];
#pragma unroll
  for (unsigned i = 0; i < kPairs; ++i) value[i] = reinterpret_cast<const __nv_bfloat162*>(head)[i * kWarp + lane];
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < kPairs; ++i) reinterpret_cast<float2*>(head)[i * kWarp + lane] = __bfloat1622float2(value[i]);
}

}  // namespace
}  // namespace ktc::gpu
