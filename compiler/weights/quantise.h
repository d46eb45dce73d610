// Rounds rows of f32 to codes with a scale per row or per group of input features. Pure functions; no files.
//
// A weight w of a group with scale s becomes code c = round(w / s), to nearest even, cut to -127..127 (int8) or -7..7
// (int4); it decodes to c * s. Without a search s = amax / 127 or amax / 7. The search shrinks s where that lowers the
// squared error of the group, sum of importance_k * (w_k - c_k * s)^2: large weights are cut, and the many small ones
// get a finer grid. Candidates: ratios of amax on a grid, then the least-squares scale of the best one's codes,
// repeated while that helps. The ratio 1 is always a candidate, so no group is worse than plain rounding. int4 groups
// keep their scales in bf16: a candidate is rounded first, and codes belong to the rounded scale. Deterministic to the
// bit: no fused operations, sums in a fixed order of lanes.
//
// fp8: s = amax / 448, codes are the nearest E4M3 numbers to w / s, ties to even. No search: a step of E4M3 is relative to the
// weight itself, so a finer grid for small weights is there already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/formats/formats.h"

namespace ktc::compiler {

struct QuantiseSpec {
  Format format = Format::int8;  // int8, int4 or fp8
  std::uint32_t group = 0;       // input features per scale; 0: one scale for the row
  bool clip_search = true;       // false: plain rounding
};

// Sums over one row, without importance: for relative errors ||w - wq|| / ||w||.
struct RowQuality {
  double squared_error = 0;
  double squared_norm = 0;
  bool finite = true;  // false: a weight is NaN or infinite; codes and scales mean nothing then
};

constexpr int kMostCodeInt8 = 127;
constexpr int kMostCodeInt4 = 7;

// Scales of a row of `columns` features: 1, or ceil(columns / group).
std::size_t scales_of(const QuantiseSpec& spec, std::size_t columns);

// `importance` has a second moment per input feature, or is empty: all equal. `codes` has one per weight, `scales` has
// scales_of(...); a code of fp8 is the bits of its byte. A group that is zero, or too small for a normal scale, gets scale 0 and codes 0.
RowQuality quantise_row(std::span<const float> weights, std::span<const float> importance, const QuantiseSpec& spec,
                        std::int8_t* codes, float* scales);

}  // namespace ktc::compiler
