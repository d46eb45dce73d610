// How often each routed expert was chosen: what `ktc-run --record-experts FILE` writes and `experts.statistics` of a policy reads
// (placement/expert_statistics.h).
//
//   {"tokens": 4096, "layers": {"3": [17, 0, 512, ...], "4": [...]}}
//
// JSON. Keys of `layers` are model layers, those with experts alone; a list has one count per expert, by id: in how many of the
// `tokens` rows the router chose it. The counts of a layer add up to tokens times the router's top_k.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ktc {

struct ExpertStatistics {
  std::uint64_t tokens = 0;
  std::map<std::uint32_t, std::vector<std::uint64_t>> layers;  // by model layer
};

// The text of the file: one line per layer, ascending. Equal statistics give equal text.
std::string to_json(const ExpertStatistics& statistics);

}  // namespace ktc
