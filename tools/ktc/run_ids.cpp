#include "tools/ktc/run_ids.h"

#include <fmt/format.h>

#include <cstring>

#include "runtime/base/units.h"
#include "runtime/safetensors/safetensors.h"

namespace ktc::run {
namespace {

constexpr std::uint64_t kLargest = 256u << 20;

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string names_text(const safetensors::Header& header) {
  std::string text;
  std::size_t listed = 0;
  for (const auto& [name, info] : header.tensors) {
    if (listed++ == 8) return text + ", …";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "no tensor" : text;
}

}  // namespace

Expected<IdRows> read_id_rows(std::string_view flag, const TensorPath& path, std::uint32_t vocabulary) {
  const std::string place = fmt::format("{} {}:{}", flag, path.file.string(), path.tensor);
  auto error = [&](const char* what, std::string found, std::string expected) {
    return make_error(StatusCode::invalid_argument,
                      {.place = place, .what = what, .found = std::move(found), .expected = std::move(expected)});
  };
  KTC_ASSIGN_OR_RETURN(const safetensors::Header header, safetensors::read_header(path.file));
  const auto found = header.tensors.find(path.tensor);
  if (found == header.tensors.end()) {
    return make_error(StatusCode::not_found,
                      {.place = place, .what = "no such tensor", .found = names_text(header), .expected = path.tensor});
  }
  const safetensors::TensorInfo& info = found->second;
  if (info.dtype != "I32") return error("wrong type", info.dtype, "I32");
  const std::size_t dimensions = info.shape.size();
  if (dimensions < 1 || dimensions > 2 || info.bytes == 0) {
    return error("wrong shape", shape_text(info.shape), "[rows, tokens], not empty");
  }
  if (info.bytes > kLargest) return error("too large", format_bytes(info.bytes), "at most " + format_bytes(kLargest));
  KTC_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, safetensors::read_tensor(path.file, info));
  IdRows result{.rows = dimensions == 2 ? info.shape[0] : 1, .columns = info.shape.back()};
  result.ids.resize(bytes.size() / sizeof(std::int32_t));
  std::memcpy(result.ids.data(), bytes.data(), result.ids.size() * sizeof(std::int32_t));
  for (std::size_t i = 0; i < result.ids.size(); ++i) {
    const std::int32_t id = result.ids[i];
    if (id >= 0 && static_cast<std::uint32_t>(id) < vocabulary) continue;
    return error("token id outside the vocabulary",
                 fmt::format("{} in row {}, column {}", id, i / result.columns, i % result.columns),
                 fmt::format("0 to {}", static_cast<std::int64_t>(vocabulary) - 1));
  }
  return result;
}

}  // namespace ktc::run
