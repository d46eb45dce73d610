// An open plan that is ready to run.
#pragma once

#include <algorithm>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/exec/executor.h"
#include "runtime/plan/plan.h"
#include "tools/ktc/run_experts.h"
#include "tools/ktc/run_options.h"
#include "tools/ktc/run_statistics.h"
#include "tools/ktc/run_trace.h"

namespace ktc::run {

struct Session {
  std::shared_ptr<const plan::OpenPlan> plan;
  std::unique_ptr<TraceFile> trace;  // before the executor, which writes to it
  std::unique_ptr<ExpertRecorder> experts;  // likewise
  std::unique_ptr<exec::Executor> executor;
  double load_seconds = 0;
  bool busy_shares = false;

  const planfb::ModelT& model() const { return *plan->plan.model; }
  // As Executor::tokens_per_sequence, but before anything is allocated.
  std::uint32_t longest_sequence() const {
    std::uint32_t longest = ~0u;
    for (const auto& cache : plan->plan.caches) longest = std::min(longest, cache->tokens_per_sequence);
    return longest;
  }
  // What the run was asked to record, when its steps ran.
  Status write_records() const { return experts == nullptr ? Status() : experts->write(); }
  Statistics statistics(const exec::Throughput& throughput) const {
    Statistics statistics = collect_statistics(load_seconds, *executor, throughput);
    statistics.busy_shares = busy_shares;
    return statistics;
  }
};

// The plan alone, verified: enough to check a request before memory is allocated.
Expected<Session> open_plan(const Options& options);

// "PLACE: longer than the KV cache: found FOUND, expected at most MOST; REMEDY".
Status longer_than_cache(std::string place, std::string found, std::uint64_t most);

// Adds the executor; says on standard error what was loaded.
// `moments`: as in exec::ExecutorOptions.
Status open_executor(const Options& options, Session& session, exec::Moments* moments = nullptr);

}  // namespace ktc::run
