// Prefill whose experts of the CPU pass through a GPU (batch.stream_chunk): from how many tokens on a step does that, and which share
// of the experts the CPU computes meanwhile. Pure functions over the cost model.
//
// The threshold is the fewest tokens N from which on a streamed step of N is predicted to be faster by kStreamMargin than steps of at most `chunk`
// tokens whose experts the CPU computes: it copies all experts however few tokens there are, and the CPU's time grows with them. A
// policy may state another (batch.stream_from).
#pragma once

#include <cstdint>
#include <string>

#include "placement/cost_model.h"
#include "placement/place.h"
#include "runtime/formats/expert_share.h"

namespace ktc::placement {

// Of the CPU's time: what predictions are worth.
constexpr double kStreamMargin = 0.85;

// Errors: those of the cost model. A policy without stream_chunk, or a model without experts to stream: nothing is streamed.
Expected<StreamChoice> choose_streaming(const CostModel& cost, const std::vector<HotExperts>& hot, const Policy& policy);

// "streamed from 412 tokens: 412: 201.3 ms, 201.9 on the CPU; 512: ...".
std::string describe(const StreamChoice& choice);

}  // namespace ktc::placement
