// Reference: panels of the CPU as rows of the GPU.
#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/panel.h"
#include "runtime/kernels/cuda/kernel_table.h"
#include "runtime/kernels/cuda/reference_math.h"

namespace ktc::gpu {

using namespace reference;

namespace {

// Raw code of (row, column): a byte of int8 (signed), fp8, the nibble q + 8 of int4, or bf16 bits.
std::uint32_t panel_code(const PanelLayout& layout, const std::byte* matrix, std::size_t row, std::size_t column) {
  const PanelLayout::Place place = layout.place_of(row);
  const std::byte* block = matrix + place.panel * layout.panel_bytes + layout.block_offset(column / kBlockColumns, place.block);
  const std::size_t k = column % kBlockColumns, lane = place.lane;
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(block[at]); };
  switch (layout.format) {
    case Format::bf16: {
      const std::size_t at = k / 32 * 1024 + (k % 32 / 2 * kBlockFeatures + lane) * 4 + k % 2 * 2;
      return byte(at) | byte(at + 1) << 8;
    }
    case Format::int4: {
      const std::uint32_t two = byte(k % 32 / 4 * 64 + lane * 4 + k % 4);
      return k < 32 ? two & 15 : two >> 4;
    }
    case Format::int8: return (byte(k / 4 * 64 + lane * 4 + k % 4) - 128) & 255;
    default: return byte(k / 4 * 64 + lane * 4 + k % 4);
  }
}

float panel_scale(const PanelLayout& layout, const std::byte* matrix, std::size_t row, std::size_t group) {
  const PanelLayout::Place place = layout.place_of(row);
  const std::byte* scales = matrix + place.panel * layout.panel_bytes + layout.scale_offset(group, place.block);
  return load(scales, layout.scale_bytes == 2 ? Format::bf16 : Format::f32, place.lane);
}

float decoded(const PanelLayout& layout, const std::byte* matrix, std::size_t row, std::size_t column) {
  const std::uint32_t code = panel_code(layout, matrix, row, column);
  if (layout.format == Format::bf16) return float_of(code << 16);
  const float scale = panel_scale(layout, matrix, row, layout.group == 0 ? 0 : column / layout.group);
  if (layout.format == Format::fp8) return e4m3_to_f32(static_cast<std::uint8_t>(code)) * scale;
  if (layout.format == Format::int8) return static_cast<std::int8_t>(code) * scale;
  return static_cast<float>(static_cast<int>(code) - 8) * scale;
}

}  // namespace

int unpack_reference(const UnpackArgs& a, void*) {
  const auto layout = panel_layout(a.from.format, a.from.group, a.from.packing == Packing::panel_paired, a.from.rows, a.from.columns);
  if (!layout || a.from.rows != a.to.rows || a.from.columns != a.to.columns) return 1;
  auto* to_data = const_cast<std::byte*>(a.to.data);
  for (std::size_t i = 0; i < a.count; ++i) {
    const std::byte* from = a.from.data + (a.first + i) * a.from.matrix_bytes;
    std::byte* to = to_data + i * a.to.matrix_bytes;
    if (a.to.packing == Packing::row_major) {
      if (a.to.format != Format::bf16) return 1;
      for (std::size_t n = 0; n < a.to.rows; ++n)
        for (std::size_t k = 0; k < a.to.columns; ++k)
          store(to + n * a.to.row_bytes, Format::bf16, k, decoded(*layout, from, n, k));
      continue;
    }
    const auto rows = gpu_rows_layout(a.to.format, a.to.group, a.to.rows, a.to.columns);
    if (!rows || a.to.format != a.from.format || a.to.group != a.from.group) return 1;
    std::memset(to, 0, static_cast<std::size_t>(rows->matrix_bytes));
    for (std::size_t n = 0; n < a.to.rows; ++n) {
      std::byte* codes = to + n * rows->row_bytes;
      if (a.to.format == Format::int4) std::memset(codes, 0x88, static_cast<std::size_t>(rows->row_bytes));
      for (std::size_t k = 0; k < a.to.columns; ++k) {
        const std::uint32_t code = panel_code(*layout, from, n, k);
        if (a.to.format == Format::int4) {
          const std::byte keep = codes[k / 2] & static_cast<std::byte>(k % 2 == 0 ? 0xf0 : 0x0f);
          codes[k / 2] = keep | static_cast<std::byte>(k % 2 == 0 ? code : code << 4);
        } else {
          codes[k] = static_cast<std::byte>(code);
        }
      }
      for (std::size_t g = 0; g < rows->groups; ++g)
        store(to + rows->scales_offset, rows->scale_bytes == 2 ? Format::bf16 : Format::f32, n * rows->groups + g,
              panel_scale(*layout, from, n, g));
    }
  }
  return 0;
}

}  // namespace ktc::gpu
