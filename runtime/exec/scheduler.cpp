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

Scheduler::~Scheduler() {
  for (; !begun_.empty(); begun_.pop_front()) (void)executor_.finish(true);
}

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
  if (begun_.empty()) {
    const std::vector<Sequence*> batch = plan_step(report);
    if (batch.empty()) {
      retire();
      return report;
    }
    if (!begins(batch, report.kind)) {
      run_step(batch, report);
      retire();
      return report;
    }
    const auto start = std::chrono::steady_clock::now();
    const Status status = begin(batch);
    report.duration = std::chrono::steady_clock::now() - start;
    if (!status.ok()) {
      for (Sequence* s : batch) finish(*s, FinishReason::error, status);
      retire();
      return report;
    }
  }
  report.kind = StepKind::decode;
  finish_begun(report);
  retire();
  return report;
}

void Scheduler::run_step(const std::vector<Sequence*>& batch, StepReport& report) {
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
}

bool Scheduler::begins(const std::vector<Sequence*>& batch, StepKind kind) const {
  return kind == StepKind::decode && executor_.most_begun() > 0 && batch.size() <= executor_.decode_limits().max_sequences &&
         std::ranges::all_of(batch, [](const Sequence* s) { return device_samples(s->request.sampling); });
}

// Behind a step that is under way every sequence brings the token that this one chooses for it.
Status Scheduler::begin(const std::vector<Sequence*>& batch) {
  std::vector<StepSequence> sequences;
  std::vector<SampleRow> rows;
  static constexpr std::int32_t kLater = 0;
  for (const Sequence* s : batch) {
    StepSequence next{.ids = std::span(s->ids).last(1), .position = s->done, .pages = s->hold.pages(), .generated_from = s->prompt_length()};
    if (!begun_.empty()) {
      next.ids = {&kLater, 1};
      ++next.position;
      const std::vector<Sequence*>& before = begun_.back();
      next.fed_by = static_cast<std::uint32_t>(std::ranges::find(before, s) - before.begin());
    }
    sequences.push_back(next);
    rows.push_back(sample_row(s->request.sampling, next.position + 1));
  }
  KTC_RETURN_IF_ERROR(executor_.begin(sequences, rows));
  begun_.push_back(batch);
  return {};
}

// Those of the step under way that it does not end by length. Nobody while a prompt waits: it goes first.
std::vector<Scheduler::Sequence*> Scheduler::next_batch() const {
  std::vector<Sequence*> batch;
  if (executor_.most_begun() < 2 || begun_.size() != 1) return batch;
  if (std::ranges::any_of(active_, [](const auto& s) { return !s->decoding() && !s->finished; })) return batch;
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty() && active_.size() < slots_) return batch;  // or it waits for pages, which a step that ends may give back
  }
  for (Sequence* s : begun_.front())
    if (s != nullptr && s->generated() + 1 < s->request.max_tokens && s->done + 1 < executor_.tokens_per_sequence()) batch.push_back(s);
  return batch;
}

void Scheduler::finish_begun(StepReport& report) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Sequence*> next = next_batch();
  const Status status = next.empty() ? Status() : begin(next);
  const Expected<std::span<const std::int32_t>> chosen = executor_.finish();
  const std::vector<Sequence*> batch = begun_.front();
  report.duration += std::chrono::steady_clock::now() - start;
  report.decode_tokens = static_cast<std::uint32_t>(std::ranges::count_if(batch, [](const Sequence* s) { return s != nullptr; }));
  if (!chosen.ok()) {
    begun_.clear();  // the executor is good for nothing any more
    for (Sequence* s : batch)
      if (s != nullptr) finish(*s, FinishReason::error, chosen.status());
    return;
  }
  // While callbacks run, the front is the step that they may end sequences of.
  begun_.pop_front();
  const std::vector<std::int32_t> ids(chosen->begin(), chosen->end());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i] == nullptr) continue;
    Sequence& s = *batch[i];
    ++s.done;
    deliver(s, ids[i] >= 0 ? Expected<std::int32_t>(ids[i]) : not_finite(s.ids.size(), ~ids[i], "infinity or nan"));
  }
  if (!status.ok())
    for (Sequence* s : next)
      if (!s->finished) finish(*s, FinishReason::error, status);
  drop_begun();
}

// Sequences that have ended leave the step under way; one without any is ended at once.
void Scheduler::drop_begun() {
  for (std::vector<Sequence*>& batch : begun_)
    for (Sequence*& s : batch)
      if (s != nullptr && s->finished) s = nullptr;
  while (!begun_.empty() && std::ranges::all_of(begun_.front(), [](const Sequence* s) { return s == nullptr; })) {
    begun_.pop_front();
    (void)executor_.finish(true);  // an executor that broke says so with the next step
  }
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
  drop_begun();
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
  std::uint32_t waiting = 0, decoding = 0;  // at most what a step takes: more makes no difference
  for (const auto& s : active_) {
    decoding += s->decoding();
    waiting += std::min(s->decoding() ? 1 : s->missing(), step_tokens_ - waiting);
  }
  std::uint32_t budget = std::min(executor_.best_tokens(std::max(waiting, 1u)), step_tokens_);
  budget = std::max(budget, std::min(waiting, decoding + 1));  // no one waits for a step of the size that is liked
  for (auto& s : active_) {
    if (!s->decoding()) continue;
    s->step_ids = 1;
    --budget;
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
