// Strategy `auto`: hot experts that minimise a cost, under a budget of slots for each GPU.
//
// The cost is a stranger here: a number for every layer and its hot experts, and one for the whole. Where the whole is a constant
// plus the sum over layers (no deferral), one GPU and costs that fall with the popularity of the hot experts, the answer is the
// best there is; otherwise it is a good one. It is never worse, by the cost of the whole, than any of the four other strategies,
// spread over the GPUs as spread_experts.h says. It may leave slots free, where a further hot expert would cost time.
//
// How: within a layer the most popular experts come first. How many each layer gets is a knapsack of multiple choice, solved
// exactly by dynamic programming over layers and slots (in steps of several experts where that would be too large). With several
// GPUs each layer's hot experts are first together on one of them: the layers begin where they cost least, and move while that lowers
// the sum. Single experts of a layer are exchanged where that lowers its cost. Slots that are free then take more experts of layers
// whose GPU is full, where that pays; where there are few experts in all, single ones are traded between layers and GPUs, because
// steps of one expert decide there. Equal input gives equal output.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "placement/spread_experts.h"
#include "placement/strategies.h"

namespace ktc::placement {

struct HotCost {
  // The layer alone, with ids[gpu] hot on each GPU. Called often: about experts * GPUs times a layer.
  std::function<double(std::size_t layer, const std::vector<std::vector<std::uint32_t>>& ids)> layer;
  // The whole.
  std::function<double(const HotChoice&)> total;
};

// gpus.slots: the budget of each GPU, at least one; input.budget bounds their sum. Errors: those of choose().
Expected<HotChoice> choose_auto(const StrategyInput& input, const SpreadInput& gpus, const HotCost& cost);

}  // namespace ktc::placement
