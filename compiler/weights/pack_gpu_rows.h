// Writes one matrix in the packing `gpu_rows` (runtime/formats/gpu_rows.h), row by row. Codes and scales are what pack_panel.h
// takes: a matrix on a GPU has the values of the same matrix in panels. Pure functions on memory.
// Threading: rows of one matrix may be written by several threads; no two rows share a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/formats/gpu_rows.h"

namespace ktc::compiler {

// Everything that decodes to zero. Rows are written over it; what no row covers is padding.
void clear_gpu_rows(const GpuRowsLayout& layout, std::span<std::byte> matrix);

// One output feature: `columns` codes, signed for int8 and int4, the bits of E4M3 for fp8; layout.groups scales, which for groups
// of int4 must be representable in bf16.
void pack_gpu_row(const GpuRowsLayout& layout, std::uint64_t row, const std::int8_t* codes, const float* scales,
                  std::span<std::byte> matrix);

}  // namespace ktc::compiler
