// The functions behind both kernel sets; those of CUDA are defined in builds with CUDA alone.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

#define KTC_GPU_KERNEL(name, Args) \
  int name##_reference(const Args&, void* stream); \
  int name##_cuda(const Args&, void* stream);
#include "runtime/kernels/cuda/gpu_kernels.def"

}  // namespace ktc::gpu
