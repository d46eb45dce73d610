#include "runtime/exec/result_cells.h"

#include <algorithm>
#include <cstring>

#include "runtime/formats/handoff_cells.h"

namespace ktc::exec {
namespace {

// f32_to_bf16 without branches, for many values at once.
void round_to_bf16(const float* from, std::size_t count, std::uint16_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, from[i]);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, nan = (bits >> 16) | 0x40u;
    to[i] = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

}  // namespace

// Of a panel 12 bytes of values go into each cell; behind the last value there are zeros.
void ResultCells::write(std::size_t row, std::size_t panel, const float* values) const {
  const std::size_t panels = static_cast<std::size_t>(cell_panels(columns));
  const std::size_t count = std::min<std::size_t>(kCellPanelColumns, columns - panel * kCellPanelColumns);
  std::byte* const to = cells + (row * panels + panel) * static_cast<std::size_t>(cells_per_panel(format) * kCellBytes);
  alignas(16) std::byte data[(kCellPanelColumns + 4) * sizeof(float)] = {};
  if (format == Format::bf16)
    round_to_bf16(values, count, reinterpret_cast<std::uint16_t*>(data));
  else
    std::memcpy(data, values, count * sizeof(float));
  const std::size_t each = static_cast<std::size_t>(cell_values(format));
  for (std::size_t first = 0, at = 0; first < count; first += each, ++at) write_cell(to + at * kCellBytes, data + at * 12, epoch);
}

}  // namespace ktc::exec
