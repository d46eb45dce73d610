#include "runtime/exec/cpu_side.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/exec/cpu_count.h"
#include "runtime/exec/kernel_choice.h"
#include "runtime/exec/step_request.h"

namespace ktc::exec {

using weights::HostBlock;

namespace {

bool on_cpu(const planfb::PlanT& plan, std::uint32_t device) { return plan.devices[device]->kind == planfb::DeviceKind::cpu; }

std::uint64_t add_saturated(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

}  // namespace

// The arena, the caches, the rope tables and splat weights are all that this process touches beyond the weight files. Their
// sum is compared with what there is before any of it is allocated.
Status CpuSide::allocate(const planfb::PlanT& p, std::uint64_t more) {
  const std::uint64_t arena_bytes = p.devices[0]->arena_bytes;
  std::uint64_t cache = 0, splat = 0, rope = 0;
  std::uint32_t most_tokens = 0;
  for (const auto& entry : p.entries) most_tokens = std::max(most_tokens, entry->max_tokens);
  for (const auto& c : p.caches)
    if (on_cpu(p, c->device)) cache = add_saturated(cache, *kv_cache_bytes(*c));
  for (const auto& w : p.weights)
    if (w->source == planfb::WeightSource::splat) splat = add_saturated(splat, w->bytes);
  for (const auto& r : p.ropes) rope += std::uint64_t{2} * most_tokens * r->inv_freq.size() * sizeof(float);
  std::string what = "arena of " + std::to_string(arena_bytes) + " bytes and KV cache of " + std::to_string(cache) + " bytes";
  if (splat != 0) what += " and splat weights of " + std::to_string(splat) + " bytes";
  if (more != 0) what += " and pinned memory of " + std::to_string(more) + " bytes";
  const std::uint64_t all = add_saturated(add_saturated(arena_bytes, cache), add_saturated(splat, add_saturated(rope, more)));
  KTC_RETURN_IF_ERROR(weights::check_available(all, what, kSmallerPlan));

  KTC_ASSIGN_OR_RETURN(arena, HostBlock::allocate(arena_bytes, "arena"));
  memory.arena = arena.data();
  for (const auto& c : p.caches) {
    memory.caches.push_back(nullptr);
    if (!on_cpu(p, c->device)) continue;
    KTC_ASSIGN_OR_RETURN(HostBlock block, HostBlock::allocate(*kv_cache_bytes(*c), "KV cache " + c->name));
    memory.caches.back() = block.data();
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
    memory.ropes.push_back(table);
  }
  tokens_.resize(most_tokens);
  return {};
}

// Tile kernels unpack a panel into memory of their worker: the largest of all weights in panels, for each worker.
Status CpuSide::allocate_tile_scratch(const planfb::PlanT& plan, const weights::WeightStore& store) {
  std::size_t each = 0;
  for (std::uint32_t i = 0; i < plan.weights.size(); ++i) {
    const weights::WeightView& w = store[i];
    if (!on_cpu(plan, plan.weights[i]->device)) continue;
    if (w.packing == Packing::row_major || kernels.panel(w.format).many == nullptr) continue;
    const auto layout = panel_layout(w.format, w.group, w.packing == Packing::panel_paired, w.rows, w.columns);
    each = std::max(each, std::max<std::size_t>(64, kernels::panel_scratch_bytes(*layout)));
  }
  if (each == 0) return {};
  KTC_ASSIGN_OR_RETURN(tile_scratch_, HostBlock::allocate(std::uint64_t{each} * static_cast<unsigned>(workers->threads()), "tile scratch"));
  state.tile_scratch = tile_scratch_.data();
  state.tile_scratch_each = each;
  state.enter_tiles = kernels.enter_tiles;
  state.leave_tiles = kernels.leave_tiles;
  return {};
}

Status CpuSide::open(const planfb::PlanT& p, const ExecutorOptions& options, std::uint64_t more) {
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

  kernels = kernels::select_kernels(features, options.isa);
  const int threads = options.threads > 0 ? options.threads : default_thread_count();
  if (const std::string chosen = choose_kernels(p, options.isa, threads, kernels); !chosen.empty() && options.note != nullptr)
    options.note(options.note_context, chosen);
  memory.expert_counts = options.expert_counts;
  return allocate(p, more);
}

Status CpuSide::place(const planfb::PlanT& plan, weights::WeightStore& weights, const ExecutorOptions& options) {
  std::vector<CpuNode> nodes = cpu_nodes();
  if (options.nodes != 0) nodes = recut_nodes(nodes, options.nodes);
  nodes_ = deal_workers(nodes, options.threads > 0 ? options.threads : default_thread_count());
  if (nodes_.size() == 1) return {};
  // What moves to a GPU is copied matrix by matrix.
  std::vector<std::uint32_t> whole;
  for (const auto& moving : plan.moving) whole.insert(whole.end(), {moving->w_cold_gate_up, moving->w_cold_down});
  std::uint64_t untouched = arena.bytes();
  for (const HostBlock& cache : caches_) untouched += cache.bytes();
  std::vector<weights::NodeShare> shares;
  for (const WorkerNode& node : nodes_) shares.push_back(node.share);
  std::vector<std::string> notes;
  const Expected<bool> placed = weights.place_on_nodes(shares, whole, untouched, notes);
  for (const std::string& note : notes)
    if (options.note != nullptr) options.note(options.note_context, note);
  return placed.status();
}

Status CpuSide::start(const planfb::PlanT& plan, const weights::WeightStore& weights,
                      const std::vector<const std::vector<Step>*>& steps, int threads) {
  std::size_t experts = 0;
  for (const std::vector<Step>* entry : steps)
    for (const Step& step : *entry)
      if (const auto* bank = std::get_if<ExpertsStep>(&step))
        experts = std::max(experts, bank->experts);
      else if (const auto* panels = std::get_if<PanelExpertsStep>(&step))
        experts = std::max(experts, panels->routed.experts);
  busy_experts_.resize(experts);
  if (nodes_.empty()) {
    KTC_ASSIGN_OR_RETURN(workers, Workers::create(threads > 0 ? threads : default_thread_count()));
  } else {
    KTC_ASSIGN_OR_RETURN(workers, Workers::create(nodes_));
  }
  KTC_RETURN_IF_ERROR(allocate_tile_scratch(plan, weights));
  KTC_RETURN_IF_ERROR(attend_.allocate(plan, steps, workers->threads()));
  state.workers = workers.get();
  state.token = tokens_.data();
  state.busy_experts = busy_experts_.data();
  return {};
}

void CpuSide::fill(const planfb::PlanT& plan, std::span<const StepSequence> sequences, const CpuInputs& inputs) {
  std::size_t t = 0, r = 0;
  state.prefill = false;
  for (const StepSequence& s : sequences) {
    if (s.ids.size() > 1) state.prefill = true;
    for (std::size_t i = 0; i < s.ids.size(); ++i, ++t) {
      const std::uint32_t position = s.position + static_cast<std::uint32_t>(i);
      tokens_[t] = {s.pages.data(), position};
      for (const Ids& ids : *inputs.ids) *ids.row(t) = s.ids[i];
      for (const Ids& positions : *inputs.positions) *positions.row(t) = static_cast<std::int32_t>(position);
      for (const Ids& deferred : *inputs.deferred) *deferred.row(t) = is_deferred(plan, s, position);
      if (i < s.logits_from) continue;
      for (const Ids& output_rows : *inputs.output_rows) *output_rows.row(r) = static_cast<std::int32_t>(t);
      ++r;
    }
  }
  state.tokens = t;
  state.rows = r;
  attend_.fill(state);
}

void CpuSide::fill_half(Part part, const planfb::PlanT& plan, const StepHalf& half, std::size_t first, const HalfInputs& inputs) {
  StepState& to = halves_[part == Part::second];
  to = state;
  to.tokens = half.tokens;
  to.rows = 0;
  to.first = first;
  to.token = state.token + first;
  attend_.fill(to, part);
  std::size_t t = 0;
  for (const StepSequence& s : half.sequences)
    for (std::size_t i = 0; i < s.ids.size(); ++i, ++t) {
      const std::uint32_t position = s.position + static_cast<std::uint32_t>(i);
      for (const Ids& ids : inputs.ids) *ids.row(t) = s.ids[i];
      for (const Ids& positions : inputs.positions) *positions.row(t) = static_cast<std::int32_t>(position);
      for (const Ids& deferred : inputs.deferred) *deferred.row(t) = is_deferred(plan, s, position);
    }
}

// In double: a float product of position and frequency is off by 1e-3 radians at position 32768.
void CpuSide::fill_ropes() {
  for (const RopeTable& rope : memory.ropes) {
    workers->parallel_for(state.tokens, 64, [&](std::size_t begin, std::size_t end) {
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

}  // namespace ktc::exec
