#include "runtime/exec/expert_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace ktc::exec {
namespace {

void add(UpdateTrial& to, const UpdateTrial& from) {
  to.pairs += from.pairs;
  to.hits += from.hits;
  to.initial_hits += from.initial_hits;
  to.cold_pairs += from.cold_pairs;
  to.cold_seconds += from.cold_seconds;
  to.moves += from.moves;
  to.cost_seconds += from.cost_seconds;
}

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::vector<ExpertSwap> choose_swaps(std::span<const double> counts, std::span<const bool> hot, double doubt) {
  std::vector<std::uint32_t> out, in;
  for (std::uint32_t e = 0; e < counts.size(); ++e) (hot[e] ? out : in).push_back(e);
  const auto less = [&](std::uint32_t a, std::uint32_t b) { return counts[a] != counts[b] ? counts[a] < counts[b] : a < b; };
  std::sort(out.begin(), out.end(), less);
  std::sort(in.rbegin(), in.rend(), less);
  std::vector<ExpertSwap> swaps;
  for (std::size_t i = 0; i < std::min(out.size(), in.size()); ++i) {
    const double a = counts[in[i]], b = counts[out[i]];
    // the variance of a difference of counts is their sum
    if (a - b <= doubt * std::sqrt(a + b)) break;
    swaps.push_back({0, in[i], out[i], a - b, 0});
  }
  return swaps;
}

double UpdateTrial::gain_seconds() const {
  if (cold_pairs == 0) return 0;
  return (static_cast<double>(hits) - static_cast<double>(initial_hits)) * cold_seconds / static_cast<double>(cold_pairs);
}

ExpertUpdate::ExpertUpdate(UpdateRules rules, std::vector<std::vector<std::int32_t>> slots) : rules_(rules) {
  for (std::vector<std::int32_t>& layer_slots : slots) {
    Layer layer;
    for (const std::int32_t slot : layer_slots) layer.initial.push_back(slot >= 0);
    layer.decayed.resize(layer_slots.size());
    layer.fresh.resize(layer_slots.size());
    layer.slots = std::move(layer_slots);
    layers_.push_back(std::move(layer));
  }
}

std::size_t ExpertUpdate::count(std::uint32_t index, std::span<const std::int32_t> ids, bool costs) {
  Layer& layer = layers_[index];
  std::size_t cold = 0;
  for (const std::int32_t id : ids) {
    const auto e = static_cast<std::uint32_t>(id);
    if (e >= layer.fresh.size()) continue;
    ++layer.fresh[e];
    const bool hit = layer.slots[e] >= 0;
    cold += !hit;
    if (!costs) continue;
    ++trial_.pairs;
    trial_.hits += hit;
    trial_.cold_pairs += !hit;
    trial_.initial_hits += layer.initial[e];
  }
  return cold;
}

double ExpertUpdate::pair_seconds() const {
  const std::uint64_t pairs = before_.cold_pairs + trial_.cold_pairs;
  return pairs == 0 ? 0 : (before_.cold_seconds + trial_.cold_seconds) / static_cast<double>(pairs);
}

std::vector<ExpertSwap> ExpertUpdate::decide() {
  const double keep = std::pow(rules_.keep, static_cast<double>(tokens_) / rules_.every_tokens);
  weight_ = weight_ * keep + static_cast<double>(tokens_);
  tokens_ = 0;
  std::vector<ExpertSwap> all;
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const std::size_t experts = layer.slots.size();
    const auto hot = std::make_unique<bool[]>(experts);
    for (std::size_t e = 0; e < experts; ++e) {
      layer.decayed[e] = layer.decayed[e] * keep + layer.fresh[e];
      layer.fresh[e] = 0;
      hot[e] = layer.slots[e] >= 0;
    }
    for (ExpertSwap& swap : choose_swaps(layer.decayed, {hot.get(), experts}, rules_.doubt)) {
      swap.layer = l;
      swap.gain = swap.lead / weight_;
      all.push_back(swap);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const ExpertSwap& a, const ExpertSwap& b) { return a.lead > b.lead; });
  trial_ended_ = measured_ >= std::uint64_t{rules_.trial_rounds} * rules_.every_tokens;
  if (trial_ended_) {
    measured_ = 0;
    last_trial_ = trial_;
    add(before_, trial_);
    trial_ = {};
  }
  return all;
}

void ExpertUpdate::moved(const ExpertSwap& swap) {
  std::vector<std::int32_t>& slots = layers_[swap.layer].slots;
  slots[swap.in] = slots[swap.out];
  slots[swap.out] = -1;
  ++trial_.moves;
}

UpdateTrial ExpertUpdate::total() const {
  UpdateTrial total = before_;
  add(total, trial_);
  return total;
}

std::string to_text(const UpdateTrial& t) {
  return fmt::format("moved {} expert{}, hit rate {:.1f} % instead of {:.1f} %, saved {:.1f} ms for {:.1f} ms", t.moves, t.moves == 1 ? "" : "s",
                     percent(t.hits, t.pairs), percent(t.initial_hits, t.pairs), 1e3 * t.gain_seconds(), 1e3 * t.cost_seconds);
}

}  // namespace ktc::exec
