// Runs a fixed list of requests to their ends and measures: what a command-line tool or a test needs of the scheduler.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/exec/scheduler.h"

namespace ktc::exec {

// Prefill: ids of prompts over the time of all extend steps. Decode: tokens over the time of all decode steps; tokens
// that were decoded beside a prompt count on neither side. Rates are 0 when there was no such step.
struct Throughput {
  std::uint64_t prompt_tokens = 0, decode_tokens = 0;
  std::chrono::nanoseconds prefill_time{}, decode_time{};

  void add(const StepReport& report);
  double prefill_tokens_per_second() const;
  double decode_tokens_per_second() const;
};

struct GenerateResult {
  std::vector<Completion> completions;  // in the order of the requests
  Throughput throughput;
};

// on_finish of the requests is replaced; on_token is used as it stands. RequestId 1 is the first request. `stop` may be
// null; once it is true, every unfinished request ends as cancelled within one step. Errors: the first request that the
// scheduler refuses ("prompt 2: …" when there are several), before anything runs. A failure while running is in the
// completion of the request.
Expected<GenerateResult> generate(Executor& executor, std::vector<Request> requests,
                                  const std::atomic<bool>* stop = nullptr, SchedulerOptions options = {});

}  // namespace ktc::exec
