// The JSON text of a header, private to runtime/safetensors.
#pragma once

#include <string_view>

#include "runtime/safetensors/safetensors.h"

namespace ktc::safetensors {

// Fills tensors and metadata from `json`. Offsets are still relative to the data and unchecked against the file:
// TensorInfo.offset is data_offsets[0] and TensorInfo.bytes is data_offsets[1] - data_offsets[0].
// Errors: not JSON, another structure than the container's, duplicate names or keys, numbers that are no 64-bit counts.
Status parse_json(std::string_view json, std::string_view name, Header& header);

// The JSON's length from the first 8 bytes, checked against the format's limit and the file's length.
Expected<std::uint64_t> header_bytes(std::span<const std::byte> head, std::uint64_t file_bytes, std::string_view name);

// "FILE: tensor "NAME"" for messages, a very long name cut.
std::string tensor_place(std::string_view file, std::string_view tensor);

}  // namespace ktc::safetensors
