// When tile kernels (AMX) serve instead of vector kernels on a target, and how finely activations are scaled: measured choices, in
// one place for memory bounds and for kt-tile-cpu.
#pragma once

#include <cstdint>

#include "placement/target.h"
#include "runtime/formats/tile_rows.h"

namespace ktc::placement {

constexpr std::uint32_t kGranule = 64;  // input features per scale of int8 activations: 1.0 to 1.4 % error of a layer
                                        // against 2 to 4 % with one scale per row

// From how many rows of one matrix tile kernels serve weights of a format (runtime/formats/tile_rows.h); 0: never, as the
// target has none.
std::uint32_t tile_rows(const CpuTarget& cpu, Format weights, std::uint32_t group);

}  // namespace ktc::placement
