// A step of the hybrid executor.
#include "runtime/exec/hybrid_executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/exec/hybrid_resolve.h"
#include "runtime/exec/spin_wait.h"
#include "runtime/exec/step_block_fill.h"

namespace ktc::exec {

using planfb::StepKind;

namespace {

constexpr int kLoading = 15;  // times the watchdog's patience that a step takes when kernels are loaded

// Of a step that the CPU shares: it takes no expert.
bool takes_none(const HybridProgram& program, std::uint32_t stream) {
  return stream != plan::kNone && program.streams[stream].shared->result.on_cpu == 0;
}

}  // namespace

Expected<StepResult> HybridExecutor::run(std::span<const StepSequence> sequences) {
  KTC_RETURN_IF_ERROR(broken_);
  if (!begun_.empty()) return make_error(StatusCode::invalid_argument, {.place = "step", .what = "run before the one under way was finished"});
  KTC_RETURN_IF_ERROR(check_sequences(plan_->plan, sequences));
  KTC_ASSIGN_OR_RETURN(const std::size_t chosen, choose_entry(bounds_, sequences));
  HybridProgram& program = programs_[chosen];
  const std::uint64_t begin = trace_now();
  KTC_RETURN_IF_ERROR(run_entry(program, sequences));
  count_activations(program);
  KTC_RETURN_IF_ERROR(end_update(program.bounds.decode, trace_now() - begin));
  StepResult result;
  result.logits = program.logits.data;
  result.row_stride = program.logits.stride;
  result.rows = static_cast<std::uint32_t>(cpu_.state.rows);
  return result;
}

Status HybridExecutor::run_entry(HybridProgram& program, std::span<const StepSequence> sequences) {
  const std::uint64_t begin = trace_now();
  Status status;
  // An extend step may compute for as long as it likes: only hand-offs are watched.
  const bool watched = !program.records.empty();
  // Before the first step kernels are loaded, which takes its time.
  if (watched) watchdog_->begin(sequences.empty() ? kLoading : 1);
  cpu_.workers->enter([&] {
    status = begin_step(program, sequences);
    std::size_t at = 0;
    if (status.ok()) status = walk(program, at, true);
    if (status.ok()) status = end_step(program);
  });
  if (watched) watchdog_->end();
  const std::uint64_t end = trace_now();
  busy_.steps += end - begin;
  if (!status.ok()) return give_up(std::move(status));
  if (trace_ != nullptr) {
    trace_->add({.track = Track::step, .name = program.name, .begin = begin, .end = end});
    trace_->report(sequences.empty() ? Tracer() : options_.tracer);
  }
  return {};
}

Status HybridExecutor::begin_step(HybridProgram& program, std::span<const StepSequence> sequences, std::span<const SampleRow> rows) {
  if (++epoch_ == 0) epoch_ = 2;  // of the other parity than the last
  cpu_.fill(plan_->plan, sequences, {&program.ids, &program.positions, &program.output_rows, &program.deferred});
  if (cpu_ropes_) cpu_.fill_ropes();
  counts_ = program.bounds.decode ? program.bound_counts()
                                  : Counts{static_cast<std::uint32_t>(cpu_.state.tokens), static_cast<std::uint32_t>(cpu_.state.rows),
                                           static_cast<std::uint32_t>(sequences.size())};
  std::array<StepHalf, 2> halves;
  if (program.cut) {
    halves = cut_step(sequences, program.bounds.max_tokens);
    counts_.first_tokens = halves[0].tokens;
    counts_.first_rows = halves[0].rows;
    cpu_.state.cut = halves[0].tokens;
    for (const Part part : {Part::first, Part::second}) {
      const StepHalf& half = halves[part == Part::second];
      half_counts_[part == Part::second] = {half.tokens, 0, static_cast<std::uint32_t>(half.sequences.size())};
      cpu_.fill_half(part, plan_->plan, half, part == Part::second ? halves[0].tokens : 0, program.half_inputs[part == Part::second]);
    }
  }
  if (mover_ != nullptr) KTC_RETURN_IF_ERROR(mover_->advance());
  launched_.assign(program.graphs.size(), 0);
  skipped_ = plan::kNone;
  published_ = nullptr;
  ahead_ = 0;
  for (Gpu& gpu : gpus_) {
    // what chooses tokens goes along in front of the block
    std::byte* front = gpu.host_block[epoch_ % 2].data();
    std::byte* block = front + (gpu.sample.block - gpu.sample.feed);
    std::uint64_t bytes = fill_step_block(plan_->plan, program.bounds, program.block, sequences, epoch_, block);
    for (std::size_t half = 0; half < 2 && program.cut; ++half)
      bytes = fill_step_block(plan_->plan, program.bounds, program.half_blocks[half], halves[half].sequences, epoch_, block);
    const bool chooses = program.bounds.decode && gpu.sample.rows != 0;
    if (chooses) fill_sample_areas(gpu.sample, sequences, rows, front);
    const std::byte* from = chooses ? front : block;
    KTC_RETURN_IF_ERROR(gpu.compute().copy_to_device(gpu.block() - (block - from), from, static_cast<std::uint64_t>(block - from) + bytes));
  }
  for (std::size_t g = 0; g < gpus_.size(); ++g)
    KTC_RETURN_IF_ERROR(streamers_[g].begin(*gpus_[g].device, program.streams, program.pieces[g], trace_.get(), gpus_[g].index, counts_));
  return {};
}

// From step `at` on; not `all`: up to the first step that the host takes part in.
Status HybridExecutor::walk(HybridProgram& program, std::size_t& at, bool all) {
  std::uint32_t answered = plan::kNone;  // a record whose result the op that made it has written to cells
  for (; at < program.steps.size(); ++at) {
    const HybridStep& step = program.steps[at];
    const bool by_devices = (step.kind == StepKind::launch && step.stream == plan::kNone) ||
                            (step.kind == StepKind::copy && program.copies[step.at].between_gpus());
    if (!by_devices) {
      if (!all) return {};
      KTC_RETURN_IF_ERROR(serve_published(program));
    }
    beat();
    if (program.cut && counts_of(step).tokens == 0) {  // no second half
      KTC_RETURN_IF_ERROR(pass(program, step));
      continue;
    }
    switch (step.kind) {
      case StepKind::launch: KTC_RETURN_IF_ERROR(launch(program, step)); break;
      case StepKind::copy:
        if (at >= ahead_) KTC_RETURN_IF_ERROR(copy(program, step));
        break;
      case StepKind::publish:
        KTC_RETURN_IF_ERROR(launch(program, step));
        published_ = &step;  // other devices' work may go ahead of the wait for it
        break;
      case StepKind::await: {
        const RecordStep& record = program.records[step.at];
        const std::uint64_t begin = trace_now();
        if (discarded_)  // finite, so that pages hold nothing that spoils what reads around it
          for (std::size_t t = 0; t < cpu_.state.tokens; ++t)
            std::fill_n(program.awaits[step.at].result.row(t), record.area->columns, 0.0f);
        // nobody waits for a skipped one; host nodes want their answer always
        if (record.area->node == nullptr) handoffs_[record.gpu].near(epoch_, step.at).announce();
        if ((skipped_ != step.at || record.area->node != nullptr) && answered != step.at)
          write_result(*record.area, epoch_, static_cast<std::uint32_t>(cpu_.state.tokens), program.awaits[step.at], *cpu_.workers);
        const std::uint64_t end = trace_now();
        busy_.cpu += end - begin;
        if (trace_ != nullptr) trace_->add({.track = Track::cpu, .name = step.name, .begin = begin, .end = end});
        skipped_ = plan::kNone;
        KTC_RETURN_IF_ERROR(launch(program, step));
        break;
      }
      case StepKind::compute: {
        const bool skipped = (step.skipped_with != plan::kNone && step.skipped_with == skipped_) || takes_none(program, step.shared) || discarded_;
        if (!skipped) KTC_RETURN_IF_ERROR(program.waits_by_copy ? wait_copies_of(program, step) : wait_copies());
        if (mover_ != nullptr && step.moving.ids.data != nullptr && !discarded_)
          mover_->count(step.moving.index, step.moving.ids, cpu_.part(step.part).count(step.moving.of_rows), program.bounds.decode);
        if (skipped) break;
        const std::uint64_t begin = trace_now();
        ResultNear near;
        ResultCells cells;
        if (step.near_record != plan::kNone) {
          near = handoffs_[program.records[step.near_record].gpu].near(epoch_, step.near_record);
          cpu_.state.near = &near;
          cells = program.records[step.near_record].area->cells(epoch_);
          if (step.is_result) cpu_.state.cells = &cells;
        }
        cpu_.run(program.cpu_steps[step.at], step.part);
        if (cells.written) answered = step.near_record;
        cpu_.state.near = nullptr;
        cpu_.state.cells = nullptr;
        const std::uint64_t end = trace_now();
        busy_.cpu += end - begin;
        if (mover_ != nullptr && step.moving.index != plan::kNone && program.bounds.decode) mover_->add_cold(end - begin);
        if (options_.observer.report != nullptr)
          options_.observer.report(options_.observer.context, program.bounds.entry, step.step, step.name, end - begin);
        if (trace_ != nullptr) trace_->add({.track = Track::cpu, .name = step.name, .begin = begin, .end = end});
        break;
      }
      case StepKind::graph: break;
    }
    ahead_ = std::max(ahead_, at + 1);
    if (watchdog_->stalled()) return {};  // end_step says so
  }
  return serve_published(program);
}

// A step without tokens does nothing, but others rely on its place in the order: on what it waits for, and that copies of a GPU before
// it are done when it is.
Status HybridExecutor::pass(HybridProgram& program, const HybridStep& step) {
  if (!program.waits_by_copy) return {};
  if (step.kind == StepKind::compute) return wait_copies_of(program, step);
  if (step.kind == StepKind::copy) {
    const CopyStep& copy = program.copies[step.at];
    return gpus_[copy.gpu()].values().record(*copy.done);
  }
  for (const std::uint32_t copy : step.waits) KTC_RETURN_IF_ERROR(gpus_[step.gpu].compute().wait_for(*program.copies[copy].done));
  return {};
}

// The next graph, or copy between GPUs, of the step that is walked. False: a step comes first in which the host has a part beside a
// record, or none is left.
Expected<bool> HybridExecutor::queue_ahead(HybridProgram& program) {
  for (; ahead_ < program.steps.size(); ++ahead_) {
    const HybridStep& step = program.steps[ahead_];
    if (step.kind == StepKind::compute) continue;
    if (step.kind == StepKind::copy && program.copies[step.at].between_gpus()) {
      KTC_RETURN_IF_ERROR(copy(program, step));
    } else if (step.graph == plan::kNone || program.graphs[step.graph] == nullptr) {
      return false;
    } else if (launched_[step.graph] == epoch_) {
      continue;
    } else {
      KTC_RETURN_IF_ERROR(launch(program, step));
    }
    ++ahead_;
    return true;
  }
  return false;
}

Status HybridExecutor::serve_published(HybridProgram& program) {
  const HybridStep* step = std::exchange(published_, nullptr);
  return step == nullptr ? Status() : serve_publish(program, *step);
}

// A step of a graph launches all of it, once; another one its own kernels.
Status HybridExecutor::launch(HybridProgram& program, const HybridStep& step) {
  device::Stream& stream = gpus_[step.gpu].compute();
  if (step.graph != plan::kNone && program.graphs[step.graph] != nullptr) {
    if (launched_[step.graph] == epoch_) return {};
    launched_[step.graph] = epoch_;
    if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(stream, gpus_[step.gpu].index, plan_->plan.entries[program.bounds.entry]->graphs[step.graph]->name));
    KTC_RETURN_IF_ERROR(stream.launch(*program.graphs[step.graph]));
    return trace_ != nullptr ? trace_->end(stream) : Status();
  }
  if (step.stream != plan::kNone) {  // shows by itself when it waits for copies
    StreamStep& experts = program.streams[step.stream];
    if (experts.shared) KTC_RETURN_IF_ERROR(decide_share(program, step, experts));
    KTC_RETURN_IF_ERROR(streamers_[step.gpu].run(experts, counts_).with_context(step.name));
    if (experts.shared && experts.shared->result.on_cpu != 0) KTC_RETURN_IF_ERROR(stream.wait_for(*gpus_[step.gpu].after));
    for (const Launch& launch : step.launches) KTC_RETURN_IF_ERROR(launch(stream, counts_).with_context(step.name));
    return {};
  }
  for (const std::uint32_t copy : step.waits) KTC_RETURN_IF_ERROR(stream.wait_for(*program.copies[copy].done));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(stream, gpus_[step.gpu].index, step.name));
  for (const Launch& launch : step.launches) KTC_RETURN_IF_ERROR(launch(stream, counts_of(step)).with_context(step.name));
  return trace_ != nullptr ? trace_->end(stream) : Status();
}

// On the stream for values, ordered against the computation before it and, with `hold`, behind it; so the CPU waits for the copy alone.
// What the CPU's share would give and does not is zero. `done`: recorded when the values are there; null: nobody asks for these alone.
Status HybridExecutor::copy_values(std::uint32_t g, const HybridProgram& program, const std::vector<CopyRows>& rows, bool to_host,
                                   const Counts& counts, const std::string& name, bool hold, device::Event* done) {
  Gpu& gpu = gpus_[g];
  bool any = false;
  for (const CopyRows& r : rows) {
    if (takes_none(program, r.shared)) {
      KTC_RETURN_IF_ERROR(r.clear(gpu.compute(), counts).with_context(name));
      continue;
    }
    if (!any) {
      KTC_RETURN_IF_ERROR(gpu.compute().record(*gpu.before));
      KTC_RETURN_IF_ERROR(gpu.values().wait_for(*gpu.before));
      // what leaves another GPU, or goes there, may lie where these values come to: halves on two GPUs know nothing of each other
      for (std::size_t other = 0; to_host && other < gpus_.size(); ++other)
        if (other != g && copying_[other]) KTC_RETURN_IF_ERROR(gpu.values().wait_for(*gpus_[other].after));
    }
    any = true;
    KTC_RETURN_IF_ERROR(r.run(gpu.values(), to_host, counts).with_context(name));
  }
  if (!any) return {};
  KTC_RETURN_IF_ERROR(gpu.values().record(*gpu.after));
  if (done != nullptr) KTC_RETURN_IF_ERROR(gpu.values().record(*done));
  if (hold) KTC_RETURN_IF_ERROR(gpu.compute().wait_for(*gpu.after));
  copying_[g] = true;
  return {};
}

// Waits for the layer's choice, unless all of its experts are the GPU's however it comes out. What the CPU needs of its share follows.
Status HybridExecutor::decide_share(const HybridProgram& program, const HybridStep& step, StreamStep& stream) {
  SharedExpertsStep& shared = *stream.shared;
  const std::uint32_t rows = shared.of_rows ? counts_.rows : counts_.tokens;
  if (!shared.decides(rows)) {
    shared.decide_nothing();
    busy_.streamed_pairs += std::uint64_t{rows} * shared.ids.columns;
    return {};
  }
  KTC_RETURN_IF_ERROR(wait_copies());
  const std::uint64_t begin = trace_now();
  shared.decide(rows);
  busy_.streamed_pairs += shared.pairs;
  busy_.shared_pairs += shared.result.cpu_rows;
  const std::uint64_t end = trace_now();
  busy_.cpu += end - begin;
  if (trace_ != nullptr) trace_->add({.track = Track::cpu, .name = "share of the CPU", .begin = begin, .end = end});
  KTC_RETURN_IF_ERROR(gpus_[step.gpu].compute().copy_to_device(reinterpret_cast<std::byte*>(shared.gpu_slots),
                                                               reinterpret_cast<const std::byte*>(shared.to_gpu),
                                                               shared.experts * sizeof(std::int32_t)));
  // beside the kernels of this step, which read the same values; what is launched behind them waits (launch)
  return shared.result.on_cpu == 0 ? Status() : copy_values(step.gpu, program, stream.shared_up, true, counts_, step.name, false);
}

Status HybridExecutor::copy(const HybridProgram& program, const HybridStep& step) {
  const CopyStep& copy = program.copies[step.at];
  if (step.shared != plan::kNone) {  // the choice, unless nobody asks
    const SharedExpertsStep& shared = *program.streams[step.shared].shared;
    if (!shared.decides(shared.of_rows ? counts_.rows : counts_.tokens)) return {};
  }
  if (copy.between_gpus()) {
    Gpu& from = gpus_[copy.from_gpu];
    return pull(from, gpus_[copy.to_gpu], [&](device::Stream& stream) -> Status {
      for (const PeerRows& rows : copy.across) KTC_RETURN_IF_ERROR(rows.run(stream, *from.device, counts_of(step)));
      return {};
    }, step.name);
  }
  // with waits by copy the GPU goes on while its values leave, until a step of its writes over them
  if (copy.from_gpu != plan::kNone)
    return copy_values(copy.from_gpu, program, copy.up, true, counts_of(step), step.name, !program.waits_by_copy, copy.done.get());
  return copy_values(copy.to_gpu, program, copy.down, false, counts_of(step), step.name, true, copy.done.get());
}

// Copies in the stream of the GPU that takes them, behind what the other one has been told so far; that one goes on, and may write over
// what was copied, when they are done.
Status HybridExecutor::pull(Gpu& from, Gpu& to, const std::function<Status(device::Stream&)>& copies, const std::string& name) {
  device::Stream& stream = to.compute();
  KTC_RETURN_IF_ERROR(from.compute().record(*from.sent));
  KTC_RETURN_IF_ERROR(stream.wait_for(*from.sent));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(stream, to.index, name));
  KTC_RETURN_IF_ERROR(copies(stream).with_context(name));
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->end(stream));
  KTC_RETURN_IF_ERROR(stream.record(*to.taken));
  return from.compute().wait_for(*to.taken);
}

Status HybridExecutor::wait_copies() {
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    if (!copying_[g]) continue;
    const std::uint64_t begin = trace_now();
    KTC_RETURN_IF_ERROR(watchdog_->stalled() ? Status() : gpus_[g].values().wait());
    const std::uint64_t end = trace_now();
    busy_.wait += end - begin;
    if (trace_ != nullptr) trace_->add({.track = Track::wait, .name = "copies", .begin = begin, .end = end});
    copying_[g] = false;
  }
  return {};
}

// For what the CPU's step reads and writes over: other copies may wait for kernels that run beside it.
Status HybridExecutor::wait_copies_of(const HybridProgram& program, const HybridStep& step) {
  for (const std::uint32_t index : step.waits) {
    const CopyStep& copy = program.copies[index];
    device::Stream& values = gpus_[copy.gpu()].values();
    const std::uint64_t begin = trace_now();
    for (SpinWait wait(cpu_.workers->spin());; wait.rest()) {
      KTC_ASSIGN_OR_RETURN(const bool done, values.reached(*copy.done));
      if (done || watchdog_->stalled()) break;
    }
    const std::uint64_t end = trace_now();
    busy_.wait += end - begin;
    if (trace_ != nullptr) trace_->add({.track = Track::wait, .name = "copies", .begin = begin, .end = end});
  }
  return {};
}

Status HybridExecutor::serve_publish(HybridProgram& program, const HybridStep& step) {
  RecordStep& record = program.records[step.at];
  const RecordArea& area = *record.area;
  const std::uint64_t begin = trace_now();
  const auto arrived = [&] {
    if (area.node == nullptr) return __atomic_load_n(&area.header().epoch, __ATOMIC_ACQUIRE) == epoch_;
    return area.node->published.load(std::memory_order_acquire) != area.node->answered.load(std::memory_order_relaxed);
  };
  if (mover_ != nullptr && !watchdog_->stalled() && !arrived()) KTC_RETURN_IF_ERROR(mover_->send());
  // A lost device tells no one: ask now and then.
  using Clock = std::chrono::steady_clock;
  Clock::time_point ask = Clock::now() + std::chrono::milliseconds(50);
  SpinWait wait(cpu_.workers->spin());
  for (std::uint32_t looks = 0; !arrived(); ++looks) {
    if (watchdog_->stalled()) return {};
    for (Handoff& handoff : handoffs_)
      if (handoff.doorbell()) __atomic_fetch_add(&handoff.words()->heartbeat, 1u, __ATOMIC_RELAXED);
    KTC_ASSIGN_OR_RETURN(const bool queued, queue_ahead(program));
    if (queued) continue;
    if (looks % 256 == 255 && Clock::now() > ask) {
      KTC_RETURN_IF_ERROR(gpus_[record.gpu].compute().idle().status());
      ask = Clock::now() + std::chrono::milliseconds(50);
    }
    wait.rest();
  }
  const std::uint64_t seen = trace_now();
  beat();
  if (record.skip_empty && area.node == nullptr && area.header().pairs == 0) skipped_ = step.at;
  unpack_record(record, static_cast<std::uint32_t>(cpu_.state.tokens), *cpu_.workers);
  const std::uint64_t end = trace_now();
  busy_.wait += seen - begin;
  busy_.cpu += end - seen;
  if (trace_ != nullptr) {
    trace_->add({.track = Track::wait, .name = step.name, .begin = begin, .end = seen});
    trace_->add({.track = Track::cpu, .name = step.name, .begin = seen, .end = end});
  }
  return {};
}

Status HybridExecutor::end_step(HybridProgram& program) {
  if (!watchdog_->stalled() && program.logits_gpu != plan::kNone) {
    const Counts live{0, static_cast<std::uint32_t>(cpu_.state.rows), 0};
    KTC_RETURN_IF_ERROR(program.logits_copy.run(gpus_[program.logits_gpu].compute(), true, live));
  }
  const std::uint64_t begin = trace_now();
  for (Gpu& gpu : gpus_) {
    if (program.records.empty())
      KTC_RETURN_IF_ERROR(gpu.compute().wait());
    else
      KTC_RETURN_IF_ERROR(wait_idle(gpu.compute()));
  }
  const std::uint64_t end = trace_now();
  busy_.wait += end - begin;
  if (trace_ != nullptr) trace_->add({.track = Track::wait, .name = "end of the step", .begin = begin, .end = end});
  KTC_RETURN_IF_ERROR(wait_copies());
  return watchdog_->stalled() ? no_progress(program) : Status();
}

Status HybridExecutor::no_progress(const HybridProgram& program) const {
  return make_error(StatusCode::unavailable,
                    {.place = program.name,
                     .what = fmt::format("the hand-off between CPU and GPU made no progress for {} ms", watchdog_->patience().count()),
                     .remedy = "start again; if it comes back, look whether the machine is overloaded or the driver reports errors"});
}

// As Stream::wait, but not for ever.
Status HybridExecutor::wait_idle(device::Stream& stream) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> last;
  for (SpinWait wait(cpu_.workers->spin());; wait.rest()) {
    KTC_ASSIGN_OR_RETURN(const bool idle, stream.idle());
    if (idle) return {};
    if (!watchdog_->stalled()) continue;
    if (!last) last = Clock::now() + watchdog_->patience() / 2;
    if (Clock::now() > *last) return {};  // end_step says what happened
  }
}

void HybridExecutor::beat() {
  watchdog_->progress();
  for (Handoff& handoff : handoffs_)
    if (handoff.doorbell()) __atomic_fetch_add(&handoff.words()->heartbeat, 1u, __ATOMIC_RELAXED);
}

// Nothing of this executor can be trusted any more: caches hold half a step, a device may be gone.
Status HybridExecutor::give_up(Status status) {
  watchdog_->poison();
  broken_ = Status(StatusCode::unavailable, status.message());
  return broken_;
}

// A step of a prompt leaves some of its time for the experts that it chose.
Status HybridExecutor::end_update(bool decode, std::uint64_t nanoseconds) {
  if (mover_ == nullptr) return {};
  if (mover_->end_step(cpu_.state.tokens, decode)) {
    if (options_.note != nullptr)
      options_.note(options_.note_context,
                    "experts stay where they are from now on, moving them did not pay: " + to_text(*mover_->ended_trial()));
    return {};
  }
  if (decode) return {};
  Status status = mover_->hurry(std::chrono::nanoseconds(nanoseconds / 8));
  return status.ok() ? Status() : give_up(std::move(status));
}

void HybridExecutor::count_activations(const HybridProgram& program) const {
  for (const CountedIds& counted : program.counted) {
    const std::size_t rows = cpu_.part(counted.part).count(counted.copy.of_rows);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto* ids = reinterpret_cast<const std::int32_t*>(counted.copy.host + r * counted.copy.host_stride);
      for (std::size_t k = 0; k < counted.top_k; ++k)
        if (const auto id = static_cast<std::uint32_t>(ids[k]);
            id < counted.experts && (counted.slots == nullptr || counted.slots[id] >= 0))
          ++counted.counts[id];
    }
  }
}

}  // namespace ktc::exec
