// Which routed experts live on GPUs: pure functions from a budget of slots to sets of (layer, expert) pairs.
//
// Layers here are MoE layers whose experts may move, in the order of the model. Every function keeps the budget exactly
// (sum of the sizes = min(budget, all experts)), repeats no expert and gives equal output for equal input on every
// machine.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/policy.h"
#include "runtime/base/status.h"

namespace ktc::placement {

// Activations counted per layer and expert: counts[layer][expert]. Empty: no statistics.
using ExpertCounts = std::vector<std::vector<std::uint64_t>>;

// Ids of the chosen experts of each layer, ascending.
using HotSets = std::vector<std::vector<std::uint32_t>>;

struct StrategyInput {
  std::vector<std::uint32_t> experts;  // per layer: how many there are
  std::uint64_t budget = 0;            // (layer, expert) pairs
  ExpertCounts counts;                 // parallel to `experts`, or empty
  std::uint64_t seed = 1;              // of `random`
};

// The same number in every layer, the remainder to the first layers; a layer that is full passes its share on.
// Within a layer the lowest ids, or the most frequent ones where there are counts (ties: lower id).
HotSets choose_uniform(const StrategyInput& input);

// Whole layers from the first; the last one that gets any is filled like a layer of choose_uniform.
HotSets choose_front_loading(const StrategyInput& input);

// Pairs drawn without repetition, by the project's own generator: equal seeds give equal sets everywhere.
HotSets choose_random(const StrategyInput& input);

// The pairs with the highest counts of all layers together; ties: lower layer, then lower id. Needs counts.
HotSets choose_frequency(const StrategyInput& input);

// Errors: counts whose shape is not that of `experts`; `frequency` without counts; `auto`, which needs a cost
// (auto_experts.h).
Expected<HotSets> choose(Strategy strategy, const StrategyInput& input);

}  // namespace ktc::placement
