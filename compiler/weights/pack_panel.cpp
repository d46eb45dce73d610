#include "compiler/weights/pack_panel.h"

#include <algorithm>
#include <cstring>

namespace ktc::compiler {
namespace {

constexpr std::uint64_t kRowBytes = 64;  // one byte row of a block: 16 features of 4 codes, or of 2 bf16

std::byte* panel_of(const PanelLayout& layout, std::span<std::byte> matrix, const PanelLayout::Place& place) {
  return matrix.data() + place.panel * layout.panel_bytes;
}

void pack_scales(const PanelLayout& layout, const PanelLayout::Place& place, const float* scales, std::byte* panel) {
  const std::uint64_t count = layout.group == 0 ? 1 : (layout.columns + layout.group - 1) / layout.group;
  for (std::uint64_t g = 0; g < count; ++g) {
    std::byte* at = panel + layout.scale_offset(g, place.block) + place.lane * layout.scale_bytes;
    if (layout.scale_bytes == 4) {
      std::memcpy(at, &scales[g], 4);
    } else {
      const std::uint16_t bits = f32_to_bf16(scales[g]);
      std::memcpy(at, &bits, 2);
    }
  }
}

// Blocks of bytes, [k / 4][feature][k % 4]; `offset` turns a signed code into the stored one.
void pack_bytes(const PanelLayout& layout, const std::uint8_t* codes, std::uint8_t offset, std::byte* panel,
                const PanelLayout::Place& place) {
  for (std::uint64_t k = 0; k < layout.columns; k += 4) {
    std::byte* at = panel + layout.block_offset(k / kBlockColumns, place.block) + k % kBlockColumns / 4 * kRowBytes +
                    place.lane * 4;
    const std::uint64_t n = std::min<std::uint64_t>(4, layout.columns - k);
    for (std::uint64_t i = 0; i < n; ++i)
      at[i] = static_cast<std::byte>(static_cast<std::uint8_t>(codes[k + i] + offset));
  }
}

void pack_nibbles(const PanelLayout& layout, const std::int8_t* codes, std::byte* panel,
                  const PanelLayout::Place& place) {
  const auto nibble = [&](std::uint64_t k) { return static_cast<unsigned>(k < layout.columns ? codes[k] + 8 : 8); };
  for (std::uint64_t kb = 0; kb < layout.k_blocks; ++kb) {
    std::byte* block = panel + layout.block_offset(kb, place.block);
    for (std::uint64_t k = 0; k < kBlockColumns / 2; ++k) {
      const std::uint64_t low = kb * kBlockColumns + k;
      block[k / 4 * kRowBytes + place.lane * 4 + k % 4] = static_cast<std::byte>(nibble(low) | nibble(low + 32) << 4);
    }
  }
}

}  // namespace

void clear_panels(const PanelLayout& layout, std::span<std::byte> matrix) {
  const int zero = layout.format == Format::int8 ? 0x80 : layout.format == Format::int4 ? 0x88 : 0;
  for (std::uint64_t p = 0; p < layout.panels; ++p) {
    std::byte* panel = matrix.data() + p * layout.panel_bytes;
    std::memset(panel, 0, layout.head_bytes);
    std::memset(panel + layout.head_bytes, zero, layout.panel_bytes - layout.head_bytes);
  }
}

void pack_panel_codes(const PanelLayout& layout, std::uint64_t row, const std::int8_t* codes, const float* scales,
                      std::span<std::byte> matrix) {
  const PanelLayout::Place place = layout.place_of(row);
  std::byte* panel = panel_of(layout, matrix, place);
  pack_scales(layout, place, scales, panel);
  if (layout.format == Format::int4) {
    pack_nibbles(layout, codes, panel, place);
  } else {
    pack_bytes(layout, reinterpret_cast<const std::uint8_t*>(codes), 128, panel, place);
  }
}

void pack_panel_fp8(const PanelLayout& layout, std::uint64_t row, const std::uint8_t* codes, const float* scales,
                    std::span<std::byte> matrix) {
  const PanelLayout::Place place = layout.place_of(row);
  std::byte* panel = panel_of(layout, matrix, place);
  pack_scales(layout, place, scales, panel);
  pack_bytes(layout, codes, 0, panel, place);
}

void pack_panel_bf16(const PanelLayout& layout, std::uint64_t row, const std::uint16_t* values,
                     std::span<std::byte> matrix) {
  const PanelLayout::Place place = layout.place_of(row);
  std::byte* panel = panel_of(layout, matrix, place);
  for (std::uint64_t k = 0; k < layout.columns; ++k) {
    const std::uint64_t inner = k % kBlockColumns;
    std::byte* at = panel + layout.block_offset(k / kBlockColumns, place.block) + inner / 32 * 1024 +
                    inner % 32 / 2 * kRowBytes + place.lane * 4 + inner % 2 * 2;
    std::memcpy(at, &values[k], 2);
  }
}

}  // namespace ktc::compiler
