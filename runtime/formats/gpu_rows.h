// The packing `gpu_rows`: int8, int4 and fp8 matrices as GPU kernels read them, one output feature after the other. Sizes and
// places only. (f32 and bf16 matrices on a GPU are row_major.)
//
//   matrix = codes [rows][row_bytes] | scales [rows][groups], padded to 256 bytes
//   row_bytes: columns padded to 128, codes of int8 (signed, one byte), fp8 (E4M3, one byte), int4 (two columns per byte, the
//   even one in the low nibble, unsigned q + 8, padding 8)
//   scales: int8, fp8 f32; int4 bf16 for groups, f32 for one scale per row. groups = 1 for group 0, else ceil(columns / group).
// Codes and scales are those of the panel packing (panel.h) of the same format and group: repacking changes no value.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/formats/formats.h"

namespace ktc {

struct GpuRowsLayout {
  Format format = Format::int8;
  std::uint32_t group = 0;
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t row_bytes = 0;      // of codes
  std::uint64_t groups = 1;
  std::uint64_t scale_bytes = 4;    // of one scale
  std::uint64_t scales_offset = 0;  // in the matrix
  std::uint64_t matrix_bytes = 0;
};

// nullopt: a format without this packing, a group that it does not have, no rows or columns, or 64-bit overflow.
std::optional<GpuRowsLayout> gpu_rows_layout(Format format, std::uint32_t group, std::uint64_t rows, std::uint64_t columns);

}  // namespace ktc
