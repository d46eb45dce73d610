// Continuous batching: runs any number of requests over one executor, several sequences per step.
//
// Admission: first come, first served. The request at the head of the queue is admitted when a slot is free and the
// pool has the pages for its whole length, min(prompt + max_tokens - 1, tokens_per_sequence); it takes them all at
// once. An admitted request therefore never waits for another, so nothing can deadlock and nothing is ever evicted.
// Nobody overtakes the head.
//
// One step: while an admitted prompt is incomplete, an `extend` step: first every decoding sequence with its one token,
// so that a long prompt never stops the others, then the incomplete prompts, oldest first, with as many ids as still
// fit in the step's token limit. Otherwise a `decode` step of all sequences.
//
// Where the executor can choose tokens (Executor::most_begun), decode steps whose parameters allow it (device_samples) are begun and
// finished; and while no prompt waits, the next one is begun before the tokens of the last one are read, for all sequences that the
// last one does not end by length. A sequence that ends there all the same (a stop token, on_token, a cancellation) is carried along
// once more in vain: its pages may be given to others meanwhile, since devices and the CPU do steps in their order.
//
// Results: a sequence's tokens depend on its own request alone (executor.h, sampling.h).
// Threading: one thread calls step(); submit, cancel and idle may be called from any thread, also from callbacks.
// Callbacks run on the thread of step(), without a lock held.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/exec/page_pool.h"
#include "runtime/exec/sampling.h"

namespace ktc::exec {

using RequestId = std::uint64_t;  // from 1, in the order of submission

enum class FinishReason : std::uint8_t {
  stop,    // a stop id was generated (it is the last of `ids`), or on_token returned false
  length,  // max_tokens or tokens_per_sequence reached
  cancelled,
  error,  // Completion.status says why
};
std::string_view to_string(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct Completion {
  std::vector<std::int32_t> ids = {};  // generated so far, also when cancelled or failed
  FinishReason reason = FinishReason::error;
  Status status = {};  // failed only with FinishReason::error
};

struct Request {
  std::vector<std::int32_t> prompt;  // at least one id
  SamplingParameters sampling;
  std::uint32_t max_tokens = 0;  // at least 1
  std::vector<std::int32_t> stop_ids;
  bool ignore_eos = false;  // stop ids are tokens like any other
  // Called for each generated token, in order, the stop id included. false ends the request with FinishReason::stop.
  std::function<bool(RequestId, std::int32_t id)> on_token;
  // Called exactly once for every accepted request, unless the scheduler dies first.
  std::function<void(RequestId, Completion&&)> on_finish;
};

struct SchedulerOptions {
  std::uint32_t max_step_tokens = 0;  // an upper limit on the tokens of an extend step; 0: the plan's
};

enum class StepKind : std::uint8_t { idle, extend, decode };

// What one step did, for statistics.
struct StepReport {
  StepKind kind = StepKind::idle;
  std::uint32_t prompt_tokens = 0;      // ids of prompts that were processed
  std::uint32_t decode_tokens = 0;      // sequences that brought their last generated token
  std::chrono::nanoseconds duration{};  // executor and sampling, without callbacks
};

class Scheduler {
 public:
  // The executor must outlive the scheduler and must not be run by anybody else meanwhile.
  explicit Scheduler(Executor& executor, SchedulerOptions options = {});
  ~Scheduler();

  // Errors, before anything runs: an empty prompt, ids outside the vocabulary, max_tokens of 0, sampling parameters out
  // of range, a prompt longer than tokens_per_sequence (names both numbers).
  Expected<RequestId> submit(Request request);

  // Takes effect before the next token is delivered, at the latest with the next step(). false: unknown or finished.
  bool cancel(RequestId id);

  // Runs one step. A failure of the executor ends the requests of that step with its Status; the others go on.
  StepReport step();

  bool idle() const;                              // no request is queued or running
  std::uint32_t slots() const { return slots_; }  // most sequences at once
  const PagePool& pool() const { return pool_; }  // for the thread of step()

 private:
  struct Sequence;
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  void take_cancelled();
  void admit();
  std::vector<Sequence*> plan_step(StepReport& report);
  void run_step(const std::vector<Sequence*>& batch, StepReport& report);
  bool begins(const std::vector<Sequence*>& batch, StepKind kind) const;
  Status begin(const std::vector<Sequence*>& batch);
  std::vector<Sequence*> next_batch() const;
  void finish_begun(StepReport& report);
  void drop_begun();
  void deliver(Sequence& sequence, const Expected<std::int32_t>& id);
  void finish(Sequence& sequence, FinishReason reason, Status status = {});
  void retire();
  bool is_cancelled(RequestId id) const;

  Executor& executor_;
  std::uint32_t slots_ = 0;
  std::uint32_t step_tokens_ = 0;
  PagePool pool_;
  Sampler sampler_;
  // Of each step that was begun, the oldest first: its sequences, null where one has ended.
  std::deque<std::vector<Sequence*>> begun_;
  Sequences active_;  // in the order of admission; the thread of step() alone

  mutable std::mutex mutex_;  // guards what follows
  RequestId last_id_ = 0;
  std::deque<std::unique_ptr<Sequence>> queue_;
  std::unordered_set<RequestId> live_;       // queued or running
  std::unordered_set<RequestId> cancelled_;  // a subset of live_
};

}  // namespace ktc::exec
