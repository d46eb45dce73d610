#include "runtime/exec/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/kernels/cuda/sample_math.h"

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

std::uint64_t finalise(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t position) {
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd: the increment of SplitMix64
  const std::uint64_t stream = finalise(seed + golden);
  return finalise(finalise(stream + (position + 1) * golden));
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
  return static_cast<double>(random_bits(seed, position) >> 11) * 0x1p-53;
}

SampleRow sample_row(const SamplingParameters& p, std::uint64_t position) {
  SampleRow row = {};
  row.greedy = p.temperature == 0 || p.top_k == 1;
  row.draw = random_bits(p.seed, position) >> 11 << 11;
  const auto temperature = static_cast<double>(p.temperature);
  row.scale = row.greedy ? 0 : 1.4426950408889634 / temperature;
  row.min_p_margin = temperature * std::log(static_cast<double>(p.min_p));
  if (p.min_p <= 0) row.min_p_margin = -std::numeric_limits<double>::infinity();
  row.top_p = static_cast<double>(p.top_p);
  row.top_k = p.top_k;
  return row;
}

Status not_finite(std::uint64_t position, std::int64_t id, std::string found) {
  return make_error(StatusCode::data_corrupt, {.place = fmt::format("logits at position {}, id {}", position, id),
                                               .found = std::move(found),
                                               .expected = "finite numbers",
                                               .remedy = "check the weights with ktc-plan verify --weights"});
}

Expected<std::int32_t> Sampler::sample(std::span<const float> logits, const SamplingParameters& parameters,
                                       std::uint64_t position, std::span<const std::int32_t> history) {
  if (logits.empty()) return make_error(StatusCode::internal, {.place = "sampling", .what = "a row without logits"});
  if (!all_finite(logits)) {
    const auto bad = std::find_if_not(logits.begin(), logits.end(), is_finite);
    return not_finite(position, bad - logits.begin(), fmt::format("{}", *bad));
  }
  if (parameters.repetition_penalty != 1) logits = penalise(logits, parameters.repetition_penalty, history);
  const std::int32_t best_id = arg_max(logits);
  const SampleRow row = sample_row(parameters, position);
  if (row.greedy) return best_id;

  const float best = logits[static_cast<std::size_t>(best_id)];
  take_candidates(logits, parameters.top_k);
  weigh(row, best, logits.size());
  if (row.top_p < 1) keep_top_p(row.top_p);
  if (parameters.min_p > 0)
    std::erase_if(candidates_, [&](const Candidate& c) { return !gpu::sample_min_p_keeps(c.logit, best, row.min_p_margin); });
  return draw(row);
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
  for (std::size_t id = 0; id < first; ++id) candidates_.push_back({logits[id], static_cast<std::int32_t>(id), 0});
  if (all) return;
  std::make_heap(candidates_.begin(), candidates_.end(), ranks_higher);
  for (std::size_t id = first; id < logits.size(); ++id) {
    if (logits[id] <= candidates_.front().logit) continue;  // an equal one has the higher id
    std::pop_heap(candidates_.begin(), candidates_.end(), ranks_higher);
    candidates_.back() = {logits[id], static_cast<std::int32_t>(id), 0};
    std::push_heap(candidates_.begin(), candidates_.end(), ranks_higher);
  }
  sort_by_id();
}

void Sampler::sort_by_id() {
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

void Sampler::weigh(const SampleRow& row, float best, std::size_t columns) {
  const unsigned shift = gpu::sample_shift(static_cast<std::uint32_t>(columns));
  for (Candidate& c : candidates_) c.weight = gpu::sample_weight(c.logit, best, row.scale, shift);
}

// A heap gives the descending order only as far as it is needed: a handful of candidates in practice.
void Sampler::keep_top_p(double top_p) {
  std::uint64_t total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const std::uint64_t wanted = gpu::sample_wanted(total, top_p);
  // Those below an equal share of the rest have less than the rest together, so the others reach top_p without them.
  const std::uint64_t least = (total - wanted) / candidates_.size();
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < least; });

  std::make_heap(candidates_.begin(), candidates_.end(), ranks_lower);
  std::uint64_t mass = 0;
  auto end = candidates_.end();  // [end, candidates_.end()) holds those that stay
  while (end != candidates_.begin() && mass < wanted) {
    std::pop_heap(candidates_.begin(), end, ranks_lower);
    --end;
    mass += end->weight;
  }
  candidates_.erase(candidates_.begin(), end);
  sort_by_id();
}

// The first whose sum exceeds the target: never one whose weight is 0, as the best of all stays.
std::int32_t Sampler::draw(const SampleRow& row) const {
  std::uint64_t total = 0, reached = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const std::uint64_t target = gpu::sample_target(row.draw, total);
  for (const Candidate& c : candidates_)
    if ((reached += c.weight) > target) return c.id;
  return candidates_.back().id;
}

}  // namespace ktc::exec
