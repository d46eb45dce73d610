#include "runtime/formats/gpu_rows.h"

namespace ktc {
namespace {

constexpr std::uint64_t kMostDimension = std::uint64_t{1} << 40;  // keeps the sizes of one row in 64 bits

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace

std::optional<GpuRowsLayout> gpu_rows_layout(Format format, std::uint32_t group, std::uint64_t rows, std::uint64_t columns) {
  if (!takes_packing(format, Packing::gpu_rows) || !has_group(format, group)) return std::nullopt;
  if (rows == 0 || columns == 0 || rows > kMostDimension || columns > kMostDimension) return std::nullopt;
  GpuRowsLayout layout;
  layout.format = format;
  layout.group = group;
  layout.rows = rows;
  layout.columns = columns;
  layout.row_bytes = packed_row_bytes(format, Packing::gpu_rows, columns);
  layout.groups = group == 0 ? 1 : ceil_div(columns, group);
  layout.scale_bytes = format == Format::int4 && group != 0 ? 2 : 4;
  std::uint64_t scales = 0, end = 0;
  if (__builtin_mul_overflow(rows, layout.row_bytes, &layout.scales_offset) ||
      __builtin_mul_overflow(rows, layout.groups * layout.scale_bytes, &scales) ||
      __builtin_add_overflow(layout.scales_offset, scales, &end) || __builtin_add_overflow(end, 255, &end))
    return std::nullopt;
  layout.matrix_bytes = end / 256 * 256;
  return layout;
}

}  // namespace ktc
