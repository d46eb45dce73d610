#include "runtime/exec/hybrid_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/exec/cpu_side.h"
#include "runtime/exec/expert_mover.h"
#include "runtime/exec/gpu_memory.h"
#include "runtime/exec/hybrid_handoff.h"
#include "runtime/exec/hybrid_resolve.h"
#include "runtime/exec/hybrid_stream.h"
#include "runtime/exec/hybrid_trace.h"
#include "runtime/exec/spin_wait.h"
#include "runtime/exec/step_block_fill.h"

namespace ktc::exec {
namespace {

using planfb::StepKind;
using weights::HostBlock;

constexpr int kLoading = 15;  // times the watchdog's patience that a step takes when kernels are loaded

class HybridExecutor final : public Executor {
 public:
  static Expected<std::unique_ptr<Executor>> create(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options);
  ~HybridExecutor() override;

  Expected<StepResult> run(std::span<const StepSequence> sequences) override;

  StepLimits extend_limits() const override { return largest(bounds_, false); }
  StepLimits decode_limits() const override { return largest(bounds_, true); }
  std::uint32_t page_tokens() const override { return cache().page_tokens; }
  std::uint32_t page_count() const override { return cache().pages; }
  std::uint32_t tokens_per_sequence() const override { return cache().tokens_per_sequence; }
  const plan::OpenPlan& plan() const override { return *plan_; }
  int threads() const override { return cpu_.workers->threads(); }
  IsaLevel isa() const override { return cpu_.kernels.level; }
  Busy busy() const override { return busy_; }
  HandoffKind handoff() const override { return handoff_; }
  std::optional<UpdateTrial> updates() const override { return mover_ == nullptr ? std::nullopt : std::optional(mover_->total()); }

 private:
  const planfb::CacheT& cache() const { return *plan_->plan.caches[0]; }
  Status allocate();
  Status open_handoff();
  Status open_mover();
  Status hold_streamed();
  Status capture(HybridProgram& program);

  Status run_entry(HybridProgram& program, std::span<const StepSequence> sequences);
  Status begin_step(HybridProgram& program, std::span<const StepSequence> sequences);
  Status walk(HybridProgram& program);
  Status launch(HybridProgram& program, const HybridStep& step);
  Status copy(const HybridProgram& program, const HybridStep& step);
  Status serve_publish(HybridProgram& program, const HybridStep& step);
  Status end_step(HybridProgram& program);
  Status wait_idle(device::Stream& stream);
  Status wait_copies();
  Status give_up(Status status);
  void count_activations(const HybridProgram& program) const;
  Status end_update(bool decode, std::uint64_t nanoseconds);
  void beat();

  std::shared_ptr<const plan::OpenPlan> plan_;
  ExecutorOptions options_;
  // In the order of their making: host memory that devices pinned goes last.
  MovingSlots slots_;
  CpuSide cpu_;
  HostBlock logits_, staged_, counted_;
  std::unique_ptr<weights::WeightStore> weights_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<Gpu> gpus_;
  std::unique_ptr<ExpertMover> mover_;  // null: nothing moves
  std::vector<Handoff> handoffs_;  // by gpu
  std::vector<Streamer> streamers_;  // by gpu
  std::vector<HybridProgram> programs_;
  std::vector<EntryBounds> bounds_;

  HandoffKind handoff_ = HandoffKind::doorbell;
  bool cpu_ropes_ = false;          // some attention is on the CPU
  std::uint32_t epoch_ = 0;
  std::vector<bool> copying_;       // by gpu: copies are on their way
  std::vector<std::uint32_t> launched_;  // by graph of the entry: the epoch of its last launch
  Counts counts_;                   // what devices compute in this step
  std::uint32_t skipped_ = plan::kNone;  // a record without pairs for the CPU, until its await
  Status broken_;
  Busy busy_;
  std::unique_ptr<TraceRecorder> trace_;
};

Expected<std::unique_ptr<Executor>> HybridExecutor::create(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  KTC_RETURN_IF_ERROR(check_hybrid(plan->plan));
  auto executor = std::make_unique<HybridExecutor>();
  HybridExecutor& e = *executor;
  e.plan_ = std::move(plan);
  e.options_ = options;
  e.bounds_ = entry_bounds(e.plan_->plan);
  const planfb::PlanT& p = e.plan_->plan;
  e.watchdog_ = std::make_unique<Watchdog>(options.watchdog, options.wedged, options.wedged_context);
  if (options.tracer.report != nullptr) e.trace_ = std::make_unique<TraceRecorder>();
  e.slots_ = moving_slots(p);
  e.cpu_.memory.moving = &e.slots_;
  KTC_RETURN_IF_ERROR(e.allocate());
  KTC_RETURN_IF_ERROR(e.open_handoff());
  KTC_ASSIGN_OR_RETURN(e.weights_, weights::WeightStore::open(e.plan_, false));
  KTC_RETURN_IF_ERROR(e.hold_streamed());
  HybridMemory memory{&e.gpus_, &e.cpu_.memory, e.logits_.data(), e.staged_.data(), e.counted_.data()};
  std::vector<const std::vector<Step>*> steps;
  for (const EntryBounds& bounds : e.bounds_) {
    KTC_ASSIGN_OR_RETURN(HybridProgram program, resolve_hybrid(p, bounds, *e.weights_, e.cpu_.kernels, memory, e.handoffs_));
    e.programs_.push_back(std::move(program));
  }
  for (const HybridProgram& program : e.programs_) {
    steps.push_back(&program.cpu_steps);
    for (const Step& step : program.cpu_steps)
      e.cpu_ropes_ = e.cpu_ropes_ || std::holds_alternative<GqaStep>(step) || std::holds_alternative<MlaStep>(step);
  }
  KTC_RETURN_IF_ERROR(e.cpu_.start(p, *e.weights_, steps, options.threads));
  KTC_RETURN_IF_ERROR(upload_weights(*e.plan_, *e.weights_, e.gpus_, options.progress));
  if (options.populate) KTC_RETURN_IF_ERROR(e.weights_->populate(options.progress));
  if (!p.moving.empty() && options.update != UpdateKind::off) KTC_RETURN_IF_ERROR(e.open_mover());
  for (HybridProgram& program : e.programs_) {
    if (!program.bounds.decode) continue;
    // Once as it stands: kernels are loaded now and not while a wait holds the device.
    KTC_RETURN_IF_ERROR(e.run_entry(program, {}).with_context(program.name));
    if (options.graphs) KTC_RETURN_IF_ERROR(e.capture(program).with_context(program.name));
  }
  e.busy_ = {};
  return std::unique_ptr<Executor>(std::move(executor));
}

// After a failure a device may still be at work on our memory: waits on it end by the poison, and what does not end for all that
// is left alone for ever, with all that it may touch.
HybridExecutor::~HybridExecutor() {
  if (broken_.ok() || watchdog_ == nullptr) return;
  watchdog_->poison();
  const auto give_up_at = std::chrono::steady_clock::now() + watchdog_->patience() / 2;
  const auto quiet = [&](device::Stream& stream) {
    for (SpinWait wait(std::chrono::nanoseconds(0));; wait.rest()) {
      const Expected<bool> idle = stream.idle();
      if (!idle.ok() || *idle) return true;
      if (std::chrono::steady_clock::now() > give_up_at) return false;
    }
  };
  bool all_quiet = true;
  for (Gpu& gpu : gpus_) all_quiet = quiet(gpu.compute()) && quiet(gpu.copies()) && all_quiet;
  if (all_quiet) return;
  if (mover_ != nullptr) mover_->stop();  // it reads weights, which go
  struct Left {
    HostBlock arena, logits, staged, counted;
    std::unique_ptr<weights::WeightStore> weights;
    std::unique_ptr<Watchdog> watchdog;
    std::vector<Gpu> gpus;
    std::vector<Streamer> streamers;
    std::unique_ptr<ExpertMover> mover;
    std::vector<Handoff> handoffs;
    std::vector<HybridProgram> programs;
    std::unique_ptr<TraceRecorder> trace;
  };
  static std::vector<Left>* const left = new std::vector<Left>;
  left->push_back({std::move(cpu_.arena), std::move(logits_), std::move(staged_), std::move(counted_), std::move(weights_),
                   std::move(watchdog_), std::move(gpus_), std::move(streamers_), std::move(mover_), std::move(handoffs_), std::move(programs_), std::move(trace_)});
}

Status HybridExecutor::allocate() {
  const planfb::PlanT& p = plan_->plan;
  const StagedBytes staged = staged_bytes(p);
  const std::uint64_t counted = options_.expert_counts.empty() ? 0 : staged.counted;
  // devices first: what is missing there is known without touching the host's memory
  KTC_ASSIGN_OR_RETURN(gpus_, open_gpus(p, options_));
  for (Gpu& gpu : gpus_) {
    KTC_ASSIGN_OR_RETURN(Streamer streamer, Streamer::open(*gpu.device, plan::stream_areas(p, gpu.index)));
    streamers_.push_back(std::move(streamer));
  }
  KTC_RETURN_IF_ERROR(cpu_.open(p, options_, staged.logits + staged.between_gpus + counted + plan::record_bytes(p) + plan::spare_host_bytes(p)));
  KTC_ASSIGN_OR_RETURN(logits_, HostBlock::allocate(staged.logits, "logits"));
  KTC_ASSIGN_OR_RETURN(staged_, HostBlock::allocate(staged.between_gpus, "values between devices"));
  KTC_ASSIGN_OR_RETURN(counted_, HostBlock::allocate(counted, "ids of experts"));
  for (const HostBlock* block : {&cpu_.arena, &logits_, &staged_, &counted_})
    if (block->bytes() != 0) pin(gpus_, block->data(), block->bytes());
  copying_.resize(gpus_.size(), false);
  return {};
}

// What is streamed lies in memory that devices have pinned: copies from it run at the full rate, and beside the host's work.
Status HybridExecutor::hold_streamed() {
  const std::vector<std::uint32_t> streamed = streamed_weights(plan_->plan);
  if (streamed.empty()) return {};
  KTC_RETURN_IF_ERROR(weights_->make_resident(streamed, options_.progress));
  std::set<const std::byte*> pinned;  // weights may share their bytes
  Status refused;
  for (const std::uint32_t index : streamed) {
    const weights::WeightView& view = (*weights_)[index];
    if (!pinned.insert(view.data).second) continue;
    const std::uint64_t bytes = (view.matrix_bytes * view.batch + 4095) / 4096 * 4096;
    for (Gpu& gpu : gpus_)
      if (Status status = gpu.device->register_host(const_cast<std::byte*>(view.data), bytes); !status.ok()) refused = std::move(status);
  }
  if (!refused.ok() && options_.note != nullptr)
    options_.note(options_.note_context, "experts stream to the GPU at a lower rate: " + refused.message());
  return {};
}

Status HybridExecutor::open_mover() {
  MoverOptions options;
  options.rules = options_.update_rules;
  options.rules.every_tokens = plan_->plan.update_every_tokens;
  options.always = options_.update == UpdateKind::on;
  options.threads = cpu_.workers->threads();
  KTC_ASSIGN_OR_RETURN(mover_, ExpertMover::open(plan_->plan, gpus_, *weights_, slots_, options));
  return {};
}

Status HybridExecutor::open_handoff() {
  handoff_ = options_.handoff == HandoffKind::automatic ? HandoffKind::doorbell : options_.handoff;
  std::vector<Handoff> opened;
  for (Gpu& gpu : gpus_) {
    std::vector<RecordArea> areas = record_areas(plan_->plan, gpu.index);
    if (handoff_ == HandoffKind::doorbell) {
      Expected<Handoff> handoff = Handoff::open_doorbell(*gpu.device, std::move(areas));
      if (handoff.ok()) {
        opened.push_back(std::move(handoff).value());
        watchdog_->watch_words(opened.back().words());
        continue;
      }
      if (options_.handoff == HandoffKind::doorbell) return handoff.status();
      if (options_.note != nullptr)
        options_.note(options_.note_context, "hand-off by host nodes, which is slower: " + handoff.status().message());
      handoff_ = HandoffKind::hostnode;
      areas = record_areas(plan_->plan, gpu.index);
    }
    KTC_ASSIGN_OR_RETURN(Handoff handoff, Handoff::open_hostnode(*gpu.device, std::move(areas), *watchdog_));
    opened.push_back(std::move(handoff));
  }
  handoffs_ = std::move(opened);
  return {};
}

Status HybridExecutor::capture(HybridProgram& program) {
  const Counts counts = program.bound_counts();
  for (std::uint32_t g = 0; g < program.graphs.size(); ++g) {
    device::Stream* stream = nullptr;
    for (const HybridStep& step : program.steps) {
      if (step.graph != g || step.gpu == plan::kNone) continue;
      if (stream == nullptr) {
        stream = &gpus_[step.gpu].compute();
        KTC_RETURN_IF_ERROR(stream->begin_capture());
      }
      for (const Launch& launch : step.launches) KTC_RETURN_IF_ERROR(launch(*stream, counts).with_context(step.name));
    }
    if (stream != nullptr) {
      KTC_ASSIGN_OR_RETURN(program.graphs[g], stream->end_capture());
    }
  }
  return {};
}

// ----------------------------------------------------------------------------------------------------------------- a step

Expected<StepResult> HybridExecutor::run(std::span<const StepSequence> sequences) {
  KTC_RETURN_IF_ERROR(broken_);
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
    if (status.ok()) status = walk(program);
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

Status HybridExecutor::begin_step(HybridProgram& program, std::span<const StepSequence> sequences) {
  if (++epoch_ == 0) epoch_ = 1;
  cpu_.fill(plan_->plan, sequences, {&program.ids, &program.positions, &program.output_rows, &program.deferred});
  if (cpu_ropes_) cpu_.fill_ropes();
  counts_ = program.bounds.decode ? program.bound_counts()
                                  : Counts{static_cast<std::uint32_t>(cpu_.state.tokens), static_cast<std::uint32_t>(cpu_.state.rows),
                                           static_cast<std::uint32_t>(sequences.size())};
  if (mover_ != nullptr) KTC_RETURN_IF_ERROR(mover_->advance());
  launched_.assign(program.graphs.size(), 0);
  skipped_ = plan::kNone;
  for (Gpu& gpu : gpus_) {
    std::byte* block = gpu.host_block[epoch_ % 2].data();
    const std::uint64_t bytes = fill_step_block(plan_->plan, program.bounds, program.block, sequences, epoch_, block);
    KTC_RETURN_IF_ERROR(gpu.compute().copy_to_device(gpu.step_block.data(), block, bytes));
  }
  for (std::size_t g = 0; g < gpus_.size(); ++g)
    KTC_RETURN_IF_ERROR(streamers_[g].begin(*gpus_[g].device, program.streams, program.pieces[g], trace_.get(), gpus_[g].index));
  return {};
}

Status HybridExecutor::walk(HybridProgram& program) {
  for (const HybridStep& step : program.steps) {
    beat();
    switch (step.kind) {
      case StepKind::launch: KTC_RETURN_IF_ERROR(launch(program, step)); break;
      case StepKind::copy: KTC_RETURN_IF_ERROR(copy(program, step)); break;
      case StepKind::publish:
        KTC_RETURN_IF_ERROR(launch(program, step));
        KTC_RETURN_IF_ERROR(serve_publish(program, step));
        break;
      case StepKind::await: {
        const RecordStep& record = program.records[step.at];
        const std::uint64_t begin = trace_now();
        // nobody waits for a skipped one; host nodes want their answer always
        if (record.area->node == nullptr) handoffs_[record.gpu].near(epoch_, step.at).announce();
        if (skipped_ != step.at || record.area->node != nullptr)
          write_result(*record.area, epoch_, static_cast<std::uint32_t>(cpu_.state.tokens), program.awaits[step.at], *cpu_.workers);
        const std::uint64_t end = trace_now();
        busy_.cpu += end - begin;
        if (trace_ != nullptr) trace_->add({.track = Track::cpu, .name = step.name, .begin = begin, .end = end});
        skipped_ = plan::kNone;
        KTC_RETURN_IF_ERROR(launch(program, step));
        break;
      }
      case StepKind::compute: {
        const bool skipped = step.skipped_with != plan::kNone && step.skipped_with == skipped_;
        if (!skipped) KTC_RETURN_IF_ERROR(wait_copies());
        if (mover_ != nullptr && step.moving.ids.data != nullptr)
          mover_->count(step.moving.index, step.moving.ids, cpu_.state.count(step.moving.of_rows), program.bounds.decode);
        if (skipped) break;
        const std::uint64_t begin = trace_now();
        ResultNear near;
        if (step.near_record != plan::kNone) {
          near = handoffs_[program.records[step.near_record].gpu].near(epoch_, step.near_record);
          cpu_.state.near = &near;
        }
        cpu_.run(program.cpu_steps[step.at]);
        cpu_.state.near = nullptr;
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
    if (watchdog_->stalled()) return {};  // end_step says so
  }
  return {};
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
    KTC_RETURN_IF_ERROR(streamers_[step.gpu].run(program.streams[step.stream], counts_).with_context(step.name));
    for (const Launch& launch : step.launches) KTC_RETURN_IF_ERROR(launch(stream, counts_).with_context(step.name));
    return {};
  }
  if (trace_ != nullptr) KTC_RETURN_IF_ERROR(trace_->begin(stream, gpus_[step.gpu].index, step.name));
  for (const Launch& launch : step.launches) KTC_RETURN_IF_ERROR(launch(stream, counts_).with_context(step.name));
  return trace_ != nullptr ? trace_->end(stream) : Status();
}

// On the stream for copies, ordered against the computation before and behind it; so the CPU waits for the copy alone.
Status HybridExecutor::copy(const HybridProgram& program, const HybridStep& step) {
  const CopyStep& copy = program.copies[step.at];
  const auto beside = [&](std::uint32_t g, const std::vector<CopyRows>& rows, bool to_host) -> Status {
    Gpu& gpu = gpus_[g];
    KTC_RETURN_IF_ERROR(gpu.compute().record(*gpu.before));
    KTC_RETURN_IF_ERROR(gpu.copies().wait_for(*gpu.before));
    for (const CopyRows& r : rows) KTC_RETURN_IF_ERROR(r.run(gpu.copies(), to_host, counts_).with_context(step.name));
    KTC_RETURN_IF_ERROR(gpu.copies().record(*gpu.after));
    KTC_RETURN_IF_ERROR(gpu.compute().wait_for(*gpu.after));
    copying_[g] = true;
    return {};
  };
  if (copy.from_gpu != plan::kNone) KTC_RETURN_IF_ERROR(beside(copy.from_gpu, copy.up, true));
  if (copy.from_gpu != plan::kNone && copy.to_gpu != plan::kNone) KTC_RETURN_IF_ERROR(wait_copies());
  if (copy.to_gpu != plan::kNone) {
    if (copy.from_gpu != plan::kNone) {
      KTC_RETURN_IF_ERROR(beside(copy.to_gpu, copy.down, false));
      return wait_copies();  // the area in between is used again
    }
    KTC_RETURN_IF_ERROR(beside(copy.to_gpu, copy.down, false));
  }
  return {};
}

Status HybridExecutor::wait_copies() {
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    if (!copying_[g]) continue;
    const std::uint64_t begin = trace_now();
    KTC_RETURN_IF_ERROR(watchdog_->stalled() ? Status() : gpus_[g].copies().wait());
    const std::uint64_t end = trace_now();
    busy_.wait += end - begin;
    if (trace_ != nullptr) trace_->add({.track = Track::wait, .name = "copies", .begin = begin, .end = end});
    copying_[g] = false;
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
  // A lost device tells no one: ask now and then.
  using Clock = std::chrono::steady_clock;
  Clock::time_point ask = Clock::now() + std::chrono::milliseconds(50);
  SpinWait wait(cpu_.workers->spin());
  for (std::uint32_t looks = 0; !arrived(); ++looks) {
    if (watchdog_->stalled()) return {};
    gpu::HandoffWords* words = area.node == nullptr ? handoffs_[record.gpu].words() : nullptr;
    if (words != nullptr) __atomic_fetch_add(&words->heartbeat, 1u, __ATOMIC_RELAXED);
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
  if (!watchdog_->stalled()) return {};
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
  Status status = mover_->hurry(std::chrono::nanoseconds(nanoseconds / 20));
  return status.ok() ? Status() : give_up(std::move(status));
}

void HybridExecutor::count_activations(const HybridProgram& program) const {
  for (const CountedIds& counted : program.counted) {
    const std::size_t rows = counted.copy.of_rows ? cpu_.state.rows : cpu_.state.tokens;
    for (std::size_t r = 0; r < rows; ++r) {
      const auto* ids = reinterpret_cast<const std::int32_t*>(counted.copy.host + r * counted.copy.host_stride);
      for (std::size_t k = 0; k < counted.top_k; ++k)
        if (const auto id = static_cast<std::uint32_t>(ids[k]);
            id < counted.experts && (counted.slots == nullptr || counted.slots[id] >= 0))
          ++counted.counts[id];
    }
  }
}

}  // namespace

std::string_view to_string(UpdateKind kind) {
  switch (kind) {
    case UpdateKind::automatic: return "auto";
    case UpdateKind::on: return "on";
    case UpdateKind::off: return "off";
  }
  return "unknown";
}

std::string_view to_string(HandoffKind kind) {
  switch (kind) {
    case HandoffKind::automatic: return "automatic";
    case HandoffKind::doorbell: return "doorbell";
    case HandoffKind::hostnode: return "hostnode";
  }
  return "unknown";
}

Expected<std::unique_ptr<Executor>> open_hybrid(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  return HybridExecutor::create(std::move(plan), options);
}

}  // namespace ktc::exec
