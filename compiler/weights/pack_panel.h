// Writes one matrix in the packing `panel` or `panel_paired` (runtime/formats/panel.h), row by row. Pure functions on
// memory. Threading: rows of one matrix may be written by several threads; no two rows share a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/formats/panel.h"

namespace ktc::compiler {

// Everything that decodes to zero: codes of zero, scales of zero. Rows are written over it; what no row covers is
// padding.
void clear_panels(const PanelLayout& layout, std::span<std::byte> matrix);

// One output feature of an int8 or int4 matrix: `columns` codes, and as many scales as the layout has groups for the
// real columns (1 with row scales). Scales of bf16 layouts must be representable.
void pack_panel_codes(const PanelLayout& layout, std::uint64_t row, const std::int8_t* codes, const float* scales,
                      std::span<std::byte> matrix);

// One output feature of an fp8 matrix: E4M3 codes as they are.
void pack_panel_fp8(const PanelLayout& layout, std::uint64_t row, const std::uint8_t* codes, const float* scales,
                    std::span<std::byte> matrix);

// One output feature of a bf16 matrix.
void pack_panel_bf16(const PanelLayout& layout, std::uint64_t row, const std::uint16_t* values,
                     std::span<std::byte> matrix);

}  // namespace ktc::compiler
