// The functions behind both kernel sets. A CUDA function that a build lacks is left out of kernel_set.cpp's table.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

#define KTC_GPU_KERNEL(name, Args) \
  int name##_reference(const Args&, void* stream); \
  int name##_cuda(const Args&, void* stream);
#include "runtime/kernels/cuda/gpu_kernels.def"

}  // namespace ktc::gpu
