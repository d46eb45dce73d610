#include "runtime/exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <string>

#include "runtime/exec/cpu_count.h"
#include "runtime/exec/record_moments.h"
#include "runtime/exec/resolve.h"
#include "runtime/exec/step_request.h"
#include "runtime/weights/host_memory.h"

namespace ktc::exec {
namespace {

using weights::HostBlock;

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
  int threads() const override { return workers_->threads(); }
  IsaLevel isa() const override { return kernels_.level; }

 private:
  const planfb::CacheT& cache() const { return *plan_->plan.caches[0]; }
  Status allocate();
  Status allocate_tile_scratch();
  void fill_inputs(const Program& program, std::span<const StepSequence> sequences);
  void fill_ropes();
  void run_steps(const Program& program) const;

  std::shared_ptr<const plan::OpenPlan> plan_;
  ExecutorOptions options_;
  kernels::KernelSet kernels_ = {};
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<weights::WeightStore> weights_;
  HostBlock arena_;
  std::vector<HostBlock> caches_;
  HostBlock rope_values_, tile_scratch_;
  Memory memory_;
  std::vector<Program> programs_;
  std::vector<EntryBounds> bounds_;  // of the programs
  std::vector<Token> tokens_;
  std::vector<std::uint32_t> longest_first_, busy_experts_;
  StepState state_;
};

constexpr const char* kSmaller =
    "compile with a smaller kv_cache.tokens, kv_cache.sequences or batch.chunk, or free some memory";

std::uint64_t add_saturated(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

// The arena, the caches, the rope tables and splat weights are all that this process touches beyond the weight files. Their
// sum is compared with what there is before any of it is allocated.
Status CpuExecutor::allocate() {
  const planfb::PlanT& p = plan_->plan;
  const std::uint64_t arena = p.devices[0]->arena_bytes;
  std::uint64_t cache = 0, splat = 0, rope = 0;
  std::uint32_t most_tokens = 0;
  for (const auto& entry : p.entries) most_tokens = std::max(most_tokens, entry->max_tokens);
  for (const auto& c : p.caches) cache = add_saturated(cache, *kv_cache_bytes(*c));
  for (const auto& w : p.weights)
    if (w->source == planfb::WeightSource::splat) splat = add_saturated(splat, w->bytes);
  for (const auto& r : p.ropes) rope += std::uint64_t{2} * most_tokens * r->inv_freq.size() * sizeof(float);
  std::string what = "arena of " + std::to_string(arena) + " bytes and KV cache of " + std::to_string(cache) + " bytes";
  if (splat != 0) what += " and splat weights of " + std::to_string(splat) + " bytes";
  KTC_RETURN_IF_ERROR(weights::check_available(add_saturated(add_saturated(arena, cache), add_saturated(splat, rope)), what,
                                               kSmaller));

  KTC_ASSIGN_OR_RETURN(arena_, HostBlock::allocate(arena, "arena"));
  memory_.arena = arena_.data();
  for (const auto& c : p.caches) {
    KTC_ASSIGN_OR_RETURN(HostBlock block, HostBlock::allocate(*kv_cache_bytes(*c), "KV cache " + c->name));
    memory_.caches.push_back(block.data());
    caches_.push_back(std::move(block));
  }
  KTC_ASSIGN_OR_RETURN(rope_values_, HostBlock::allocate(rope, "rope tables"));
  float* values = reinterpret_cast<float*>(rope_values_.data());
  for (const auto& r : p.ropes) {
    RopeTable table;
    table.inv_freq = r->inv_freq.data();
    table.half = r->inv_freq.size();
    table.factor = static_cast<double>(r->factor);
    table.interleaved = r->style == planfb::RopeStyle::interleaved;
    table.cos = values;
    table.sin = values + most_tokens * table.half;
    values += std::size_t{2} * most_tokens * table.half;
    memory_.ropes.push_back(table);
  }
  tokens_.resize(most_tokens);
  longest_first_.resize(most_tokens);
  return {};
}

// Tile kernels unpack a panel into memory of their worker: the largest of all weights in panels, for each worker.
Status CpuExecutor::allocate_tile_scratch() {
  std::size_t each = 0;
  for (std::uint32_t i = 0; i < plan_->plan.weights.size(); ++i) {
    const weights::WeightView& w = (*weights_)[i];
    if (w.packing == Packing::row_major || kernels_.panel(w.format).many == nullptr) continue;
    const auto layout = panel_layout(w.format, w.group, w.packing == Packing::panel_paired, w.rows, w.columns);
    each = std::max(each, std::max<std::size_t>(64, kernels::panel_scratch_bytes(*layout)));
  }
  if (each == 0) return {};
  KTC_ASSIGN_OR_RETURN(tile_scratch_, HostBlock::allocate(std::uint64_t{each} * static_cast<unsigned>(workers_->threads()), "tile scratch"));
  state_.tile_scratch = tile_scratch_.data();
  state_.tile_scratch_each = each;
  state_.enter_tiles = kernels_.enter_tiles;
  state_.leave_tiles = kernels_.leave_tiles;
  return {};
}

Expected<std::unique_ptr<Executor>> CpuExecutor::create(std::shared_ptr<const plan::OpenPlan> plan,
                                                        const ExecutorOptions& options) {
  const planfb::PlanT& p = plan->plan;
  KTC_RETURN_IF_ERROR(check_runnable(p));
  const CpuFeatures& features = host_cpu_features();
  const auto levels = kernels::available_levels(features);
  if (options.isa != IsaLevel::best && std::find(levels.begin(), levels.end(), options.isa) == levels.end()) {
    std::string names;
    for (const IsaLevel level : levels) names += (names.empty() ? "" : ", ") + std::string(to_string(level));
    return make_error(StatusCode::incompatible, {"ISA level", "this machine does not run it",
                                                 std::string(to_string(options.isa)), "one of " + names + ", best", ""});
  }
  const std::uint64_t counts = std::uint64_t{p.model->layers} * p.model->experts;
  if (!options.expert_counts.empty() && options.expert_counts.size() != counts)
    return make_error(StatusCode::invalid_argument, {"expert counts", "wrong size", std::to_string(options.expert_counts.size()),
                                                     std::to_string(counts), ""});

  auto executor = std::make_unique<CpuExecutor>();
  executor->plan_ = std::move(plan);
  executor->options_ = options;
  executor->kernels_ = kernels::select_kernels(features, options.isa);
  KTC_RETURN_IF_ERROR(executor->allocate());
  executor->memory_.expert_counts = options.expert_counts;
  KTC_ASSIGN_OR_RETURN(executor->weights_, weights::WeightStore::open(executor->plan_, false));
  KTC_ASSIGN_OR_RETURN(executor->programs_,
                       resolve(executor->plan_->plan, *executor->weights_, executor->kernels_, executor->memory_));
  executor->bounds_ = entry_bounds(executor->plan_->plan);
  if (options.moments != nullptr) KTC_RETURN_IF_ERROR(check_recordable(executor->programs_));
  std::size_t experts = 0;
  for (const Program& program : executor->programs_)
    for (const Step& step : program.steps)
      if (const auto* bank = std::get_if<ExpertsStep>(&step))
        experts = std::max(experts, bank->experts);
      else if (const auto* panels = std::get_if<PanelExpertsStep>(&step))
        experts = std::max(experts, panels->routed.experts);
  executor->busy_experts_.resize(experts);
  KTC_ASSIGN_OR_RETURN(executor->workers_,
                       Workers::create(options.threads > 0 ? options.threads : default_thread_count()));
  KTC_RETURN_IF_ERROR(executor->allocate_tile_scratch());
  if (options.populate) KTC_RETURN_IF_ERROR(executor->weights_->populate(options.progress));
  executor->state_.workers = executor->workers_.get();
  executor->state_.token = executor->tokens_.data();
  executor->state_.longest_first = executor->longest_first_.data();
  executor->state_.busy_experts = executor->busy_experts_.data();
  return std::unique_ptr<Executor>(std::move(executor));
}

void CpuExecutor::fill_inputs(const Program& program, std::span<const StepSequence> sequences) {
  std::size_t t = 0, r = 0;
  state_.prefill = false;
  for (const StepSequence& s : sequences) {
    if (s.ids.size() > 1) state_.prefill = true;
    for (std::size_t i = 0; i < s.ids.size(); ++i, ++t) {
      const std::uint32_t position = s.position + static_cast<std::uint32_t>(i);
      tokens_[t] = {s.pages.data(), position};
      longest_first_[t] = static_cast<std::uint32_t>(t);
      for (const Ids& ids : program.ids) *ids.row(t) = s.ids[i];
      for (const Ids& positions : program.positions) *positions.row(t) = static_cast<std::int32_t>(position);
      for (const Ids& deferred : program.deferred) *deferred.row(t) = is_deferred(plan_->plan, s, position);
      if (i < s.logits_from) continue;
      for (const Ids& output_rows : program.output_rows) *output_rows.row(r) = static_cast<std::int32_t>(t);
      ++r;
    }
  }
  state_.tokens = t;
  state_.rows = r;
  std::sort(longest_first_.begin(), longest_first_.begin() + static_cast<std::ptrdiff_t>(t),
            [this](std::uint32_t a, std::uint32_t b) {
              return tokens_[a].position != tokens_[b].position ? tokens_[a].position > tokens_[b].position : a < b;
            });
}

// In double: a float product of position and frequency is off by 1e-3 radians at position 32768.
void CpuExecutor::fill_ropes() {
  for (const RopeTable& rope : memory_.ropes) {
    workers_->parallel_for(state_.tokens, 64, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) {
        for (std::size_t i = 0; i < rope.half; ++i) {
          const double angle = static_cast<double>(tokens_[t].position) * static_cast<double>(rope.inv_freq[i]);
          rope.cos[t * rope.half + i] = static_cast<float>(std::cos(angle) * rope.factor);
          rope.sin[t * rope.half + i] = static_cast<float>(std::sin(angle) * rope.factor);
        }
      }
    });
  }
}

void CpuExecutor::run_steps(const Program& program) const {
  const auto run_one = [this](const Step& step) {
    std::visit([this](const auto& s) { run_step(s, state_); }, step);
  };
  if (options_.moments != nullptr) {
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      run_one(program.steps[i]);
      record_moments(plan_->plan, program, i, state_, *options_.moments);
    }
    return;
  }
  const StepObserver& observer = options_.observer;
  if (observer.report == nullptr) {
    for (const Step& step : program.steps) run_one(step);
    return;
  }
  using Clock = std::chrono::steady_clock;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Clock::time_point start = Clock::now();
    run_one(program.steps[i]);
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    observer.report(observer.context, program.entry, static_cast<std::uint32_t>(i), program.names[i],
                    static_cast<std::uint64_t>(time));
  }
}

Expected<StepResult> CpuExecutor::run(std::span<const StepSequence> sequences) {
  KTC_RETURN_IF_ERROR(check_sequences(plan_->plan, sequences));
  KTC_ASSIGN_OR_RETURN(const std::size_t chosen, choose_entry(bounds_, sequences));
  const Program* program = &programs_[chosen];
  workers_->enter([&] {
    fill_inputs(*program, sequences);
    fill_ropes();
    run_steps(*program);
  });
  StepResult result;
  result.logits = program->logits.data;
  result.row_stride = program->logits.stride;
  result.rows = static_cast<std::uint32_t>(state_.rows);
  return result;
}

}  // namespace

Expected<std::unique_ptr<Executor>> Executor::open(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options) {
  try {
    return CpuExecutor::create(std::move(plan), options);
  } catch (const std::bad_alloc&) {
    return make_error(StatusCode::resource_exhausted, {"executor", "not enough memory for its tables", "", "", kSmaller});
  }
}

}  // namespace ktc::exec
