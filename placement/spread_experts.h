// Which GPU holds each hot expert, once a strategy has said which experts are hot: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/strategies.h"

namespace ktc::placement {

inline constexpr std::uint32_t kNoGpu = UINT32_MAX;

// Hot experts by GPU and layer: sets[gpu][layer], ids ascending, none on two GPUs.
struct HotChoice {
  std::vector<HotSets> sets;
};

struct SpreadInput {
  std::vector<std::uint64_t> slots;  // by GPU: experts that it has room for
  std::vector<std::uint32_t> home;   // by layer: the GPU whose router chooses among its experts; kNoGpu: none of these
  bool whole = false;                // a layer's hot experts stay together on one GPU
};

// A layer's hot experts go to its home as far as they fit, layer by layer, the most frequent first (`counts`: of all layers, or
// empty: the lowest ids). What is left of a layer goes to one other GPU, the smallest that has room for all of it, else to those with
// the most room. So few layers have experts away from home: each of these costs a transfer in every step. What finds no room is
// not in the result.
HotChoice spread(const HotSets& hot, const ExpertCounts& counts, const SpreadInput& input);

std::uint64_t count_of(const HotSets& sets);
std::uint64_t count_of(const HotChoice& choice);

}  // namespace ktc::placement
