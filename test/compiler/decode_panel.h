// Reads one element of a matrix in panels, from the description in runtime/formats/panel.h alone.
#pragma once

#include <cstring>
#include <span>

#include "compiler/weights/pack.h"
#include "runtime/formats/panel.h"

namespace ktc::compiler {

struct DecodedElement {
  float value;  // code * scale
  int code;     // signed; the bits of fp8; 0 for bf16
  float scale;  // 0 for bf16
};

// The element of block `block`, lane `lane` of panel `panel` at input feature k, padding included.
inline DecodedElement decode_place(const PanelLayout& layout, std::span<const std::byte> matrix, std::uint64_t panel,
                                   std::uint64_t block, std::uint64_t lane, std::uint64_t k) {
  const std::byte* at = matrix.data() + panel * layout.panel_bytes;
  const std::byte* data = at + layout.block_offset(k / 64, block);
  const std::uint64_t inner = k % 64;
  const auto byte = [&](std::uint64_t i) { return std::to_integer<int>(data[i]); };
  const auto bf16 = [](const std::byte* p) {
    std::uint16_t bits;
    std::memcpy(&bits, p, 2);
    return bf16_to_f32(bits);
  };
  if (layout.format == Format::bf16)
    return {bf16(data + ((inner / 32 * 16 + inner % 32 / 2) * 16 + lane) * 4 + inner % 2 * 2), 0, 0};
  int code = 0;
  if (layout.format == Format::int8) {
    code = byte((inner / 4 * 16 + lane) * 4 + inner % 4) - 128;
  } else if (layout.format == Format::fp8) {
    code = byte((inner / 4 * 16 + lane) * 4 + inner % 4);
  } else {
    const int both = byte((inner % 32 / 4 * 16 + lane) * 4 + inner % 4);
    code = (inner < 32 ? both & 15 : both >> 4) - 8;
  }
  const std::byte* scales = at + layout.scale_offset(layout.group == 0 ? 0 : k / layout.group, block);
  float scale;
  if (layout.scale_bytes == 4)
    std::memcpy(&scale, scales + lane * 4, 4);
  else
    scale = bf16(scales + lane * 2);
  float value = static_cast<float>(code);
  if (layout.format == Format::fp8) {
    const std::byte bits{static_cast<std::uint8_t>(code)};
    value = load_element(models::TensorType::f8_e4m3, &bits, 0);
  }
  return {value * scale, code, scale};
}

inline DecodedElement decode_panel(const PanelLayout& layout, std::span<const std::byte> matrix, std::uint64_t row,
                                   std::uint64_t k) {
  const PanelLayout::Place place = layout.place_of(row);
  return decode_place(layout, matrix, place.panel, place.block, place.lane, k);
}

}  // namespace ktc::compiler
