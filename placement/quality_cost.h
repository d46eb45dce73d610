// What formats and deferral are expected to cost in quality: an estimate, from figures that were measured on one small model.
//
// The unit is percent of perplexity over the same model in bf16 without deferral, as the reference of models/demo has it for
// routed experts of 32, 8 of them taken: int8/row 0.03, int4/row 1.58, int4/64 1.32, int4/32 1.06; 1 to 8 of 8 experts late 0.10,
// 0.25, 0.51, 1.07, 2.26, 4.78, 11.9, 63.3. fp8 is this project's own measurement (docs/performance.md), 0.34. int4/128 is taken
// between 64 and row. Costs of hot and cold experts are weighed by the pairs that each serves; costs add up. Larger models lose
// less; only the order of plans is meant.
#pragma once

#include <cstdint>

#include "placement/place.h"

namespace ktc::placement {

// Of routed experts in a format; 0 for f32 and bf16. `group`: input features per scale, 0: a row.
double format_cost_percent(Format weights, std::uint32_t group);

// Of `late` of a token's `top_k` experts late, a fraction of an expert allowed.
double deferral_cost_percent(double late, std::uint32_t top_k);

// Of a placement. `hit_rate`: share of routed pairs that hot experts serve. Formats of other modules do not count.
double expected_cost_percent(const models::ModelDesc& model, const Placement& placement, const Policy& policy, double hit_rate);

}  // namespace ktc::placement
