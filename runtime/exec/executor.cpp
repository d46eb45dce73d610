#include "runtime/exec/executor.h"

#include <new>
#include <string>

#include "runtime/exec/hybrid_executor.h"
#include "runtime/exec/plan_executor.h"
#include "runtime/exec/record_moments.h"
#include "runtime/exec/resolve.h"

namespace ktc::exec {
namespace {

class CpuExecutor final : public PlanExecutor {
 public:
  CpuExecutor(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) : PlanExecutor(std::move(plan), options) {}
  static Expected<std::unique_ptr<Executor>> create(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options);

  Expected<StepResult> run(std::span<const StepSequence> sequences) override;

 private:
  void run_steps(const Program& program) const;

  std::unique_ptr<weights::WeightStore> weights_;
  std::vector<Program> programs_;  // in the order of bounds_
};

Expected<std::unique_ptr<Executor>> CpuExecutor::create(std::shared_ptr<const plan::OpenPlan> plan,
                                                        const ExecutorOptions& options) {
  KTC_RETURN_IF_ERROR(check_runnable(plan->plan));
  auto executor = std::make_unique<CpuExecutor>(std::move(plan), options);
  const planfb::PlanT& p = executor->plan_->plan;
  CpuSide& cpu = executor->cpu_;
  KTC_RETURN_IF_ERROR(cpu.open(p, options));
  KTC_ASSIGN_OR_RETURN(executor->weights_, weights::WeightStore::open(executor->plan_, false));
  KTC_RETURN_IF_ERROR(cpu.place(p, *executor->weights_, options));
  KTC_ASSIGN_OR_RETURN(executor->programs_, resolve(p, *executor->weights_, cpu.kernels, cpu.memory));
  if (options.moments != nullptr) KTC_RETURN_IF_ERROR(check_recordable(executor->programs_));
  std::vector<const std::vector<Step>*> steps;
  for (const Program& program : executor->programs_) steps.push_back(&program.steps);
  KTC_RETURN_IF_ERROR(cpu.start(p, *executor->weights_, steps, options.threads));
  KTC_RETURN_IF_ERROR(executor->weights_->load(options.progress));
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

std::string_view to_string(ProductsKind kind) { return kind == ProductsKind::library ? "library" : "own"; }

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
