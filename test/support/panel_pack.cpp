#include "test/support/panel_pack.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace ktc::test {
namespace {

void put_scale(const PanelLayout& layout, float value, std::byte* at) {
  if (layout.scale_bytes == 4) {
    std::memcpy(at, &value, 4);
  } else {
    const std::uint16_t bits = f32_to_bf16(value);
    std::memcpy(at, &bits, 2);
  }
}

void put_code(Format format, std::int32_t code, std::size_t k, std::size_t lane, std::byte* block) {
  switch (format) {
    case Format::int8: block[k / 4 * 64 + lane * 4 + k % 4] = static_cast<std::byte>(code + 128); break;
    case Format::fp8: block[k / 4 * 64 + lane * 4 + k % 4] = static_cast<std::byte>(code); break;
    case Format::int4: {
      std::byte& pair = block[k % 32 / 4 * 64 + lane * 4 + k % 4];
      pair |= static_cast<std::byte>((code + 8) << (k < 32 ? 0 : 4));
      break;
    }
    default: {
      const std::uint16_t bits = static_cast<std::uint16_t>(code);
      std::memcpy(block + k / 32 * 1024 + k % 32 / 2 * 64 + lane * 4 + k % 2 * 2, &bits, 2);
    }
  }
}

}  // namespace

double e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double sign = code & 0x80 ? -1 : 1;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
}

double PanelMatrix::value(std::size_t row, std::size_t column) const {
  const std::int32_t code = codes[row * layout.columns + column];
  if (layout.format == Format::bf16) return bf16_to_f32(static_cast<std::uint16_t>(code));
  const double plain = layout.format == Format::fp8 ? e4m3_value(static_cast<std::uint8_t>(code)) : code;
  return plain * scales[row * scale_groups() + (layout.group == 0 ? 0 : column / layout.group)];
}

std::size_t panel_feature(const PanelLayout& layout, std::size_t panel, std::size_t block, std::size_t lane) {
  if (!layout.paired) return panel * kPanelFeatures + block * kBlockFeatures + lane;
  const std::size_t half = layout.rows / 2, inner = panel * kBlockFeatures + lane;
  return inner < half ? block * half + inner : layout.rows;
}

void pack_panel(const PanelMatrix& matrix, std::size_t panel, std::byte* out) {
  const PanelLayout& layout = matrix.layout;
  std::memset(out, 0, layout.panel_bytes);
  for (std::size_t block = 0; block < 2; ++block)
    for (std::size_t lane = 0; lane < kBlockFeatures; ++lane) {
      const std::size_t row = panel_feature(layout, panel, block, lane);
      const bool valid = row < layout.rows;
      if (layout.format != Format::bf16)
        for (std::size_t g = 0; g < matrix.scale_groups(); ++g)
          put_scale(layout, valid ? matrix.scales[row * matrix.scale_groups() + g] : 0.0f,
                    out + layout.scale_offset(g, block) + lane * layout.scale_bytes);
      for (std::size_t k = 0; k < layout.k_blocks * kBlockColumns; ++k) {
        const std::int32_t code = valid && k < layout.columns ? matrix.codes[row * layout.columns + k] : 0;
        put_code(layout.format, code, k % kBlockColumns, lane, out + layout.block_offset(k / kBlockColumns, block));
      }
    }
}

}  // namespace ktc::test
