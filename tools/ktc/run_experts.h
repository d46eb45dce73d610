// --record-experts FILE: how often routers chose each expert (runtime/formats/expert_statistics.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/formats/expert_statistics.h"
#include "runtime/plan/plan.h"

namespace ktc::run {

// Adds to what the file has: recording several texts one after the other onto one file gives the statistics of all of them.
class ExpertRecorder {
 public:
  // Reads FILE where there is one. Errors: a model without routed experts; a file that cannot be read, is no such file or is of
  // another model; a folder that is not there. All before any weight is read.
  static Expected<std::unique_ptr<ExpertRecorder>> open(std::filesystem::path file, const planfb::PlanT& plan);

  std::span<std::uint64_t> counts() { return counts_; }  // for exec::ExecutorOptions::expert_counts
  // The counts from now on; those that the file had stay.
  void reset();
  // Replaces the file at once: never half of one. Says how many tokens it has now. May be called again.
  Status write();

 private:
  struct Layer {
    std::uint32_t number = 0;  // model layer
    std::uint32_t top_k = 0;
  };
  std::filesystem::path file_;
  ExpertStatistics before_;
  std::vector<Layer> layers_;
  std::uint32_t experts_ = 0;
  std::vector<std::uint64_t> counts_;  // [model.layers][model.experts]
};

// Errors name `file`. Sums of counts beyond 64 bits are refused.
Expected<ExpertStatistics> parse_statistics(std::string_view text, const std::string& file);

}  // namespace ktc::run
