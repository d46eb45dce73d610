// The packing `panel` done plainly, element by element, from codes and scales: what kernels are tested against. Unlike the
// compiler's packer it is neither fast nor streamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/formats/panel.h"

namespace ktc::test {

// A quantised matrix. Codes: signed integers (int8, int4), raw E4M3 bytes (fp8), bf16 bits (bf16), [rows, columns].
// Scales: [rows, groups] with groups = 1 for one scale per row, none for bf16; those of int4 groups are bf16 values.
struct PanelMatrix {
  PanelLayout layout;
  std::vector<std::int32_t> codes;
  std::vector<float> scales;

  std::size_t scale_groups() const { return layout.groups == 0 ? 1 : layout.groups; }
  double value(std::size_t row, std::size_t column) const;
};

double e4m3_value(std::uint8_t code);  // NaN for the two codes of NaN

// The feature of (panel, block, lane), or layout.rows and more for padding.
std::size_t panel_feature(const PanelLayout& layout, std::size_t panel, std::size_t block, std::size_t lane);

// One panel: layout.panel_bytes bytes at `out`.
void pack_panel(const PanelMatrix& matrix, std::size_t panel, std::byte* out);

}  // namespace ktc::test
