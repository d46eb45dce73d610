#include "runtime/exec/executor.h"

#include <new>
#include <string>

#include "runtime/exec/cpu_side.h"
#include "runtime/exec/hybrid_executor.h"
#include "runtime/exec/record_moments.h"
#include "runtime/exec/resolve.h"
#include "runtime/exec/step_request.h"

namespace ktc::exec {
namespace {

class CpuExecutor final : public Executor {
 public:
  static Expected<std::unique_ptr<Executor>> create(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options);

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

 private:
  const planfb::CacheT& cache() const { return *plan_->plan.caches[0]; }
  void run_steps(const Program& program) const;

  std::shared_ptr<const plan::OpenPlan> plan_;
  ExecutorOptions options_;
  CpuSide cpu_;
  std::unique_ptr<weights::WeightStore> weights_;
  std::vector<Program> programs_;
  std::vector<EntryBounds> bounds_;  // of the programs
  Busy busy_;
};

Expected<std::unique_ptr<Executor>> CpuExecutor::create(std::shared_ptr<const plan::OpenPlan> plan,
                                                        const ExecutorOptions& options) {
  KTC_RETURN_IF_ERROR(check_runnable(plan->plan));
  auto executor = std::make_unique<CpuExecutor>();
  executor->plan_ = std::move(plan);
  executor->options_ = options;
  const planfb::PlanT& p = executor->plan_->plan;
  CpuSide& cpu = executor->cpu_;
  KTC_RETURN_IF_ERROR(cpu.open(p, options));
  KTC_ASSIGN_OR_RETURN(executor->weights_, weights::WeightStore::open(executor->plan_, false));
  KTC_ASSIGN_OR_RETURN(executor->programs_, resolve(p, *executor->weights_, cpu.kernels, cpu.memory));
  executor->bounds_ = entry_bounds(p);
  if (options.moments != nullptr) KTC_RETURN_IF_ERROR(check_recordable(executor->programs_));
  std::vector<const std::vector<Step>*> steps;
  for (const Program& program : executor->programs_) steps.push_back(&program.steps);
  KTC_RETURN_IF_ERROR(cpu.start(p, *executor->weights_, steps, options.threads));
  if (options.populate) KTC_RETURN_IF_ERROR(executor->weights_->populate(options.progress));
  return std::unique_ptr<Executor>(std::move(executor));
}

void CpuExecutor::run_steps(const Program& program) const {
  const auto run_one = [this](const Step& step) { cpu_.run(step); };
  if (options_.moments != nullptr) {
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      run_one(program.steps[i]);
      record_moments(plan_->plan, program, i, cpu_.state, *options_.moments);
    }
    return;
  }
  const StepObserver& observer = options_.observer;
  if (observer.report == nullptr && options_.tracer.report == nullptr) {
    for (const Step& step : program.steps) run_one(step);
    return;
  }
  const std::uint64_t begin = trace_now();
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    TraceSlice slice{.track = Track::cpu, .name = program.names[i], .begin = trace_now()};
    run_one(program.steps[i]);
    slice.end = trace_now();
    if (observer.report != nullptr)
      observer.report(observer.context, program.entry, static_cast<std::uint32_t>(i), program.names[i], slice.end - slice.begin);
    if (options_.tracer.report != nullptr) options_.tracer.report(options_.tracer.context, slice);
  }
  if (options_.tracer.report != nullptr)
    options_.tracer.report(options_.tracer.context,
                           {.track = Track::step, .name = plan_->plan.entries[program.entry]->name, .begin = begin, .end = trace_now()});
}

Expected<StepResult> CpuExecutor::run(std::span<const StepSequence> sequences) {
  KTC_RETURN_IF_ERROR(check_sequences(plan_->plan, sequences));
  KTC_ASSIGN_OR_RETURN(const std::size_t chosen, choose_entry(bounds_, sequences));
  const Program* program = &programs_[chosen];
  const std::uint64_t begin = trace_now();
  cpu_.workers->enter([&] {
    cpu_.fill(plan_->plan, sequences, {&program->ids, &program->positions, &program->output_rows, &program->deferred});
    cpu_.fill_ropes();
    run_steps(*program);
  });
  busy_.steps += trace_now() - begin;
  busy_.cpu = busy_.steps;
  StepResult result;
  result.logits = program->logits.data;
  result.row_stride = program->logits.stride;
  result.rows = static_cast<std::uint32_t>(cpu_.state.rows);
  return result;
}

}  // namespace

Expected<std::unique_ptr<Executor>> Executor::open(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  try {
    for (const auto& device : plan->plan.devices)
      if (device->kind != planfb::DeviceKind::cpu) return open_hybrid(std::move(plan), options);
    return CpuExecutor::create(std::move(plan), options);
  } catch (const std::bad_alloc&) {
    return make_error(StatusCode::resource_exhausted, {"executor", "not enough memory for its tables", "", "", kSmallerPlan});
  }
}

}  // namespace ktc::exec
