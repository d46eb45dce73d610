#include "compiler/weights/pack_gpu_rows.h"

#include <cstring>

namespace ktc::compiler {

void clear_gpu_rows(const GpuRowsLayout& layout, std::span<std::byte> matrix) {
  std::memset(matrix.data(), layout.format == Format::int4 ? 0x88 : 0, layout.scales_offset);
  std::memset(matrix.data() + layout.scales_offset, 0, layout.matrix_bytes - layout.scales_offset);
}

void pack_gpu_row(const GpuRowsLayout& layout, std::uint64_t row, const std::int8_t* codes, const float* scales,
                  std::span<std::byte> matrix) {
  std::byte* out = matrix.data() + row * layout.row_bytes;
  if (layout.format == Format::int4) {
    for (std::uint64_t k = 0; k < layout.columns; k += 2) {
      const unsigned low = static_cast<unsigned>(codes[k] + 8);
      const unsigned high = k + 1 < layout.columns ? static_cast<unsigned>(codes[k + 1] + 8) : 8u;
      out[k / 2] = static_cast<std::byte>(low | high << 4);
    }
  } else {
    std::memcpy(out, codes, layout.columns);
  }
  std::byte* to = matrix.data() + layout.scales_offset + row * layout.groups * layout.scale_bytes;
  if (layout.scale_bytes == 4) {
    std::memcpy(to, scales, layout.groups * 4);
    return;
  }
  for (std::uint64_t g = 0; g < layout.groups; ++g) {
    const std::uint16_t bits = f32_to_bf16(scales[g]);
    std::memcpy(to + 2 * g, &bits, 2);
  }
}

}  // namespace ktc::compiler
