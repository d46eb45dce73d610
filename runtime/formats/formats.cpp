#include "runtime/formats/formats.h"

#include <array>

#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/panel.h"

namespace ktc {
namespace {

constexpr unsigned W = static_cast<unsigned>(FormatKind::weight);
constexpr unsigned A = static_cast<unsigned>(FormatKind::activation);
constexpr unsigned K = static_cast<unsigned>(FormatKind::cache);

struct FormatRow {
  std::string_view name;
  int bits;
  unsigned kinds;
};
constexpr FormatRow kFormats[] = {
#define KTC_FORMAT(name, bits, kinds) {#name, bits, kinds},
#include "runtime/formats/formats.def"
};

struct PackingRow {
  std::string_view name;
  std::uint64_t row_alignment;
};
constexpr PackingRow kPackings[] = {
#define KTC_PACKING(name, row_alignment) {#name, row_alignment},
#include "runtime/formats/packings.def"
};

const FormatRow& row(Format format) { return kFormats[static_cast<std::size_t>(format)]; }

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& out) { return !__builtin_mul_overflow(a, b, &out); }

}  // namespace

bool is_valid(Format format) { return static_cast<std::size_t>(format) < std::size(kFormats); }
bool is_valid(Packing packing) { return static_cast<std::size_t>(packing) < std::size(kPackings); }

std::string_view to_string(Format format) { return is_valid(format) ? row(format).name : "invalid"; }
std::string_view to_string(Packing packing) {
  return is_valid(packing) ? kPackings[static_cast<std::size_t>(packing)].name : "invalid";
}

std::optional<Format> parse_format(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kFormats); ++i)
    if (kFormats[i].name == name) return static_cast<Format>(i);
  return std::nullopt;
}

std::optional<Packing> parse_packing(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kPackings); ++i)
    if (kPackings[i].name == name) return static_cast<Packing>(i);
  return std::nullopt;
}

bool format_serves(Format format, FormatKind kind) {
  return is_valid(format) && (row(format).kinds & static_cast<unsigned>(kind)) != 0;
}

std::string list_formats(FormatKind kind) {
  std::string text;
  for (std::size_t i = 0; i < std::size(kFormats); ++i) {
    if (!format_serves(static_cast<Format>(i), kind)) continue;
    if (!text.empty()) text += ", ";
    text += kFormats[i].name;
  }
  return text;
}

int format_bits(Format format) { return row(format).bits; }

std::uint64_t packed_row_bytes(Format format, Packing packing, std::uint64_t columns) {
  if (packing == Packing::gpu_rows) columns = (columns + 127) / 128 * 128;
  const std::uint64_t alignment = kPackings[static_cast<std::size_t>(packing)].row_alignment;
  const std::uint64_t bytes = (columns * static_cast<std::uint64_t>(format_bits(format)) + 7) / 8;
  return (bytes + alignment - 1) / alignment * alignment;
}

bool has_group(Format format, std::uint32_t group) {
  if (group == 0) return true;
  if (format == Format::int4) return group == 32 || group == 64 || group == 128;
  return format == Format::fp8 && group == 128;
}

bool takes_packing(Format format, Packing packing) {
  if (packing == Packing::row_major) return format == Format::f32 || format == Format::bf16;
  if (packing == Packing::gpu_rows) return format == Format::int8 || format == Format::int4 || format == Format::fp8;
  return format == Format::bf16 || format == Format::int8 || format == Format::int4 || format == Format::fp8;
}

std::optional<std::uint64_t> packed_bytes(Format format, Packing packing, std::uint64_t batch, std::uint64_t rows,
                                          std::uint64_t columns, std::uint32_t group) {
  std::uint64_t total = 0;
  if (!takes_packing(format, packing)) return std::nullopt;
  if (packing == Packing::row_major) {
    if (group != 0 || columns > (std::uint64_t{1} << 48)) return std::nullopt;  // keeps packed_row_bytes free of overflow
    if (!multiply(packed_row_bytes(format, packing, columns), rows, total)) return std::nullopt;
  } else if (packing == Packing::gpu_rows) {
    const auto layout = gpu_rows_layout(format, group, rows, columns);
    if (!layout) return std::nullopt;
    total = layout->matrix_bytes;
  } else {
    const auto layout = panel_layout(format, group, packing == Packing::panel_paired, rows, columns);
    if (!layout) return std::nullopt;
    total = layout->matrix_bytes;
  }
  if (!multiply(total, batch, total)) return std::nullopt;
  return total;
}

}  // namespace ktc
