// Launches that overlap: a kernel's blocks may be placed while the kernel before it in the stream is finishing, and wait there for
// its results. In a graph of small kernels that hides most of the gap between two of them (sm_90 and later; elsewhere launches are
// ordinary). A kernel launched so calls wait_for_inputs() in every thread: who comes later relies on it. A block that has nothing to do
// may leave without it where another one of every launch waits, and should: it holds a place that the next kernel could have. Before it a kernel may read what no kernel of the step writes: weights, the step block, slots, what earlier steps left
// in a cache; and there is where a product asks for its weight, so that the memory does not wait for the activations. Between steps
// there is always a copy or the beginning of a graph, which wait for all that is before. Kernels launched with <<<>>> mix freely.
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

// The same the other way round: when a block of the next kernel begins, all kernels before this one have ended, and what they wrote may be
// read before the wait. The next kernel begins later for it.
__device__ inline void wait_then_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline bool dependent_launch_works() {
  int device = 0, major = 0;
  return kDependentLaunch && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

inline unsigned multiprocessors() {
  int device = 0, count = 0;
  return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess && count > 0
             ? static_cast<unsigned>(count) : 1;
}

// Shared memory and first-level cache of an SM are one memory, and an SM on which blocks run cannot move the border between them: a kernel
// that wants another one begins when all before it have left. So the kernels of decode steps ask for the same: 72 %, 164 of an H200's
// 228 KB. More for all costs products, whose loads in flight need the cache: 15 % at 100 %.
constexpr int kSharedPercent = 72, kOwnShared = -1;

// 0 or the cudaError_t of the launch.
template <typename... Parameters, typename... Args>
int launch_with(int shared_percent, void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared, void* stream, Args&&... args) {
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, shared_percent)) return error;
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
template <typename... Parameters, typename... Args>
int launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared, void* stream, Args&&... args) {
  return launch_with(kSharedPercent, kernel, grid, threads, shared, stream, std::forward<Args>(args)...);
}
// For kernels of prompts, and those that take most of an SM: as much shared memory as they can use.
template <typename... Parameters, typename... Args>
int launch_wide(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared, void* stream, Args&&... args) {
  return launch_with(kOwnShared, kernel, grid, threads, shared, stream, std::forward<Args>(args)...);
}

}  // namespace
}  // namespace ktc::gpu
