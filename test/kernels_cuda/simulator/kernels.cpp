// In this binary the emulated device runs the CUDA kernels, and is what a GPU is.
#include "runtime/device/device.h"
#include "runtime/kernels/cuda/kernel_table.h"

namespace ktc::gpu {

const KernelSet& cuda_kernels() {
  static constexpr KernelSet kSet = {
#define KTC_GPU_KERNEL(name, Args) .name = name##_cuda,
#include "runtime/kernels/cuda/gpu_kernels.def"
  };
  return kSet;
}
const KernelSet& reference_kernels() { return cuda_kernels(); }

}  // namespace ktc::gpu

namespace ktc::device {

Expected<std::unique_ptr<Device>> open_cuda(int) { return open_emulated(std::uint64_t{4} << 30); }

}  // namespace ktc::device
