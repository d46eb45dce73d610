#include "runtime/exec/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <optional>

namespace ktc::exec {
namespace {

Status rejected(const char* what, std::string found, std::string expected, const char* remedy = "") {
  return make_error(
      StatusCode::invalid_argument,
      {.place = "request", .what = what, .found = std::move(found), .expected = std::move(expected), .remedy = remedy});
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "unknown";
}

struct Scheduler::Sequence {
  RequestId id = 0;
  Request request;
  std::vector<std::int32_t> ids;  // prompt, then output
  std::uint32_t done = 0;         // ids that are in the cache
  std::uint32_t step_ids = 0;     // ids of the step that is being run
  bool finished = false;
  PageHold hold;

  std::uint32_t prompt_length() const { return static_cast<std::uint32_t>(request.prompt.size()); }
  bool decoding() const { return ids.size() > request.prompt.size(); }
  std::uint32_t missing() const { return static_cast<std::uint32_t>(ids.size()) - done; }
  std::uint32_t generated() const { return static_cast<std::uint32_t>(ids.size() - request.prompt.size()); }
};

// A slot must have its row and its token in every step, so the tightest limit of all counts. A plan without decode
// entries decodes with extend.
Scheduler::Scheduler(Executor& executor, SchedulerOptions options) : executor_(executor), pool_(executor.page_count()) {
  const StepLimits extend = executor.extend_limits();
  const StepLimits decode = executor.decode_limits();
  step_tokens_ = extend.max_tokens;
  if (options.max_step_tokens > 0) step_tokens_ = std::min(step_tokens_, options.max_step_tokens);
  slots_ = std::min({extend.max_sequences, extend.max_rows, step_tokens_});
  if (decode.max_sequences > 0) slots_ = std::min({slots_, decode.max_sequences, decode.max_rows, decode.max_tokens});
}

Scheduler::~Scheduler() = default;

Expected<RequestId> Scheduler::submit(Request request) {
  if (slots_ == 0) {
    return make_error(StatusCode::incompatible, {.place = "plan",
                                                 .what = "no entry can process a prompt",
                                                 .remedy = "compile the model again with this version of ktc"});
  }
  const std::uint32_t capacity = executor_.tokens_per_sequence();
  if (request.prompt.empty()) return rejected("empty prompt", "0 tokens", "at least 1");
  if (request.prompt.size() > capacity) {
    return rejected("prompt longer than the KV cache", fmt::format("{} tokens", request.prompt.size()),
                    fmt::format("at most {}", capacity),
                    "shorten the prompt, or compile with a larger kv_cache.tokens in the policy");
  }
  if (request.max_tokens == 0) return rejected("max_tokens", "0", "at least 1");
  const std::uint32_t vocabulary = executor_.plan().plan.model->vocab_size;
  for (const std::int32_t id : request.prompt) {
    if (id < 0 || static_cast<std::uint32_t>(id) >= vocabulary) {
      return rejected("token id outside the vocabulary", fmt::format("{}", id),
                      fmt::format("0 to {}", static_cast<std::int64_t>(vocabulary) - 1));
    }
  }
  KTC_RETURN_IF_ERROR(check_sampling(request.sampling).with_context("request"));

  auto sequence = std::make_unique<Sequence>();
  sequence->ids = request.prompt;
  sequence->request = std::move(request);
  const std::lock_guard lock(mutex_);
  sequence->id = ++last_id_;
  live_.insert(sequence->id);
  queue_.push_back(std::move(sequence));
  return last_id_;
}

bool Scheduler::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (!live_.contains(id)) return false;
  cancelled_.insert(id);
  return true;
}

bool Scheduler::idle() const {
  const std::lock_guard lock(mutex_);
  return live_.empty();
}

bool Scheduler::is_cancelled(RequestId id) const {
  const std::lock_guard lock(mutex_);
  return cancelled_.contains(id);
}

StepReport Scheduler::step() {
  take_cancelled();
  admit();
  StepReport report;
  const std::vector<Sequence*> batch = plan_step(report);
  if (batch.empty()) {
    retire();
    return report;
  }

  const auto start = std::chrono::steady_clock::now();
  std::vector<StepSequence> sequences;
  sequences.reserve(batch.size());
  for (const Sequence* s : batch) {
    const bool complete = s->step_ids == s->missing();
    sequences.push_back({.ids = std::span(s->ids).subspan(s->done, s->step_ids),
                         .position = s->done,
                         .pages = s->hold.pages(),
                         .logits_from = complete ? s->step_ids - 1 : s->step_ids,
                         .generated_from = s->prompt_length()});
  }
  const Expected<StepResult> result = executor_.run(sequences);

  // All rows are sampled before the first callback, which may take its time.
  std::vector<std::optional<Expected<std::int32_t>>> chosen(batch.size());
  if (result.ok()) {
    const std::uint32_t vocabulary = executor_.plan().plan.model->vocab_size;
    std::uint32_t row = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Sequence& s = *batch[i];
      s.done += s.step_ids;
      if (s.missing() > 0) continue;
      chosen[i] = sampler_.sample({result->row(row++), vocabulary}, s.request.sampling, s.ids.size(), s.ids);
    }
  }
  report.duration = std::chrono::steady_clock::now() - start;

  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!result.ok()) {
      finish(*batch[i], FinishReason::error, result.status());
    } else if (chosen[i]) {
      deliver(*batch[i], *chosen[i]);
    }
  }
  retire();
  return report;
}

void Scheduler::take_cancelled() {
  Sequences dropped;
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_.empty()) return;
    for (auto& queued : queue_) {
      if (cancelled_.contains(queued->id)) dropped.push_back(std::move(queued));
    }
    std::erase(queue_, nullptr);
  }
  for (auto& sequence : dropped) finish(*sequence, FinishReason::cancelled);
  for (auto& sequence : active_) {
    if (is_cancelled(sequence->id)) finish(*sequence, FinishReason::cancelled);
  }
  retire();
}

void Scheduler::admit() {
  const std::uint32_t page_tokens = executor_.page_tokens();
  const std::uint64_t capacity = executor_.tokens_per_sequence();
  Sequences impossible;
  {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && active_.size() < slots_) {
      Sequence& head = *queue_.front();
      // the last token generated is never written to the cache
      const std::uint64_t tokens =
          std::min<std::uint64_t>(std::uint64_t{head.prompt_length()} + head.request.max_tokens - 1, capacity);
      const auto pages = static_cast<std::uint32_t>((tokens + page_tokens - 1) / page_tokens);
      if (pages <= pool_.total()) {
        if (!pool_.take(pages, head.hold)) break;
        active_.push_back(std::move(queue_.front()));
      } else {
        impossible.push_back(std::move(queue_.front()));
      }
      queue_.pop_front();
    }
  }
  // plans have pages for a sequence of full length (plan.fbs); an executor that has not must not block the queue for
  // ever
  for (auto& sequence : impossible) {
    finish(*sequence, FinishReason::error,
           make_error(StatusCode::resource_exhausted, {.place = "KV cache",
                                                       .found = fmt::format("{} pages", pool_.total()),
                                                       .expected = "pages for one sequence",
                                                       .remedy = "ask for fewer tokens"}));
  }
}

std::vector<Scheduler::Sequence*> Scheduler::plan_step(StepReport& report) {
  std::vector<Sequence*> batch;
  std::uint32_t budget = step_tokens_;
  for (auto& s : active_) {
    if (!s->decoding()) continue;
    s->step_ids = 1;
    --budget;  // slots_ <= step_tokens_
    batch.push_back(s.get());
  }
  report.decode_tokens = static_cast<std::uint32_t>(batch.size());
  for (auto& s : active_) {
    if (s->decoding() || budget == 0) continue;
    s->step_ids = std::min(s->missing(), budget);
    budget -= s->step_ids;
    report.prompt_tokens += s->step_ids;
    batch.push_back(s.get());
  }
  if (!batch.empty()) report.kind = report.prompt_tokens > 0 ? StepKind::extend : StepKind::decode;
  return batch;
}

void Scheduler::deliver(Sequence& sequence, const Expected<std::int32_t>& id) {
  if (is_cancelled(sequence.id)) return finish(sequence, FinishReason::cancelled);
  if (!id.ok()) return finish(sequence, FinishReason::error, id.status());
  sequence.ids.push_back(*id);
  const Request& request = sequence.request;
  const bool wanted = !request.on_token || request.on_token(sequence.id, *id);
  const bool stopped = !request.ignore_eos && std::ranges::find(request.stop_ids, *id) != request.stop_ids.end();
  if (stopped || !wanted) return finish(sequence, FinishReason::stop);
  // `done` equals ids.size() - 1 here: the new token needs a place in the cache if the sequence is to go on
  const bool full = sequence.done >= executor_.tokens_per_sequence();
  if (full || sequence.generated() >= request.max_tokens) return finish(sequence, FinishReason::length);
}

// Pages go back before the callback, so that it sees them free; the object itself dies in retire().
void Scheduler::finish(Sequence& sequence, FinishReason reason, Status status) {
  assert(!sequence.finished);
  sequence.finished = true;
  sequence.hold.release();
  {
    const std::lock_guard lock(mutex_);
    live_.erase(sequence.id);
    cancelled_.erase(sequence.id);
  }
  if (!sequence.request.on_finish) return;
  Completion completion{.reason = reason, .status = std::move(status)};
  completion.ids.assign(sequence.ids.begin() + sequence.prompt_length(), sequence.ids.end());
  sequence.request.on_finish(sequence.id, std::move(completion));
}

void Scheduler::retire() {
  std::erase_if(active_, [](const auto& sequence) { return sequence->finished; });
}

}  // namespace ktc::exec
