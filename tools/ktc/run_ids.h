// Reads rows of ids from a safetensors file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/ktc/run_options.h"

namespace ktc::run {

struct IdRows {
  std::uint64_t rows = 0, columns = 0;
  std::vector<std::int32_t> ids = {};  // [rows, columns]
  std::span<const std::int32_t> row(std::uint64_t r) const { return std::span(ids).subspan(r * columns, columns); }
};

// An int32 tensor of one or two dimensions; one dimension is one row. `flag` names the place in messages. Every id must
// be below `vocabulary`.
Expected<IdRows> read_id_rows(std::string_view flag, const TensorPath& path, std::uint32_t vocabulary);

}  // namespace ktc::run
