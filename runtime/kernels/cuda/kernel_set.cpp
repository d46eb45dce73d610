#include "runtime/kernels/cuda/kernel_table.h"

namespace ktc::gpu {

const KernelSet& reference_kernels() {
  static constexpr KernelSet kSet = {
#define KTC_GPU_KERNEL(name, Args) .name = name##_reference,
#include "runtime/kernels/cuda/gpu_kernels.def"
  };
  return kSet;
}

const KernelSet& cuda_kernels() {
  static constexpr KernelSet kSet = {
#ifdef KTC_CUDA
#define KTC_GPU_KERNEL(name, Args) .name = name##_cuda,
#include "runtime/kernels/cuda/gpu_kernels.def"
#endif
  };
  return kSet;
}

}  // namespace ktc::gpu
