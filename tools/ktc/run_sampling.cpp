#include "tools/ktc/run_sampling.h"

#include <fmt/format.h>

namespace ktc::run {
namespace {

// Takes the value that is in force and notes it unless it is what nobody needs to hear about.
template <typename T, typename Stated>
void choose(const char* name, const std::optional<T>& flag, Stated stated, T& value, std::string& text) {
  const T silent = value;
  const char* source = nullptr;
  if (flag) {
    value = *flag;
    source = "command line";
  } else if (stated >= 0) {
    value = static_cast<T>(stated);
    source = "plan";
  }
  if (source == nullptr || value == silent) return;
  text += fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", name, value, source);
}

}  // namespace

ResolvedSampling resolve_sampling(const Options& options, const planfb::SamplingDefaultsT* defaults,
                                  std::uint64_t random_seed) {
  const planfb::SamplingDefaultsT silent;
  const planfb::SamplingDefaultsT& plan = defaults != nullptr ? *defaults : silent;
  ResolvedSampling result;
  exec::SamplingParameters& p = result.parameters;
  std::string penalty, filters, ignored;
  choose("repetition penalty", options.repetition_penalty, plan.repetition_penalty, p.repetition_penalty, penalty);
  choose("temperature", options.temperature, plan.temperature, p.temperature, filters);
  if (p.temperature == 0) {
    result.description = "greedy" + (penalty.empty() ? "" : ", " + penalty);
    choose("top-k", options.top_k, -1, p.top_k, ignored);
    choose("top-p", options.top_p, -1, p.top_p, ignored);
    choose("min-p", options.min_p, -1, p.min_p, ignored);
    if (!ignored.empty()) result.description += fmt::format("; without --temperature no effect of {}", ignored);
    p.seed = options.seed.value_or(0);
    return result;
  }
  choose("top-k", options.top_k, plan.top_k, p.top_k, filters);
  choose("top-p", options.top_p, plan.top_p, p.top_p, filters);
  choose("min-p", options.min_p, plan.min_p, p.min_p, filters);
  p.seed = options.seed.value_or(random_seed);
  result.description = filters + (penalty.empty() ? "" : ", " + penalty) +
                       fmt::format(", seed {} ({})", p.seed, options.seed ? "command line" : "random");
  return result;
}

}  // namespace ktc::run
