// The results of `ktc-bench experts` for people and for programs.
#pragma once

#include <string>

#include "tools/ktc/bench_experts.h"

namespace ktc::bench {

std::string to_table(const ExpertsOptions& options, const ExpertsResult& result);

// Every rate in units per second, every time in microseconds, every spread as {"low", "median", "high"} (quartiles).
std::string to_json(const ExpertsOptions& options, const ExpertsResult& result);

// The processor's name as the system gives it; "unknown" where it does not.
std::string cpu_name();

}  // namespace ktc::bench
