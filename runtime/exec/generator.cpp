#include "runtime/exec/generator.h"

#include <fmt/format.h>

namespace ktc::exec {
namespace {

double rate(std::uint64_t count, std::chrono::nanoseconds time) {
  return time.count() > 0 ? static_cast<double>(count) / std::chrono::duration<double>(time).count() : 0;
}

}  // namespace

void Throughput::add(const StepReport& report) {
  if (report.kind == StepKind::extend) {
    prompt_tokens += report.prompt_tokens;
    prefill_time += report.duration;
  } else if (report.kind == StepKind::decode) {
    decode_tokens += report.decode_tokens;
    decode_time += report.duration;
  }
}

double Throughput::prefill_tokens_per_second() const {
  return rate(prompt_tokens, prefill_time);
}
double Throughput::decode_tokens_per_second() const {
  return rate(decode_tokens, decode_time);
}

Expected<GenerateResult> generate(Executor& executor, std::vector<Request> requests, const std::atomic<bool>* stop,
                                  SchedulerOptions options) {
  GenerateResult result;
  result.completions.resize(requests.size());
  Scheduler scheduler(executor, options);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_finish = [&completion = result.completions[i]](RequestId, Completion&& done) {
      completion = std::move(done);
    };
    Expected<RequestId> id = scheduler.submit(std::move(requests[i]));
    if (!id.ok()) return requests.size() == 1 ? id.status() : id.status().with_context(fmt::format("prompt {}", i + 1));
  }
  bool stopped = false;
  while (!scheduler.idle()) {
    if (!stopped && stop != nullptr && stop->load(std::memory_order_relaxed)) {
      for (RequestId id = 1; id <= requests.size(); ++id) scheduler.cancel(id);
      stopped = true;
    }
    result.throughput.add(scheduler.step());
  }
  return result;
}

}  // namespace ktc::exec
