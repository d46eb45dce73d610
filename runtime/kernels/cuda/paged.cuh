// Where keys and values lie in a paged cache.
#pragma once

#include "runtime/kernels/cuda/device_common.cuh"

namespace ktc::gpu {
namespace {

__device__ inline const std::int32_t* pages_of(const Batch& batch, unsigned token) {
  return batch.pages + batch.page_first[batch.sequence[token]];
}
// The first element of (head, position).
template <typename T>
__device__ inline T* slot_of(const CachePart& part, std::uint32_t page_tokens, std::int32_t page, unsigned head, unsigned slot) {
  return reinterpret_cast<T*>(part.base + static_cast<std::uint64_t>(page) * part.page_bytes) +
         (std::size_t{head} * page_tokens + slot) * part.width;
}
template <typename T>
__device__ inline T* slot_of(const Cache& cache, const CachePart& part, const std::int32_t* pages, unsigned head, unsigned position) {
  return slot_of<T>(part, cache.page_tokens, pages[position / cache.page_tokens], head, position % cache.page_tokens);
}

// position / page_tokens without a division, where pages hold a power of two: log2(page_tokens), or 32.
inline unsigned page_shift_of(std::uint32_t page_tokens) {
  for (unsigned shift = 0; shift < 31; ++shift)
    if (1u << shift == page_tokens) return shift;
  return 32;
}
__device__ inline unsigned page_index(unsigned page_shift, std::uint32_t page_tokens, unsigned position) {
  return page_shift < 32 ? position >> page_shift : position / page_tokens;
}

template <typename T>
__device__ inline float widen(T value) {
  if constexpr (sizeof(T) == 2) return __bfloat162float(value);
  else return value;
}
template <typename T>
__device__ inline T narrow(float value) {
  if constexpr (sizeof(T) == 2) return __float2bfloat16_rn(value);
  else return value;
}

// Element `i` of a head that rope turns in its first rope.dim elements.
__device__ inline float turned(const float* head, const Rope& rope, unsigned token, unsigned i) {
  const unsigned half = rope.dim / 2;
  if (i >= rope.dim) return head[i];
  const unsigned pair = rope.interleaved ? i / 2 : i % half;
  const bool second = rope.interleaved ? i % 2 != 0 : i >= half;
  const float cos = rope.cos[std::size_t{token} * half + pair], sin = rope.sin[std::size_t{token} * half + pair];
  const float a = head[rope.interleaved ? 2 * pair : pair], b = head[rope.interleaved ? 2 * pair + 1 : pair + half];
  return second ? b * cos + a * sin : a * cos - b * sin;
}

}  // namespace
}  // namespace ktc::gpu
