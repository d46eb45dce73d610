#include "placement/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace ktc::placement {
namespace {

std::uint64_t all_experts(const StrategyInput& input) {
  return std::accumulate(input.experts.begin(), input.experts.end(), std::uint64_t{0});
}

// The `count` best ids of one layer, ascending.
std::vector<std::uint32_t> best_ids(const StrategyInput& input, std::size_t layer, std::uint64_t count) {
  std::vector<std::uint32_t> ids(input.experts[layer]);
  std::iota(ids.begin(), ids.end(), 0u);
  if (!input.counts.empty()) {
    const auto& counts = input.counts[layer];
    std::sort(ids.begin(), ids.end(),
              [&](std::uint32_t a, std::uint32_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  }
  ids.resize(std::min<std::uint64_t>(count, ids.size()));
  std::sort(ids.begin(), ids.end());
  return ids;
}

HotSets from_pairs(const StrategyInput& input, std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs) {
  std::sort(pairs.begin(), pairs.end());
  HotSets sets(input.experts.size());
  for (const auto& [layer, expert] : pairs) sets[layer].push_back(expert);
  return sets;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> all_pairs(const StrategyInput& input) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (std::uint32_t layer = 0; layer < input.experts.size(); ++layer)
    for (std::uint32_t expert = 0; expert < input.experts[layer]; ++expert) pairs.emplace_back(layer, expert);
  return pairs;
}

// SplitMix64 (Steele, Lea and Flood 2014): the standard library's distributions differ between implementations.
struct Generator {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n), without bias: values of the last, incomplete block are drawn again.
  std::uint64_t below(std::uint64_t n) {
    const std::uint64_t rejected = (UINT64_MAX - n + 1) % n;
    std::uint64_t value = next();
    while (value > UINT64_MAX - rejected) value = next();
    return value % n;
  }
};

}  // namespace

HotSets choose_uniform(const StrategyInput& input) {
  const std::size_t layers = input.experts.size();
  std::vector<std::uint64_t> sizes(layers, 0);
  std::uint64_t left = std::min(input.budget, all_experts(input));
  while (left > 0) {
    const auto open = static_cast<std::uint64_t>(std::count_if(
        input.experts.begin(), input.experts.end(),
        [&](const std::uint32_t& e) { return sizes[static_cast<std::size_t>(&e - input.experts.data())] < e; }));
    const std::uint64_t each = left / open;
    std::uint64_t remainder = left % open;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (sizes[layer] >= input.experts[layer]) continue;
      std::uint64_t share = each;
      if (remainder > 0) ++share, --remainder;
      share = std::min(share, input.experts[layer] - sizes[layer]);
      sizes[layer] += share;
      left -= share;
    }
  }
  HotSets sets;
  for (std::size_t layer = 0; layer < layers; ++layer) sets.push_back(best_ids(input, layer, sizes[layer]));
  return sets;
}

HotSets choose_front_loading(const StrategyInput& input) {
  HotSets sets;
  std::uint64_t left = input.budget;
  for (std::size_t layer = 0; layer < input.experts.size(); ++layer) {
    sets.push_back(best_ids(input, layer, left));
    left -= sets.back().size();
  }
  return sets;
}

HotSets choose_random(const StrategyInput& input) {
  auto pairs = all_pairs(input);
  const std::uint64_t count = std::min<std::uint64_t>(input.budget, pairs.size());
  Generator generator{input.seed};
  for (std::uint64_t i = 0; i < count; ++i) std::swap(pairs[i], pairs[i + generator.below(pairs.size() - i)]);
  pairs.resize(count);
  return from_pairs(input, std::move(pairs));
}

HotSets choose_frequency(const StrategyInput& input) {
  auto pairs = all_pairs(input);
  std::sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
    const std::uint64_t count_a = input.counts[a.first][a.second], count_b = input.counts[b.first][b.second];
    return count_a != count_b ? count_a > count_b : a < b;
  });
  pairs.resize(std::min<std::uint64_t>(input.budget, pairs.size()));
  return from_pairs(input, std::move(pairs));
}

Expected<HotSets> choose(Strategy strategy, const StrategyInput& input) {
  if (!input.counts.empty()) {
    bool same = input.counts.size() == input.experts.size();
    for (std::size_t layer = 0; same && layer < input.experts.size(); ++layer)
      same = input.counts[layer].size() == input.experts[layer];
    if (!same)
      return make_error(StatusCode::invalid_argument,
                        {"expert statistics", "counts of another model", fmt::format("{} rows", input.counts.size()),
                         fmt::format("one count for every expert of {} layers", input.experts.size()),
                         "record them with this model"});
  }
  switch (strategy) {
    case Strategy::uniform: return choose_uniform(input);
    case Strategy::front_loading: return choose_front_loading(input);
    case Strategy::random: return choose_random(input);
    case Strategy::frequency:
      if (input.counts.empty())
        return make_error(StatusCode::invalid_argument,
                          {"experts.strategy", "frequency without counts", {}, {}, "give statistics, or take uniform"});
      return choose_frequency(input);
    case Strategy::auto_:
      return Status(StatusCode::internal, "experts.strategy: auto is chosen by choose_auto; please report this");
  }
  return Status(StatusCode::internal, "experts.strategy: an unknown value; please report this");
}

}  // namespace ktc::placement
