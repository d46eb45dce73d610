#include "placement/spread_experts.h"

#include <algorithm>

namespace ktc::placement {
namespace {

using Ids = std::vector<std::uint32_t>;

class Spread {
 public:
  explicit Spread(const SpreadInput& input, std::size_t layers)
      : input_(input), free_(input.slots), choice_{std::vector<HotSets>(input.slots.size(), HotSets(layers))} {}

  // The first of `ids`, as many as fit; returns the rest.
  Ids take(std::size_t layer, std::uint32_t gpu, Ids ids) {
    const std::uint64_t n = std::min<std::uint64_t>(free_[gpu], ids.size());
    const auto end = ids.begin() + static_cast<std::ptrdiff_t>(n);
    choice_.sets[gpu][layer].assign(ids.begin(), end);
    std::sort(choice_.sets[gpu][layer].begin(), choice_.sets[gpu][layer].end());
    free_[gpu] -= n;
    return {end, ids.end()};
  }

  Ids at_home(std::size_t layer, Ids ids) {
    const std::uint32_t home = input_.home[layer];
    if (home == kNoGpu || (input_.whole && free_[home] < ids.size())) return ids;
    return take(layer, home, std::move(ids));
  }

  void elsewhere(std::size_t layer, Ids ids) {
    while (!ids.empty()) {
      std::uint32_t to = kNoGpu;  // the smallest that has room for all, else the one with the most
      for (std::uint32_t g = 0; g < free_.size(); ++g) {
        if (free_[g] == 0 || (input_.whole && free_[g] < ids.size())) continue;
        const bool all = free_[g] >= ids.size();
        const bool best = to != kNoGpu && free_[to] >= ids.size();
        if (to == kNoGpu || (all && !best) || (all == best && (all ? free_[g] < free_[to] : free_[g] > free_[to]))) to = g;
      }
      if (to == kNoGpu) return;
      ids = take(layer, to, std::move(ids));
    }
  }

  HotChoice result() { return std::move(choice_); }

 private:
  const SpreadInput& input_;
  std::vector<std::uint64_t> free_;
  HotChoice choice_;
};

}  // namespace

HotChoice spread(const HotSets& hot, const ExpertCounts& counts, const SpreadInput& input) {
  Spread spread(input, hot.size());
  std::vector<Ids> left(hot.size());
  for (std::size_t l = 0; l < hot.size(); ++l) {
    Ids ids = hot[l];
    if (!counts.empty())
      std::stable_sort(ids.begin(), ids.end(), [&](std::uint32_t a, std::uint32_t b) { return counts[l][a] > counts[l][b]; });
    left[l] = spread.at_home(l, std::move(ids));
  }
  for (std::size_t l = 0; l < hot.size(); ++l) spread.elsewhere(l, std::move(left[l]));
  return spread.result();
}

std::uint64_t count_of(const HotSets& sets) {
  std::uint64_t count = 0;
  for (const Ids& ids : sets) count += ids.size();
  return count;
}

std::uint64_t count_of(const HotChoice& choice) {
  std::uint64_t count = 0;
  for (const HotSets& sets : choice.sets) count += count_of(sets);
  return count;
}

}  // namespace ktc::placement
