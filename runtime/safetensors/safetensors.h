// The safetensors container: an 8-byte little-endian header length, a JSON header, then tensor bytes.
// Used for checkpoints, for reference tensors and for dumped logits. Hostile input is expected: every bound is checked
// against the file's real length, overlaps, duplicate names and unknown dtypes are errors that name file and tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace ktc::safetensors {

struct TensorInfo {
  std::string dtype;                   // as written: "F32", "BF16", "I32", "F8_E4M3"
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;            // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
};

struct Header {
  std::map<std::string, TensorInfo> tensors;      // by name
  std::map<std::string, std::string> metadata;    // "__metadata__"
  std::uint64_t file_bytes = 0;
};

// Bytes of one element; 0 for a dtype that the format does not define.
std::uint64_t dtype_bytes(std::string_view dtype);

// Reads the header alone. `name` stands for the file in messages.
Expected<Header> read_header(const std::filesystem::path& path);
Expected<Header> parse_header(std::span<const std::byte> head, std::uint64_t file_bytes, std::string_view name);

// Reads one small tensor whole.
Expected<std::vector<std::byte>> read_tensor(const std::filesystem::path& path, const TensorInfo& info);

// Writes float32 or int32 tensors; deterministic (sorted by name).
struct OutputTensor {
  std::string name;
  std::string dtype;                   // "F32" or "I32"
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
};
Status write_file(const std::filesystem::path& path, std::span<const OutputTensor> tensors);

}  // namespace ktc::safetensors
