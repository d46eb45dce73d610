#include "runtime/exec/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace ktc::exec {
namespace {

Status out_of_range(const char* name, double value, const char* expected) {
  return make_error(StatusCode::invalid_argument,
                    {.place = name, .found = fmt::format("{}", value), .expected = expected});
}

bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}

// Both loops vectorise: the common case must not cost a branch per logit.
bool all_finite(std::span<const float> row) {
  std::uint32_t bad = 0;
  for (const float x : row) bad |= static_cast<std::uint32_t>(!is_finite(x));
  return bad == 0;
}

// Eight chains, because one would wait for the latency of each comparison.
std::int32_t arg_max(std::span<const float> row) {
  constexpr std::size_t kChains = 8;
  float chains[kChains];
  std::fill_n(chains, kChains, row[0]);
  std::size_t i = 0;
  for (; i + kChains <= row.size(); i += kChains) {
    for (std::size_t c = 0; c < kChains; ++c) chains[c] = row[i + c] > chains[c] ? row[i + c] : chains[c];
  }
  for (; i < row.size(); ++i) chains[0] = std::max(chains[0], row[i]);
  const float best = *std::max_element(chains, chains + kChains);
  return static_cast<std::int32_t>(std::find(row.begin(), row.end(), best) - row.begin());
}

// exp((logit - best) / T): the probability up to a common factor; best is subtracted first so that nothing overflows.
double relative_probability(float logit, float best, float temperature) {
  return std::exp((static_cast<double>(logit) - best) / temperature);
}

std::uint64_t finalise(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

// Written so that NaN fails every check.
Status check_sampling(const SamplingParameters& p) {
  if (!(p.temperature >= 0) || !is_finite(p.temperature)) {
    return out_of_range("temperature", p.temperature, "a finite number of at least 0");
  }
  if (p.top_k < 0) return out_of_range("top-k", p.top_k, "an integer of at least 0");
  if (!(p.top_p > 0 && p.top_p <= 1)) return out_of_range("top-p", p.top_p, "a number above 0 and at most 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return out_of_range("min-p", p.min_p, "a number from 0 to 1");
  if (!(p.repetition_penalty > 0) || !is_finite(p.repetition_penalty)) {
    return out_of_range("repetition-penalty", p.repetition_penalty, "a finite number above 0");
  }
  return {};
}

double uniform(std::uint64_t seed, std::uint64_t position) {
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd: the increment of SplitMix64
  const std::uint64_t stream = finalise(seed + golden);
  const std::uint64_t bits = finalise(finalise(stream + (position + 1) * golden));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Expected<std::int32_t> Sampler::sample(std::span<const float> logits, const SamplingParameters& parameters,
                                       std::uint64_t position, std::span<const std::int32_t> history) {
  if (logits.empty()) return make_error(StatusCode::internal, {.place = "sampling", .what = "a row without logits"});
  if (!all_finite(logits)) {
    const auto bad = std::find_if_not(logits.begin(), logits.end(), is_finite);
    return make_error(StatusCode::data_corrupt,
                      {.place = fmt::format("logits at position {}, id {}", position, bad - logits.begin()),
                       .found = fmt::format("{}", *bad),
                       .expected = "finite numbers",
                       .remedy = "check the weights with ktc-plan verify --weights"});
  }
  if (parameters.repetition_penalty != 1) logits = penalise(logits, parameters.repetition_penalty, history);
  const std::int32_t best_id = arg_max(logits);
  if (parameters.temperature == 0 || parameters.top_k == 1) return best_id;

  const float best = logits[static_cast<std::size_t>(best_id)];
  take_candidates(logits, parameters.top_k);
  if (parameters.top_p < 1) keep_top_p(parameters, best);
  if (parameters.min_p > 0) {
    const double least = best + static_cast<double>(parameters.temperature) * std::log(parameters.min_p);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < least; });
  }
  return draw(parameters, position, best);
}

std::span<const float> Sampler::penalise(std::span<const float> logits, float penalty,
                                         std::span<const std::int32_t> history) {
  penalised_.assign(logits.begin(), logits.end());
  seen_.assign(logits.size(), false);
  for (const std::int32_t id : history) {
    const auto index = static_cast<std::size_t>(id);
    if (id < 0 || index >= logits.size() || seen_[index]) continue;
    seen_[index] = true;
    float& logit = penalised_[index];
    logit = logit > 0 ? logit / penalty : logit * penalty;
    // a tiny penalty may overflow; the largest float keeps the order
    logit = std::clamp(logit, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
  }
  return penalised_;
}

// The k largest (all for 0) in the order of ids. The smallest of those seen so far stays at the front of a heap: after
// the first few hundred logits hardly any gets past it, so a pass costs one comparison each.
void Sampler::take_candidates(std::span<const float> logits, std::int32_t k) {
  candidates_.clear();
  const bool all = k <= 0 || static_cast<std::size_t>(k) >= logits.size();
  const std::size_t first = all ? logits.size() : static_cast<std::size_t>(k);
  for (std::size_t id = 0; id < first; ++id) candidates_.push_back({logits[id], static_cast<std::int32_t>(id)});
  if (all) return;
  std::make_heap(candidates_.begin(), candidates_.end(), ranks_higher);
  for (std::size_t id = first; id < logits.size(); ++id) {
    if (logits[id] <= candidates_.front().logit) continue;  // an equal one has the higher id
    std::pop_heap(candidates_.begin(), candidates_.end(), ranks_higher);
    candidates_.back() = {logits[id], static_cast<std::int32_t>(id)};
    std::push_heap(candidates_.begin(), candidates_.end(), ranks_higher);
  }
  sort_by_id();
}

void Sampler::sort_by_id() {
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

// A heap gives the descending order only as far as it is needed: a handful of candidates in practice.
void Sampler::keep_top_p(const SamplingParameters& parameters, float best) {
  double total = 0;
  for (const Candidate& c : candidates_) total += relative_probability(c.logit, best, parameters.temperature);
  const double wanted = total * parameters.top_p;
  // Those below the share `least` of n candidates have less than 1 - top_p together, so the others reach top_p without
  // them. Half of that, so that rounding cannot matter.
  const double least = 0.5 * (1 - parameters.top_p) * total / static_cast<double>(candidates_.size());
  const double lowest = best + parameters.temperature * std::log(least);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < lowest; });

  std::make_heap(candidates_.begin(), candidates_.end(), ranks_lower);
  double mass = 0;
  auto end = candidates_.end();  // [end, candidates_.end()) holds those that stay
  while (end != candidates_.begin() && mass < wanted) {
    std::pop_heap(candidates_.begin(), end, ranks_lower);
    --end;
    mass += relative_probability(end->logit, best, parameters.temperature);
  }
  candidates_.erase(candidates_.begin(), end);
  sort_by_id();
}

std::int32_t Sampler::draw(const SamplingParameters& parameters, std::uint64_t position, float best) {
  cumulative_.clear();
  double mass = 0;
  for (const Candidate& c : candidates_) {
    mass += relative_probability(c.logit, best, parameters.temperature);
    cumulative_.push_back(mass);
  }
  // the first whose sum exceeds the target: never one whose probability underflowed to 0
  const double target = uniform(parameters.seed, position) * mass;
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), target);
  // u < 1, but the product may round up to the sum; then it is the last that added to it
  const auto place =
      found != cumulative_.end() ? found : std::lower_bound(cumulative_.begin(), cumulative_.end(), mass);
  return candidates_[static_cast<std::size_t>(place - cumulative_.begin())].id;
}

}  // namespace ktc::exec
