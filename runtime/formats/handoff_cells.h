// Writing and reading the 16-byte cells of a hand-off's result (handoff.h) on a host: 12 bytes of data and the epoch, as one
// access each, so that whoever sees the epoch sees the data. ThreadSanitizer does not know that; under it both are four atomics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KTC_THREAD_SANITIZER 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define KTC_THREAD_SANITIZER 1
#endif

namespace ktc {

// cell: 16-byte aligned. Data that was written before becomes visible with the epoch (release). The data goes through registers:
// a 16-byte load of what narrower stores just wrote would wait for them, which is what a cell costs then.
inline void write_cell(std::byte* cell, const void* data, std::uint32_t epoch) {
  std::uint32_t words[3];
  std::memcpy(words, data, 12);
#if defined(__SSE2__) && !defined(KTC_THREAD_SANITIZER)
  _mm_store_si128(reinterpret_cast<__m128i*>(cell), _mm_set_epi32(static_cast<int>(epoch), static_cast<int>(words[2]),
                                                                  static_cast<int>(words[1]), static_cast<int>(words[0])));
#else
  auto* to = reinterpret_cast<std::uint32_t*>(cell);
  for (int i = 0; i < 3; ++i) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
  __atomic_store_n(to + 3, epoch, __ATOMIC_RELEASE);
#endif
}

// False, and data unchanged, when the cell has another epoch.
inline bool read_cell(const std::byte* cell, std::uint32_t epoch, void* data) {
  std::uint32_t words[4];
#if defined(__SSE2__) && !defined(KTC_THREAD_SANITIZER)
  __m128i value;
  asm volatile("movdqa %1, %0" : "=x"(value) : "m"(*reinterpret_cast<const __m128i*>(cell)) : "memory");
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words), value);
#else
  const auto* from = reinterpret_cast<const std::uint32_t*>(cell);
  words[3] = __atomic_load_n(from + 3, __ATOMIC_ACQUIRE);
  for (int i = 0; i < 3; ++i) words[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
#endif
  if (words[3] != epoch) return false;
  std::memcpy(data, words, 12);
  return true;
}

}  // namespace ktc
