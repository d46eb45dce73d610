// A safetensors file in memory, from the text of its header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ktc::test {

inline std::vector<std::byte> safetensors_bytes(std::string_view json, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + json.size() + data_bytes, std::byte{1});
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(static_cast<std::uint64_t>(json.size()) >> (8 * i));
  for (std::size_t i = 0; i < json.size(); ++i) bytes[8 + i] = static_cast<std::byte>(json[i]);
  return bytes;
}

}  // namespace ktc::test
