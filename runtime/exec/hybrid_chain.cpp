// Decode steps whose tokens a GPU chooses: begun one before the other is finished.
//
// A stream has, in this order: block and graph of step N, its sample graph, a copy of what was chosen to the host, an event; then the
// same of step N + 1, whose ids the first kernel takes from where step N's sample graph put them. The host begins N + 1 when it has
// answered all records of N, so that its own part of N is over: tables, arena and what workers are told are N + 1's from then on. It
// waits for the event of N afterwards. Records, results, blocks and landings of two steps never share memory: areas belong to an
// entry and carry the epoch, the others alternate.
#include <algorithm>
#include <cstring>

#include "runtime/exec/hybrid_executor.h"
#include "runtime/exec/spin_wait.h"

namespace ktc::exec {

static constexpr int kQueuedAtOnce = 4;  // graphs and copies between GPUs

// What the host must see before the next step keeps steps apart, a closed list: counts of activations and traces (one area for both
// steps), and ids that the CPU reads.
std::uint32_t HybridExecutor::most_begun() const {
  if (!options_.device_sampling) return 0;
  bool apart = trace_ != nullptr || !options_.expert_counts.empty();
  for (const HybridProgram& program : programs_) {
    if (!program.bounds.decode) continue;
    if (!program.sample) return 0;
    apart = apart || !program.ids.empty() || !program.fed;
  }
  return apart ? 1 : 2;
}

Status HybridExecutor::begin(std::span<const StepSequence> sequences, std::span<const SampleRow> rows) {
  KTC_RETURN_IF_ERROR(broken_);
  if (begun_.size() >= most_begun())
    return make_error(StatusCode::invalid_argument, {.place = "step",
                                                     .what = "begun before another one was finished",
                                                     .found = std::to_string(begun_.size()) + " under way",
                                                     .expected = "fewer than " + std::to_string(most_begun())});
  KTC_RETURN_IF_ERROR(check_sequences(plan_->plan, sequences));
  KTC_ASSIGN_OR_RETURN(const std::size_t chosen, choose_entry(bounds_, sequences));
  HybridProgram& program = programs_[chosen];
  const std::uint32_t fed_by = begun_.empty() ? 0 : begun_.back().rows;
  for (const StepSequence& s : sequences)
    if (s.fed_by != StepSequence::kNothing && s.fed_by >= fed_by)
      return make_error(StatusCode::invalid_argument, {.place = "step",
                                                       .what = "an id from a row that the step before does not have",
                                                       .found = std::to_string(s.fed_by),
                                                       .expected = "less than " + std::to_string(fed_by)});
  if (!program.bounds.decode || rows.size() != sequences.size())
    return make_error(StatusCode::invalid_argument, {.place = "step",
                                                     .what = "not one whose tokens a device can choose",
                                                     .found = program.name + ", parameters of " + std::to_string(rows.size()) + " rows",
                                                     .expected = "decode with parameters for each sequence"});
  Status status;
  Begun step;
  step.program = &program;
  step.begin = trace_now();
  step.rows = static_cast<std::uint32_t>(sequences.size());
  step.greedy = std::all_of(rows.begin(), rows.end(), [](const SampleRow& row) { return row.greedy != 0; });
  const auto both = [&] {
    if (!begun_.empty() && !begun_.back().walked) status = walk_rest(begun_.back(), false);
    if (!status.ok()) return;
    // pages may be given back while the step is under way
    std::vector<StepSequence> kept(sequences.begin(), sequences.end());
    if (cpu_ropes_)
      for (StepSequence& s : kept) s.pages = step.pages.emplace_back(s.pages.begin(), s.pages.end());
    status = begin_step(program, kept, rows);
    step.epoch = epoch_;
    if (status.ok()) status = walk(program, step.at, false);
    // what other devices do once this part is done: launching it takes no time while the step before is under way
    for (int more = 0; status.ok() && more < kQueuedAtOnce; ++more) {
      const auto queued = queue_ahead(program);
      status = queued.status();
      if (!queued.ok() || !*queued) break;
    }
    if (status.ok() && step.at == program.steps.size()) status = end_walk(step);
  };
  const bool watched = watch(program) || (!begun_.empty() && watch(*begun_.back().program));
  // Workers are woken when there is something for them.
  if (!program.cpu_steps.empty())
    cpu_.workers->enter(both);
  else
    both();
  if (watched) watchdog_->end();
  if (!status.ok() || watchdog_->stalled()) {
    begun_.clear();
    return give_up(status.ok() ? no_progress(program) : std::move(status));
  }
  begun_.push_back(std::move(step));
  return {};
}

bool HybridExecutor::watch(const HybridProgram& program) {
  if (program.records.empty()) return false;
  watchdog_->begin();
  return true;
}

// Everything behind what is queued already; `discard`: nobody wants to know what comes of it.
Status HybridExecutor::walk_rest(Begun& step, bool discard) {
  discarded_ = discard && std::all_of(step.program->copies.begin(), step.program->copies.end(), [](const CopyStep& copy) { return copy.between_gpus(); });
  Status status = walk(*step.program, step.at, true);
  discarded_ = false;
  KTC_RETURN_IF_ERROR(status);
  if (watchdog_->stalled()) return no_progress(*step.program);
  return end_walk(step);
}

Status HybridExecutor::end_walk(Begun& step) {
  step.walked = true;
  SampleProgram& sample = *step.program->sample;
  Gpu& gpu = gpus_[sample.gpu];
  device::Stream& stream = gpu.compute();
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(stream, gpu.index, "sample"));
  KTC_RETURN_IF_ERROR(sample.run(stream, step.greedy));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->end(stream));
  if (step.program->fed && step.program->fed_gpu != sample.gpu) {  // the next step looks them up elsewhere
    Gpu& embeds = gpus_[step.program->fed_gpu];
    const auto ids = [&](device::Stream& to) {
      return to.copy_from_peer(*gpu.device, reinterpret_cast<std::byte*>(embeds.next_ids()), reinterpret_cast<const std::byte*>(gpu.next_ids()),
                               std::uint64_t{step.rows} * sizeof(std::int32_t));
    };
    KTC_RETURN_IF_ERROR(pull(gpu, embeds, ids, "chosen ids"));
  }
  KTC_RETURN_IF_ERROR(stream.copy_to_host(landing_[step.epoch % 2].data(), reinterpret_cast<const std::byte*>(gpu.next_ids()),
                                          std::uint64_t{step.rows} * sizeof(std::int32_t)));
  KTC_RETURN_IF_ERROR(stream.record(*chosen_events_[step.epoch % 2]));
  return end_update(true, 0);
}

Expected<std::span<const std::int32_t>> HybridExecutor::finish(bool discard) {
  KTC_RETURN_IF_ERROR(broken_);
  if (begun_.empty()) return make_error(StatusCode::invalid_argument, {.place = "step", .what = "none was begun"});
  Begun& step = begun_.front();
  HybridProgram& program = *step.program;
  const bool watched = watch(program);
  Status status;
  if (!step.walked) cpu_.workers->enter([&] { status = walk_rest(step, discard); });
  const std::uint64_t begin = trace_now();
  if (status.ok()) status = wait_chosen(step);
  const std::uint64_t end = trace_now();
  if (watched) watchdog_->end();
  if (!status.ok()) {
    begun_.clear();
    return give_up(std::move(status));
  }
  busy_.wait += end - begin;
  busy_.steps += end - std::max(step.begin, last_end_);
  last_end_ = end;
  count_activations(program);
  if (trace_ != nullptr) {
    trace_->add({.track = Track::wait, .name = "end of the step", .begin = begin, .end = end});
    trace_->add({.track = Track::step, .name = program.name, .begin = step.begin, .end = end});
    trace_->report(options_.tracer);
  }
  const auto* ids = reinterpret_cast<const std::int32_t*>(landing_[step.epoch % 2].data());
  chosen_.assign(ids, ids + step.rows);
  begun_.pop_front();
  return std::span<const std::int32_t>(chosen_);
}

// Work of the next step may stand behind the event, so the stream's end is no measure.
Status HybridExecutor::wait_chosen(const Begun& step) {
  const device::Event& event = *chosen_events_[step.epoch % 2];
  device::Stream& stream = gpus_[step.program->sample->gpu].compute();
  for (SpinWait wait(cpu_.workers->spin());; wait.rest()) {
    KTC_ASSIGN_OR_RETURN(const bool reached, stream.reached(event));
    if (reached) return wait_copies();
    if (watchdog_->stalled()) return no_progress(*step.program);
  }
}

}  // namespace ktc::exec
