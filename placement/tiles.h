// When tile kernels (AMX) serve instead of vector kernels, and how finely activations are scaled: measured choices, in
// one place for memory bounds and for kt-tile-cpu.
//
// Both kernels read the same weights, so a threshold changes speed and scratch, never results. Measured on a machine
// whose vector kernels run at the memory's rate up to about 8 rows (docs/kernels.md): the two meet at 8 to 9 rows for
// int8, 9 to 10 for int4 with row scales, 12 to 16 for int4 groups, where tiles leave the tile registers once per
// group.
#pragma once

#include <cstdint>

#include "placement/target.h"
#include "runtime/formats/formats.h"

namespace ktc::placement {

constexpr std::uint32_t kGranule = 64;  // input features per scale of int8 activations: 1.0 to 1.4 % error of a layer
                                        // against 2 to 4 % with one scale per row
constexpr std::uint32_t kFewestTileRows = 9;  // the smallest threshold below: scratch for it suffices for any

// From how many rows of one matrix tile kernels serve weights of a format; 0: never, as the target has none.
std::uint32_t tile_rows(const CpuTarget& cpu, Format weights, std::uint32_t group);

}  // namespace ktc::placement
