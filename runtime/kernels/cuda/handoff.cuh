// What the kernels of the hand-off share: 16 bytes in one access, and x in a record (runtime/formats/handoff.h).
#pragma once

#include "runtime/formats/handoff.h"
#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

// 16 bytes in one access, written after everything that a fence came after.
__device__ inline void store_cell(void* address, uint4 v) {
  asm volatile(
      "{\n\t.reg .b128 t;\n\t.reg .b64 lo, hi;\n\tmov.b64 lo, {%1, %2};\n\tmov.b64 hi, {%3, %4};\n\tmov.b128 t, {lo, hi};\n\t"
      "st.relaxed.sys.global.b128 [%0], t;\n\t}" ::"l"(address),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
// 16 aligned bytes, which one store wrote, in one access of this thread: whoever sees the epoch in them sees the data. The vector
// form, because a warp's accesses of it travel together, eight cells in one read over PCIe; .b128 ones travel one by one and cost
// 10 us per layer more at 7168 columns (measured).
__device__ inline uint4 load_cell(const void* address) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address) : "memory");
  return v;
}

// Asks for `bytes`, a multiple of 16, into the cache that all SMs share.
__device__ inline void fetch_piece(const std::byte* data, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data), "r"(bytes) : "memory");
#else
  for (std::uint32_t i = 0; i < bytes; i += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(data + i));
#endif
}

__device__ inline std::uint32_t two_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Sixteen bytes of x in the record: 4 f32 or 8 bf16. Elements behind the row are left out. from(token): the row, where `whole` aligned
// to 16 bytes and of whole pieces. Thread `thread` of `threads`.
template <Format kFormat, typename Row>
__device__ void publish_x(const Row& row, bool whole, unsigned columns, unsigned live, std::byte* x, unsigned thread, unsigned threads) {
  constexpr unsigned kValues = kFormat == Format::bf16 ? 8 : 4;
  const unsigned pieces = ceil_div(columns, kValues);
  for (unsigned i = thread; i < live * pieces; i += threads) {
    const unsigned t = i / pieces, c = i % pieces * kValues;
    const float* from = row(t) + c;
    const std::size_t at = std::size_t{t} * columns + c;
    if (whole && columns % kValues == 0) {
      const float4 p = *reinterpret_cast<const float4*>(from);
      uint4 out;
      if constexpr (kFormat == Format::bf16) {
        const float4 q = *reinterpret_cast<const float4*>(from + 4);
        out = make_uint4(two_bf16(p.x, p.y), two_bf16(p.z, p.w), two_bf16(q.x, q.y), two_bf16(q.z, q.w));
      } else {
        out = make_uint4(__float_as_uint(p.x), __float_as_uint(p.y), __float_as_uint(p.z), __float_as_uint(p.w));
      }
      *reinterpret_cast<uint4*>(x + at * sizeof(std::uint32_t) * 4 / kValues) = out;
    } else {
      for (unsigned k = 0; k < kValues && c + k < columns; ++k) {
        if constexpr (kFormat == Format::bf16)
          reinterpret_cast<__nv_bfloat16*>(x)[at + k] = __float2bfloat16_rn(from[k]);
        else
          reinterpret_cast<float*>(x)[at + k] = from[k];
      }
    }
  }
}
template <typename Row>
__device__ void publish_x(Format format, const Row& row, bool whole, unsigned columns, unsigned live, std::byte* x, unsigned thread,
                          unsigned threads) {
  if (format == Format::bf16)
    publish_x<Format::bf16>(row, whole, columns, live, x, thread, threads);
  else
    publish_x<Format::f32>(row, whole, columns, live, x, thread, threads);
}

}  // namespace
}  // namespace ktc::gpu
