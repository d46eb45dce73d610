// Attention with FlashInfer's FA2 kernels, in builds that have its headers (KTC_FLASHINFER): prompts, and MLA of batches. The functions
// behind the ops (attend_gqa.cu, attend_mla.cu) ask flashinfer_serves first and take our own kernels where the answer is no.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// bf16 caches with heads of 64 or 128, prompts (plan.h), an output without gaps, places within 32 bits where FlashInfer
// counts so.
bool flashinfer_serves(const GqaAttendArgs& a);
int flashinfer_attend(const GqaAttendArgs& a, void* stream);

// bf16 caches of 512 and 64, rows enough (plan.h), a number of heads that divides 128 (FlashInfer forgets a key at the edge of a tile
// otherwise), a card of compute capability 8 or 9 with 148 KB of shared memory per block. Leaves the context as
// MlaAttendArgs says; W_UV is the caller's. Grids of one block per SM: nothing else may hold an SM for ever meanwhile.
bool flashinfer_serves(const MlaAttendArgs& a);
int flashinfer_attend(const MlaAttendArgs& a, void* stream);

}  // namespace ktc::gpu
