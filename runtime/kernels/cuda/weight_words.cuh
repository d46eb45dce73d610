// Weights as tensor cores take them: 32-bit words of packed codes to pairs of bf16, and the scales beside them.
//
// A lane of a warp reads `bytes` consecutive bytes of a row and uses them as its part of several m16n8k16 products: which k a
// product calls first does not matter as long as both operands agree, so nothing is moved between lanes. With codes of four bits
// the pairs of one word are (0,4) (1,5) (2,6) (3,7), because two masks and one shift take them out; stage() of dot_tile.cuh puts
// the other operand into the same order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// A weight of any format as kernels see it: rows of codes, and scales [rows][groups] (none for f32 and bf16).
struct Rows {
  const std::byte* data;
  std::uint64_t matrix_bytes, row_bytes, scales_offset;
  std::uint32_t rows, columns, groups, group;  // group: columns per scale, 0: the row

  __device__ const std::byte* matrix(std::uint32_t m) const { return data + m * matrix_bytes; }
};

template <Format F>
struct Codes;  // kPerByte2: codes in two bytes

template <>
struct Codes<Format::bf16> {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  __device__ static void pairs(std::uint32_t word, std::uint32_t* out) { out[0] = word; }
};

template <>
struct Codes<Format::int8> {
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;
  // u = code + 128 as the mantissa of 2^23, minus 2^23 + 128: exact, and its upper half is the exact bf16.
  __device__ static void pairs(std::uint32_t word, std::uint32_t* out) {
    const std::uint32_t u = word ^ 0x80808080u;
    float f[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) f[i] = __uint_as_float(__byte_perm(u, 0x4B000000u, 0x7440 + i)) - 8388736.0f;
    out[0] = __byte_perm(__float_as_uint(f[0]), __float_as_uint(f[1]), 0x7632);
    out[1] = __byte_perm(__float_as_uint(f[2]), __float_as_uint(f[3]), 0x7632);
  }
};

template <>
struct Codes<Format::int4> {
  static constexpr int kPerWord = 8;
  static constexpr bool kScaled = true;
  // 0x4300 | n is the bf16 128 + n; minus 136 is the code.
  __device__ static void pairs(std::uint32_t word, std::uint32_t* out) {
    const __nv_bfloat162 zero = __floats2bfloat162_rn(136.0f, 136.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t bits = ((word >> (4 * i)) & 0x000F000Fu) | 0x43004300u;
      const __nv_bfloat162 value = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&bits), zero);
      out[i] = *reinterpret_cast<const std::uint32_t*>(&value);
    }
  }
};

template <>
struct Codes<Format::fp8> {
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;
  // Sign and the seven other bits at their places in a bf16 give the value times 2^-120.
  __device__ static void pairs(std::uint32_t word, std::uint32_t* out) {
    const __nv_bfloat162 up = __floats2bfloat162_rn(1.329227995784916e36f, 1.329227995784916e36f);  // 2^120
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t two = __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);  // each code in the upper byte of 16 bits
      std::uint32_t bits = (two & 0x80008000u) | ((two & 0x7F007F00u) >> 4);
      const __nv_bfloat162 value = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&bits), up);
      out[i] = *reinterpret_cast<const std::uint32_t*>(&value);
    }
  }
};

// Scales of int4 groups are bf16, all others f32.
template <Format F>
__device__ inline float scale_at(const std::byte* scales, bool grouped, std::uint64_t index) {
  if constexpr (F == Format::int4)
    if (grouped) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(scales)[index]);
  return reinterpret_cast<const float*>(scales)[index];
}

// One weight as f32, scale included: the slow way, for f32 activations.
template <Format F>
__device__ inline float value_at(const Rows& w, const std::byte* matrix, std::uint32_t row, std::uint32_t k) {
  const std::byte* codes = matrix + row * w.row_bytes;
  if constexpr (F == Format::f32) return reinterpret_cast<const float*>(codes)[k];
  if constexpr (F == Format::bf16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(codes)[k]);
  const std::byte* scales = matrix + w.scales_offset;
  const float scale = scale_at<F>(scales, w.group != 0, static_cast<std::uint64_t>(row) * w.groups + (w.group != 0 ? k / w.group : 0));
  if constexpr (F == Format::int8) return static_cast<float>(reinterpret_cast<const std::int8_t*>(codes)[k]) * scale;
  if constexpr (F == Format::int4) {
    const int byte = static_cast<int>(reinterpret_cast<const std::uint8_t*>(codes)[k / 2]);
    return static_cast<float>(((k & 1) ? byte >> 4 : byte & 15) - 8) * scale;
  }
  if constexpr (F == Format::fp8) {
    const std::uint32_t bits = reinterpret_cast<const std::uint8_t*>(codes)[k];
    return __uint_as_float(((bits & 0x80u) << 24) | ((bits & 0x7Fu) << 20)) * 1.329227995784916e36f * scale;
  }
  return 0;
}

__device__ inline void multiply(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline float silu(float x) { return x / (1.0f + __expf(-x)); }

}  // namespace ktc::gpu
