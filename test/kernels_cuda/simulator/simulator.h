// Runs CUDA kernels on a host, one block after the other, its threads as fibers: what translate.py makes of the .cu files compiles
// against this. It finds wrong indices, fragments, barriers and races between warps' stages; it knows nothing of speed, of memory
// order, or of copies that are waited for too late.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <tuple>
#include <type_traits>

#undef __launch_bounds__
#undef __maxnreg__
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block runs at a time
#define threadIdx simulator::thread_index
#define blockIdx simulator::block_index
#define blockDim simulator::block_size
#define gridDim simulator::grid_size

namespace simulator {

struct Index {
  unsigned x, y, z;
};
extern Index thread_index, block_index;
extern dim3 block_size, grid_size;
extern std::byte* dynamic_shared;  // below 4 GiB: its addresses are 32 bits, as on a GPU; NaNs when a block starts
constexpr std::size_t kMostShared = 232448;  // of an H200

void sync_block();
void sync_warp();
unsigned lane();
std::uint64_t* warp_slots();  // [32], of the running thread's warp

// Every lane's value for every lane.
template <typename T>
void gather(T value, T (&all)[32]) {
  static_assert(sizeof(T) <= 8);
  std::memcpy(warp_slots() + lane(), &value, sizeof value);
  sync_warp();
  for (int i = 0; i < 32; ++i) std::memcpy(&all[i], warp_slots() + i, sizeof value);
  sync_warp();
}
template <typename T, typename Combine>
T reduce(T value, const Combine& combine) {
  T all[32];
  gather(value, all);
  for (int i = 1; i < 32; ++i) all[0] = combine(all[0], all[i]);
  return all[0];
}

// ldmatrix .x4, mma m16n8k16 with bf16 operands
void load_matrix(std::uint32_t (&r)[4], std::uint32_t from, bool turned);
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
// wgmma m64n128k16; operands: addresses in units of 16 bytes, read at once
void multiply_groups(float (&c)[16][4], std::uint64_t a, std::uint64_t b);
void copy16(std::uint32_t to, const void* from, bool there);
inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(p)); }

void run(dim3 grid, unsigned threads, std::size_t shared, void (*body)(void*), void* context);

}  // namespace simulator

namespace ktc::gpu {
namespace {

inline void wait_for_inputs() {}
inline void wait_then_release() {}
inline unsigned multiprocessors() { return 7; }
template <typename... Parameters, typename... Args>
int launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared, void*, Args&&... args) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> args;
  } call = {kernel, {Parameters(args)...}};
  simulator::run(grid, threads, shared, [](void* c) { std::apply(static_cast<Call*>(c)->kernel, static_cast<Call*>(c)->args); }, &call);
  return 0;
}

template <typename... Parameters, typename... Args>
int launch_wide(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared, void* stream, Args&&... args) {
  return launch(kernel, grid, threads, shared, stream, std::forward<Args>(args)...);
}

}  // namespace
}  // namespace ktc::gpu

// ------------------------------------------------------------------------------------------------------ what CUDA brings along

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  T all[32];
  simulator::gather(value, all);
  return all[simulator::lane() ^ mask];
}
template <typename T>
T __shfl_sync(unsigned, T value, unsigned from) {
  T all[32];
  simulator::gather(value, all);
  return all[from % 32];
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned offset) {
  T all[32];
  simulator::gather(value, all);
  const unsigned lane = simulator::lane();
  return all[lane >= offset ? lane - offset : lane];
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  return simulator::reduce(predicate != 0 ? 1u << simulator::lane() : 0u, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xffffffffu; }
inline unsigned __reduce_max_sync(unsigned, unsigned v) { return simulator::reduce(v, [](unsigned a, unsigned b) { return a > b ? a : b; }); }
inline unsigned __reduce_min_sync(unsigned, unsigned v) { return simulator::reduce(v, [](unsigned a, unsigned b) { return a < b ? a : b; }); }
inline unsigned __reduce_add_sync(unsigned, unsigned v) { return simulator::reduce(v, [](unsigned a, unsigned b) { return a + b; }); }
inline void __syncthreads() { simulator::sync_block(); }
inline void __syncwarp() { simulator::sync_warp(); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { std::this_thread::yield(); }
template <typename T, typename V>
T atomicAdd(T* p, V value) {
  const T old = *p;
  *p += value;
  return old;
}
template <typename T>
T atomicMax(T* p, T value) {
  const T old = *p;
  if (value > old) *p = value;
  return old;
}
template <typename T>
T atomicExch(T* p, T value) {
  const T old = *p;
  *p = value;
  return old;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selector >> (4 * i) & 15, byte = bytes >> (8 * (which & 7)) & 255;
    out |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return out;
}
inline float __expf(float x) { return std::exp(x); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*)(Parameters...), cudaFuncAttribute, int) {
  return cudaSuccess;
}
using std::isfinite;
