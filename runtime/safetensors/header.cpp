// Header bytes to a Header whose every range is known to lie in the file.
#include <algorithm>

#include "runtime/safetensors/parse.h"
#include "runtime/safetensors/safetensors.h"

namespace ktc::safetensors {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kDownloadAgain = "download the file again";
constexpr const char* kDamaged = "the file is damaged or not a safetensors file; download it again";

struct DtypeRow {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr DtypeRow kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8},
};

std::string count(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes";
}

std::string to_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 8) return text + ", ...]";
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Status incomplete(std::string_view name, std::uint64_t found, std::uint64_t expected) {
  return make_error(StatusCode::data_corrupt, {std::string(name), "the file is cut short", count(found),
                                               count(expected) + " (incomplete download?)", kDownloadAgain});
}

// Length from dtype and shape against length from data_offsets.
Status check_length(std::string_view name, std::string_view tensor, const TensorInfo& info) {
  const std::uint64_t width = dtype_bytes(info.dtype);
  if (width == 0) {
    std::string known;
    for (const DtypeRow& row : kDtypes) known += (known.empty() ? "" : ", ") + std::string(row.name);
    return make_error(StatusCode::unsupported,
                      {tensor_place(name, tensor), "dtype", "\"" + info.dtype.substr(0, 40) + "\"", "one of " + known,
                       "convert the checkpoint"});
  }
  std::uint64_t bytes = width;
  // an empty dimension makes the tensor empty, however large the others
  if (std::find(info.shape.begin(), info.shape.end(), 0u) != info.shape.end()) {
    bytes = 0;
  } else {
    for (std::uint64_t dimension : info.shape)
      if (__builtin_mul_overflow(bytes, dimension, &bytes))
        return make_error(StatusCode::data_corrupt, {tensor_place(name, tensor), "shape", to_text(info.shape),
                                                     "fewer than 2^64 bytes", kDamaged});
  }
  if (bytes != info.bytes)
    return make_error(StatusCode::data_corrupt,
                      {tensor_place(name, tensor), "length of data_offsets", count(info.bytes),
                       count(bytes) + " for " + info.dtype + " " + to_text(info.shape), kDamaged});
  return {};
}

Status check_overlaps(std::string_view name, const Header& header) {
  using Item = std::map<std::string, TensorInfo>::const_pointer;
  std::vector<Item> items;
  items.reserve(header.tensors.size());
  for (const auto& item : header.tensors)
    if (item.second.bytes != 0) items.push_back(&item);
  std::sort(items.begin(), items.end(), [](Item a, Item b) {
    return a->second.offset != b->second.offset ? a->second.offset < b->second.offset : a->first < b->first;
  });
  for (std::size_t i = 1; i < items.size(); ++i) {
    const TensorInfo &before = items[i - 1]->second, &after = items[i]->second;
    if (before.offset + before.bytes > after.offset)
      return make_error(StatusCode::data_corrupt,
                        {tensor_place(name, items[i]->first), "data begin", "byte " + std::to_string(after.offset),
                         "byte " + std::to_string(before.offset + before.bytes) + " or later, behind tensor \"" +
                             items[i - 1]->first.substr(0, 200) + "\"",
                         kDamaged});
  }
  return {};
}

}  // namespace

std::uint64_t dtype_bytes(std::string_view dtype) {
  for (const DtypeRow& row : kDtypes)
    if (row.name == dtype) return row.bytes;
  return 0;
}

Expected<std::uint64_t> header_bytes(std::span<const std::byte> head, std::uint64_t file_bytes, std::string_view name) {
  if (file_bytes < 8 || head.size() < 8)
    return make_error(StatusCode::data_corrupt,
                      {std::string(name), "too short for a safetensors file", count(file_bytes),
                       "at least 8 bytes (incomplete download?)", kDownloadAgain});
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint64_t>(head[i]);
  if (length > kMaxHeaderBytes)
    return make_error(StatusCode::data_corrupt, {std::string(name), "header length", count(length),
                                                 "at most " + count(kMaxHeaderBytes), kDamaged});
  if (length > file_bytes - 8) return incomplete(name, file_bytes, length + 8);
  return length;
}

Expected<Header> parse_header(std::span<const std::byte> head, std::uint64_t file_bytes, std::string_view name) {
  KTC_ASSIGN_OR_RETURN(const std::uint64_t length, header_bytes(head, file_bytes, name));
  if (length > head.size() - 8) return incomplete(name, head.size(), length + 8);
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, length);
  if (text.empty() || text[0] != '{')
    return make_error(StatusCode::data_corrupt, {std::string(name), "header is not valid JSON",
                                                 text.empty() ? "nothing" : "no { at byte 8", "an object", kDamaged});
  Header header;
  header.file_bytes = file_bytes;
  KTC_RETURN_IF_ERROR(parse_json(text, name, header));

  const std::uint64_t data_begin = 8 + length, data_bytes = file_bytes - data_begin;
  std::uint64_t needed = 0;
  for (auto& [tensor, info] : header.tensors) {
    KTC_RETURN_IF_ERROR(check_length(name, tensor, info));
    const std::uint64_t end = info.offset + info.bytes;  // data_offsets[1], which was read as a 64-bit number
    if (end > UINT64_MAX - data_begin)
      return make_error(StatusCode::data_corrupt, {tensor_place(name, tensor), "data_offsets end", std::to_string(end),
                                                   "at most " + std::to_string(data_bytes), kDamaged});
    needed = std::max(needed, end);
  }
  if (needed > data_bytes) return incomplete(name, file_bytes, data_begin + needed);
  for (auto& [tensor, info] : header.tensors) info.offset += data_begin;
  KTC_RETURN_IF_ERROR(check_overlaps(name, header));
  return header;
}

}  // namespace ktc::safetensors
