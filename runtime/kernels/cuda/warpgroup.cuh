// Products of warp groups: four warps together multiply 64 rows by 128 rows, both in shared memory, while they do something else.
// Only code for sm_90a has the instruction; a build for compute capability 9.0 is one for sm_90a (cmake/KtcCuda.cmake).
//
// Operands are bf16 with 64 columns in a row of 128 bytes, 16-byte pieces exchanged as swizzled() of tile_gemm.cuh does it, which is
// what the instruction calls a swizzle of 128 bytes; they start at a multiple of 1024 bytes.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(KTC_SIMULATE_GROUPS)
#define KTC_WARP_GROUPS 1
#endif

namespace ktc::gpu {

#ifdef KTC_WARP_GROUPS

// The operand whose first row starts at `address`: columns 0 to 15; 16 further columns are 2 more. Bits 0 to 13 the address and 32 to
// 45 the distance of eight rows, in units of 16 bytes; bits 62 and 63 the swizzle.
__device__ inline std::uint64_t group_operand(std::uint32_t address) {
  return (static_cast<std::uint64_t>(address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// What was written to shared memory by ordinary stores and copies is visible to the products after the next barrier.
__device__ inline void show_to_groups() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void begin_groups() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_groups() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void wait_groups() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// c += a [64, 16] b [128, 16]^T. Warp w of the group has rows 16 w + lane / 4 (c[j][0], c[j][1]) and 8 further (c[j][2], c[j][3]),
// columns 8 j + lane % 4 * 2 and the next. Nobody touches c between begin_groups() and wait_groups().
__device__ inline void multiply_groups(float (&c)[16][4], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,"
      "%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
        "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
        "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
        "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
        "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
        "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
      : "l"(a), "l"(b));
}

#endif

}  // namespace ktc::gpu
