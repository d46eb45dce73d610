// Launches that overlap: a kernel's blocks may be placed while the kernel before it in the stream is finishing, and wait there for
// its results. In a graph of small kernels that hides most of the gap between two of them (sm_90 and later; elsewhere launches are
// ordinary). A kernel launched so calls wait_for_inputs() before anything else, in every thread, also in blocks that have nothing to
// do: who comes later relies on it. Kernels launched with <<<>>> mix freely with these.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace ktc::gpu {
namespace {

constexpr bool kDependentLaunch = true;

__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline bool dependent_launch_works() {
  int device = 0, major = 0;
  return kDependentLaunch && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

// 0 or the cudaError_t of the launch.
template <typename... Parameters, typename... Args>
int launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared, void* stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = dependent_launch_works() ? 1 : 0;
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Args>(args))...));
}

}  // namespace
}  // namespace ktc::gpu
