// Which sampling parameters are in force, and who stated each.
#pragma once

#include <string>

#include "runtime/exec/sampling.h"
#include "runtime/plan/plan.h"
#include "tools/ktc/run_options.h"

namespace ktc::run {

struct ResolvedSampling {
  exec::SamplingParameters parameters;
  std::string description;  // "temperature 0.7 (command line), top-p 0.8 (plan), seed 5 (random)"
};

// The command line wins over the plan, which wins over greedy. `defaults` may be null; negative values there are not
// stated.
ResolvedSampling resolve_sampling(const Options& options, const planfb::SamplingDefaultsT* defaults,
                                  std::uint64_t random_seed);

}  // namespace ktc::run
