// Where a key or value lies in the cache: the formula of plan.fbs (Cache), with its products done once at open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/formats/formats.h"
#include "runtime/plan/plan.h"

namespace ktc::exec {

// One part ("k", "v", "latent", "rope") of every page. Bytes.
struct KvPart {
  std::size_t offset = 0;      // in the page
  std::size_t head_bytes = 0;  // from head to head
  std::size_t slot_bytes = 0;  // from token to token
};

// The pages of one layer.
struct KvLayer {
  std::byte* base = nullptr;
  std::size_t page_bytes = 0;
  std::uint32_t page_tokens = 1;

  std::byte* slot(const KvPart& part, std::size_t head, const std::uint32_t* pages, std::uint32_t position) const {
    return base + pages[position / page_tokens] * page_bytes + part.offset + head * part.head_bytes +
           (position % page_tokens) * part.slot_bytes;
  }
};

inline std::size_t element_bytes(const planfb::CacheT& cache) {
  return static_cast<std::size_t>(format_bits(static_cast<Format>(cache.format)) / 8);
}

inline KvPart kv_part(const planfb::CacheT& cache, std::size_t index) {
  KvPart part;
  const std::size_t element = element_bytes(cache);
  for (std::size_t i = 0; i <= index; ++i) {
    part.slot_bytes = cache.parts[i]->width * element;
    part.head_bytes = cache.page_tokens * part.slot_bytes;
    if (i < index) part.offset += cache.parts[i]->heads * part.head_bytes;
  }
  return part;
}

inline std::size_t kv_page_bytes(const planfb::CacheT& cache) {
  const std::size_t last = cache.parts.size() - 1;
  const KvPart part = kv_part(cache, last);
  return part.offset + cache.parts[last]->heads * part.head_bytes;
}

// nullopt: more than 2^64 - 1.
inline std::optional<std::uint64_t> kv_cache_bytes(const planfb::CacheT& cache) {
  std::uint64_t bytes = kv_page_bytes(cache);
  if (__builtin_mul_overflow(bytes, cache.pages, &bytes) || __builtin_mul_overflow(bytes, cache.layers, &bytes))
    return std::nullopt;
  return bytes;
}

}  // namespace ktc::exec
