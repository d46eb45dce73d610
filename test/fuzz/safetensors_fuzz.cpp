// Arbitrary bytes as a safetensors file, and as the JSON of one.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/safetensors/safetensors.h"

namespace {

void check(std::span<const std::byte> bytes) {
  const auto header = ktc::safetensors::parse_header(bytes, bytes.size(), "fuzz");
  if (!header.ok()) return;
  for (const auto& [name, info] : header->tensors)
    if (info.offset > bytes.size() || info.bytes > bytes.size() - info.offset) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::as_bytes(std::span(data, size)));
  std::vector<std::byte> wrapped(8 + size + 64);
  for (int i = 0; i < 8; ++i) wrapped[i] = static_cast<std::byte>(static_cast<std::uint64_t>(size) >> (8 * i));
  if (size != 0) std::memcpy(wrapped.data() + 8, data, size);
  check(wrapped);
  return 0;
}
