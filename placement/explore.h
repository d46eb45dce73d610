// A sweep over the choices of a policy: every combination is placed, accounted and predicted. Pure functions; no weight is read.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "placement/cost_model.h"
#include "placement/place.h"

namespace ktc::placement {

// "int4", "int4/64", "int8", "native".
struct SweepFormat {
  std::string word;
  std::uint32_t group = 0;  // as PlaceSpec::group
};

// Each empty list stands for what the policy says.
struct SweepAxes {
  std::vector<Strategy> strategies;
  std::vector<ExpertBudget> on_gpu;
  std::vector<std::uint32_t> defer;    // max_per_token
  std::vector<SweepFormat> formats;    // of routed experts, hot and cold
};

// Values of flags; the errors name `flag`.
Expected<Strategy> parse_strategy(const std::string& flag, const std::string& text);
Expected<ExpertBudget> parse_on_gpu(const std::string& flag, const std::string& text);  // "10%", "12", "12GiB"
Expected<SweepFormat> parse_sweep_format(const std::string& flag, const std::string& text);

struct SweepRow {
  std::string strategy, on_gpu, format;  // as a flag would say them
  std::uint32_t defer = 0;
  Policy policy;                         // the base with these choices
  std::optional<std::string> refused;    // why there is no such plan: it does not fit, a format that no kernel takes
  Prediction prediction;                 // the rest is of plans that exist
  std::size_t hot = 0;                   // (layer, expert) pairs
  std::map<std::string, std::uint64_t> memory;  // bytes by device
  std::uint64_t gpu_memory = 0;                 // over all GPUs
  double quality_cost = 0;                      // percent of perplexity, quality_cost.h
  bool pareto = false;  // no other plan has at least its tokens/s with at most its GPU memory and quality cost, one of them better
  double tokens_per_second() const { return prediction.steps.empty() ? 0 : prediction.steps.front().tokens_per_second; }
};

// The policy with one combination. Where hot experts are asked for and the policy names no GPU for them: the target's first.
// Errors: a target without a GPU, a policy without a rule of class RoutedExperts to change the format of.
Expected<Policy> with_choices(const Policy& base, const Target& target, std::optional<Strategy> strategy,
                              const std::optional<ExpertBudget>& on_gpu, std::optional<std::uint32_t> defer,
                              const std::optional<SweepFormat>& format);

// Rows by predicted tokens/s of the first decode bucket, largest first; refused ones last, in the order of the axes. Rows that
// differ in nothing (strategies of no hot experts) are kept once. Errors: those of with_choices.
Expected<std::vector<SweepRow>> explore(const models::ModelDesc& model, const Policy& base, const Target& target,
                                        const SweepAxes& axes, const CostOptions& options = {});

}  // namespace ktc::placement
