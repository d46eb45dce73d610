#include "runtime/formats/panel.h"

namespace ktc {
namespace {

constexpr std::uint64_t kMostDimension = std::uint64_t{1} << 40;  // keeps every product below in 64 bits or checked

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }
std::uint64_t align64(std::uint64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

std::optional<PanelLayout> panel_layout(Format format, std::uint32_t group, bool paired, std::uint64_t rows,
                                        std::uint64_t columns) {
  if (!has_group(format, group) || rows == 0 || columns == 0 || rows > kMostDimension || columns > kMostDimension)
    return std::nullopt;
  if (paired && rows % 2 != 0) return std::nullopt;
  PanelLayout layout;
  layout.format = format;
  layout.group = group;
  layout.paired = paired;
  layout.rows = rows;
  layout.columns = columns;
  layout.k_blocks = ceil_div(columns, kBlockColumns);
  layout.panels = paired ? ceil_div(rows / 2, kBlockFeatures) : ceil_div(rows, kPanelFeatures);
  layout.groups = group == 0 ? 0 : ceil_div(layout.k_blocks * kBlockColumns, group);
  layout.scale_bytes = format == Format::int4 && group != 0 ? 2 : 4;
  switch (format) {
    case Format::int8:
    case Format::fp8: layout.block_bytes = 1024; break;
    case Format::int4: layout.block_bytes = 512; break;
    case Format::bf16: layout.block_bytes = 2048; break;
    default: return std::nullopt;
  }
  if (format != Format::bf16) layout.head_bytes = align64((group == 0 ? 1 : layout.groups) * kPanelFeatures * layout.scale_bytes);
  layout.panel_bytes = layout.head_bytes + layout.k_blocks * 2 * layout.block_bytes;
  if (__builtin_mul_overflow(layout.panel_bytes, layout.panels, &layout.matrix_bytes)) return std::nullopt;
  return layout;
}

PanelLayout::Place PanelLayout::place_of(std::uint64_t row) const {
  if (!paired) return {row / kPanelFeatures, row % kPanelFeatures / kBlockFeatures, row % kBlockFeatures};
  const std::uint64_t half = rows / 2, inner = row % half;
  return {inner / kBlockFeatures, row / half, inner % kBlockFeatures};
}

}  // namespace ktc
