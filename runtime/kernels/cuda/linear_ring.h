// Products of few tokens with weights in bf16 that are on their way before the tokens are there (linear_ring.cu).
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// linear of up to kGpuFewRows rows; cudaErrorNotSupported, and nothing is launched, where the weight or x is in another format, has too
// few columns for all warps of a block, or the card too little shared memory.
int linear_ring(const LinearArgs& args, void* stream);

}  // namespace ktc::gpu
