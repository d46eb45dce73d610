// From how many rows of one matrix tile kernels (AMX) serve instead of vector kernels: measured, and the one table that kt-tile-cpu
// and ktc-bench read. Both kernels read the same panels and give the same bits: a threshold changes speed and scratch alone.
//
// On a machine whose vector kernels run at the memory's rate up to about 8 rows the two meet at 8 to 9 rows for int8, 9 to 10 for
// int4 with row scales, 12 to 16 for int4 groups, where tiles leave the tile registers once per group, at 4 for bf16, which tiles
// take as it lies, and at 6 to 7 for fp8 (docs/kernels.md).
#pragma once

#include <cstdint>

#include "runtime/formats/formats.h"

namespace ktc {

// 0: weights of this format have no tile kernels.
constexpr std::uint32_t tile_rows(Format weights, std::uint32_t group) {
  switch (weights) {
    case Format::int8: return 9;
    case Format::int4: return group == 0 ? 11 : 13;
    case Format::bf16: return 4;
    case Format::fp8: return 7;
    default: return 0;
  }
}

}  // namespace ktc
