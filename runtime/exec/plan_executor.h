// What the executors of all plans say alike: the limits of the plan's entries and cache, and what the CPU's side is.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/exec/cpu_side.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/step_request.h"

namespace ktc::exec {

class PlanExecutor : public Executor {
 public:
  StepLimits extend_limits() const override { return largest(bounds_, false); }
  std::uint32_t best_tokens(std::uint32_t waiting) const override { return exec::best_tokens(bounds_, waiting); }
  StepLimits decode_limits() const override { return largest(bounds_, true); }
  std::uint32_t page_tokens() const override { return cache().page_tokens; }
  std::uint32_t page_count() const override { return cache().pages; }
  std::uint32_t tokens_per_sequence() const override { return cache().tokens_per_sequence; }
  const plan::OpenPlan& plan() const override { return *plan_; }
  int threads() const override { return cpu_.workers->threads(); }
  int nodes() const override { return static_cast<int>(cpu_.workers->nodes()); }
  IsaLevel isa() const override { return cpu_.kernels.level; }
  Busy busy() const override { return busy_; }

 protected:
  PlanExecutor(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options)
      : plan_(std::move(plan)), options_(options), bounds_(entry_bounds(plan_->plan)) {}

  const planfb::CacheT& cache() const { return *plan_->plan.caches[0]; }

  const std::shared_ptr<const plan::OpenPlan> plan_;
  const ExecutorOptions options_;
  const std::vector<EntryBounds> bounds_;  // of the plan's entries that can be run, in their order
  CpuSide cpu_;
  Busy busy_;
};

}  // namespace ktc::exec
