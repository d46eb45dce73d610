// Attention of prompts with FlashInfer's FA2 kernels, in builds that have its headers (KTC_FLASHINFER). The functions behind the ops
// (attend_gqa.cu, attend_mla.cu) ask *_serves first and take our own kernels where the answer is no.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// bf16 caches with heads of 64 or 128, prompts (plan.h), an output without gaps, places within 32 bits where FlashInfer
// counts so.
bool flashinfer_serves(const GqaAttendArgs& a);
int flashinfer_attend(const GqaAttendArgs& a, void* stream);

// bf16 caches of 512 and 64, prompts, a number of heads that divides 128 or is a multiple of it (FlashInfer forgets a key at the edge
// of a tile otherwise), enough work for every pair of SMs, a card of compute capability 8 or 9 with at least 148 KB of shared memory
// per SM. Leaves the context as MlaAttendArgs says; W_UV is the caller's.
bool flashinfer_serves(const MlaAttendArgs& a);
int flashinfer_attend(const MlaAttendArgs& a, void* stream);

}  // namespace ktc::gpu
