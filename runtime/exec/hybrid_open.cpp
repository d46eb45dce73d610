// The hybrid executor's memory, hand-offs, programs and graphs: made at open, taken apart at the end.
#include <algorithm>
#include <chrono>
#include <set>
#include <string>

#include "runtime/exec/hybrid_executor.h"
#include "runtime/exec/hybrid_resolve.h"
#include "runtime/exec/spin_wait.h"

namespace ktc::exec {

using weights::HostBlock;

Expected<std::unique_ptr<Executor>> HybridExecutor::create(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  KTC_RETURN_IF_ERROR(check_hybrid(plan->plan));
  auto executor = std::make_unique<HybridExecutor>(std::move(plan), options);
  HybridExecutor& e = *executor;
  const planfb::PlanT& p = e.plan_->plan;
  e.watchdog_ = std::make_unique<Watchdog>(options.watchdog, options.wedged, options.wedged_context);
  if (options.tracer.report != nullptr) e.trace_ = std::make_unique<TraceRecorder>();
  e.slots_ = moving_slots(p);
  e.cpu_.memory.moving = &e.slots_;
  e.shared_slots_ = shared_slots(p);
  e.cpu_.memory.shared = &e.shared_slots_;
  KTC_RETURN_IF_ERROR(e.allocate());
  KTC_RETURN_IF_ERROR(e.open_handoff());
  KTC_ASSIGN_OR_RETURN(e.weights_, weights::WeightStore::open(e.plan_, false));
  KTC_RETURN_IF_ERROR(e.hold_banks());
  KTC_RETURN_IF_ERROR(e.cpu_.place(p, *e.weights_, options));
  HybridMemory memory{&e.gpus_, &e.cpu_.memory, e.logits_.data(), e.counted_.data(), e.shared_.data(), &e.shared_slots_};
  std::vector<const std::vector<Step>*> steps;
  for (const EntryBounds& bounds : e.bounds_) {
    KTC_ASSIGN_OR_RETURN(HybridProgram program, resolve_hybrid(p, bounds, *e.weights_, e.cpu_.kernels, memory, e.handoffs_));
    e.programs_.push_back(std::move(program));
  }
  report_products(e.gpus_, options);
  for (const HybridProgram& program : e.programs_) {
    steps.push_back(&program.cpu_steps);
    for (const Step& step : program.cpu_steps)
      e.cpu_ropes_ = e.cpu_ropes_ || std::holds_alternative<GqaStep>(step) || std::holds_alternative<MlaStep>(step);
  }
  KTC_RETURN_IF_ERROR(e.cpu_.start(p, *e.weights_, steps, options.threads));
  KTC_RETURN_IF_ERROR(upload_weights(*e.plan_, *e.weights_, e.gpus_, options.progress));
  KTC_RETURN_IF_ERROR(e.weights_->load(options.progress));
  if (options.populate) KTC_RETURN_IF_ERROR(e.weights_->populate(options.progress));
  KTC_RETURN_IF_ERROR(e.open_sampling());
  if (!p.moving.empty() && options.update != UpdateKind::off) KTC_RETURN_IF_ERROR(e.open_mover());
  for (HybridProgram& program : e.programs_) {
    if (!program.bounds.decode) continue;
    // Once as it stands: kernels are loaded now and not while a wait holds the device.
    KTC_RETURN_IF_ERROR(e.run_entry(program, {}).with_context(program.name));
    if (options.graphs) KTC_RETURN_IF_ERROR(e.capture(program).with_context(program.name));
    if (!program.sample) continue;
    device::Stream& stream = e.gpus_[program.sample->gpu].compute();
    for (const bool greedy : {false, true}) KTC_RETURN_IF_ERROR(program.sample->run(stream, greedy).with_context(program.name));
    KTC_RETURN_IF_ERROR(stream.wait().with_context(program.name));
    if (options.graphs) KTC_RETURN_IF_ERROR(program.sample->capture(stream).with_context(program.name));
  }
  e.busy_ = {};
  return std::unique_ptr<Executor>(std::move(executor));
}

// After a failure a device may still be at work on our memory: waits on it end by the poison, and what does not end for all that
// is left alone for ever, with all that it may touch.
HybridExecutor::~HybridExecutor() {
  while (broken_.ok() && !begun_.empty()) (void)finish(true);
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
  for (Gpu& gpu : gpus_) all_quiet = quiet(gpu.compute()) && quiet(gpu.copies()) && quiet(gpu.values()) && all_quiet;
  if (all_quiet) return;
  if (mover_ != nullptr) mover_->stop();  // it reads weights, which go
  struct Left {
    HostBlock arena, logits, counted, shared, landing[2];
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
  left->push_back({std::move(cpu_.arena), std::move(logits_), std::move(counted_), std::move(shared_), {std::move(landing_[0]), std::move(landing_[1])}, std::move(weights_),
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
  KTC_RETURN_IF_ERROR(cpu_.open(p, options_, staged.logits + counted + plan::record_bytes(p) + plan::spare_host_bytes(p)));
  KTC_ASSIGN_OR_RETURN(logits_, HostBlock::allocate(staged.logits, "logits"));
  KTC_ASSIGN_OR_RETURN(counted_, HostBlock::allocate(counted, "ids of experts"));
  KTC_ASSIGN_OR_RETURN(shared_, HostBlock::allocate(shared_table_bytes(p), "slots of shared experts"));
  for (const HostBlock* block : {&cpu_.arena, &logits_, &counted_, &shared_})
    if (block->bytes() != 0) pin(gpus_, block->data(), block->bytes());
  copying_.resize(gpus_.size(), false);
  return {};
}

// Experts that are streamed or may move lie in memory that devices have pinned: copies from it run at the full rate, and beside the
// host's work.
Status HybridExecutor::hold_banks() {
  std::vector<std::uint32_t> held = streamed_weights(plan_->plan);
  if (options_.update != UpdateKind::off)
    for (const auto& moving : plan_->plan.moving) held.insert(held.end(), {moving->w_cold_gate_up, moving->w_cold_down});
  if (held.empty()) return {};
  KTC_RETURN_IF_ERROR(weights_->make_resident(held, options_.progress));
  std::set<const std::byte*> pinned;  // weights may share their bytes
  Status refused;
  for (const std::uint32_t index : held) {
    const weights::WeightView& view = (*weights_)[index];
    if (!pinned.insert(view.data).second) continue;
    const std::uint64_t bytes = (view.matrix_bytes * view.batch + 4095) / 4096 * 4096;
    // for all of them: pinned is pinned
    if (Status status = gpus_.front().device->register_host(const_cast<std::byte*>(view.data), bytes); !status.ok()) refused = std::move(status);
  }
  banks_pinned_ = refused.ok();
  if (!refused.ok() && options_.note != nullptr)
    options_.note(options_.note_context, "experts go to the GPU at a lower rate: " + refused.message());
  return {};
}

Status HybridExecutor::open_mover() {
  MoverOptions options;
  options.rules = options_.update_rules;
  options.rules.every_tokens = plan_->plan.update_every_tokens;
  options.always = options_.update == UpdateKind::on;
  options.threads = cpu_.workers->threads();
  options.pinned = banks_pinned_;
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

Status HybridExecutor::open_sampling() {
  std::uint32_t rows = 0;
  for (HybridProgram& program : programs_) {
    if (!program.bounds.decode || !options_.device_sampling) continue;
    program.sample = resolve_sample(plan_->plan, program.bounds, gpus_);
    if (program.sample) rows = std::max(rows, program.sample->args.rows);
  }
  if (rows == 0) return {};
  for (int i = 0; i < 2; ++i) {
    KTC_ASSIGN_OR_RETURN(landing_[i], HostBlock::allocate(std::uint64_t{rows} * sizeof(std::int32_t), "ids that were chosen"));
    pin(gpus_, landing_[i].data(), landing_[i].bytes());
    for (const HybridProgram& program : programs_)
      if (program.sample && chosen_events_[i] == nullptr) {
        KTC_ASSIGN_OR_RETURN(chosen_events_[i], gpus_[program.sample->gpu].device->create_event());
      }
  }
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

Expected<std::unique_ptr<Executor>> open_hybrid(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  return HybridExecutor::create(std::move(plan), options);
}

}  // namespace ktc::exec
