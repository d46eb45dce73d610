#include "placement/cost_model.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "placement/cost_model_impl.h"
#include "placement/memory.h"
#include "placement/slot_use.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::ModuleClass;

constexpr double kCached = 0.8;  // of the last cache, that a plan's weights may fill

}  // namespace

std::string_view to_string(Bound bound) {
  switch (bound) {
    case Bound::cpu_read: return "CPU bandwidth";
    case Bound::cpu_compute: return "CPU compute";
    case Bound::gpu_read: return "GPU bandwidth";
    case Bound::gpu_compute: return "GPU compute";
    case Bound::pcie: return "PCIe";
    case Bound::handoff: return "hand-off";
    case Bound::kernels: return "fixed kernel times";
  }
  return "?";
}

Expected<CostModel> CostModel::create(const ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                      const Policy& policy, const Target& target, const ExpertCounts& counts,
                                      const CostOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->rates = rates_of(target);
  impl->cpu = target.cpu;
  impl->defer = policy.defer;
  impl->row_scales = policy.activation_group == 0;
  impl->context = options.context > 0 ? options.context : std::max(1u, policy.kv_cache.tokens / 2);
  impl->cache_bytes = format_bits(policy.kv_cache.dtype) / 8.0;
  impl->hidden = model.hidden;
  impl->modules = modules;
  impl->shapes.modules = model.modules, impl->shapes.layers = model.layers, impl->shapes.hidden = model.hidden;
  impl->shapes.embedding = model.embedding, impl->shapes.final_norm = model.final_norm, impl->shapes.head = model.head;
  for (const models::WeightSlot& slot : model.slots) {  // shapes and types: pieces are megabytes in large models
    models::WeightSlot shape;
    shape.name = slot.name, shape.batch = slot.batch, shape.rows = slot.rows, shape.columns = slot.columns;
    shape.type = slot.type;
    impl->shapes.slots.push_back(std::move(shape));
  }
  if (model.head != models::kNoModule)
    for (const SlotUse& use : slots_of(model.modules[model.head]))
      if (use.role != SlotRole::vector) impl->vocabulary = static_cast<double>(model.slots[use.slot].rows);
  double on_cpu = 0;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!is_cpu(modules[i].device) || model.modules[i].cls == ModuleClass::Embedding) continue;
    KTC_ASSIGN_OR_RETURN(const std::uint64_t bytes,
                         weight_bytes(model, model.modules[i],
                                      {modules[i].weights, modules[i].group, modules[i].unrounded, false}));
    on_cpu += static_cast<double>(bytes);
  }
  // A plan a little larger than a cache finds next to nothing in it, for it comes by in the same order in every step.
  if (target.cpu.l3_bytes > 0 && on_cpu > 0)
    impl->cached = std::clamp(2 * kCached * static_cast<double>(target.cpu.l3_bytes) / on_cpu - 1, 0.0, 1.0);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const models::Layer& layer = model.layers[l];
    if (!layer.is_moe()) continue;
    const auto& desc = std::get<models::ExpertsDesc>(model.modules[layer.experts].attributes);
    MoeLayer moe;
    moe.module = layer.experts, moe.layer = l;
    if (layer.router != models::kNoModule)
      moe.top_k = std::get<models::RouterDesc>(model.modules[layer.router].attributes).top_k;
    moe.operations = matrix_operations(model, model.modules[layer.experts]);
    moe.outputs = matrix_outputs(model, model.modules[layer.experts]);
    const ModulePlacement& placed = modules[layer.experts];
    KTC_ASSIGN_OR_RETURN(const std::uint64_t bank,
                         weight_bytes(model, model.modules[layer.experts],
                                      {placed.weights, placed.group, placed.unrounded, !is_cpu(placed.device)}));
    moe.cold_bytes = static_cast<double>(bank) / std::max(desc.experts, 1u);
    const std::size_t row = impl->moe.size();
    double sum = 0;
    if (row < counts.size())
      for (const std::uint64_t count : counts[row]) sum += static_cast<double>(count);
    for (std::uint32_t e = 0; e < desc.experts; ++e) {
      const double share =
          sum > 0 && e < counts[row].size() ? static_cast<double>(counts[row][e]) / sum : 1.0 / desc.experts;
      moe.probability.push_back(std::min(1.0, moe.top_k * share));
    }
    impl->moe.push_back(std::move(moe));
  }
  for (const std::uint32_t rows : policy.batch.decode) {
    KTC_ASSIGN_OR_RETURN(Step step, impl->make_step("decode", rows, true, false));
    impl->steps.push_back(std::move(step));
  }
  KTC_ASSIGN_OR_RETURN(Step extend, impl->make_step("extend", policy.batch.chunk, false, false));
  impl->steps.push_back(std::move(extend));
  if (policy.batch.stream_chunk > 0) {
    KTC_ASSIGN_OR_RETURN(Step stream, impl->make_step("stream", policy.batch.stream_chunk, false, true));
    impl->steps.push_back(std::move(stream));
  }
  return CostModel(std::move(impl));
}

Expected<Prediction> CostModel::predict(const std::vector<HotExperts>& hot) const {
  Prediction prediction;
  prediction.context = impl_->context;
  prediction.notes = impl_->rates.notes;
  for (const Step& step : impl_->steps) {
    KTC_ASSIGN_OR_RETURN(StepCost cost, impl_->cost(step, hot));
    prediction.steps.push_back(std::move(cost));
  }
  return prediction;
}

Expected<double> CostModel::us_per_token(const std::vector<HotExperts>& hot) const {
  double sum = 0, steps = 0;
  for (const Step& step : impl_->steps) {
    if (!step.decode) continue;
    KTC_ASSIGN_OR_RETURN(const StepCost cost, impl_->cost(step, hot));
    sum += cost.us / step.rows;
    ++steps;
  }
  return sum / std::max(steps, 1.0);
}

Expected<StepCost> CostModel::prefill(const std::vector<HotExperts>& hot, std::uint32_t rows, bool streamed) const {
  KTC_ASSIGN_OR_RETURN(const Step step, impl_->make_step(streamed ? "stream" : "extend", rows, false, streamed));
  return impl_->cost(step, hot);
}

Expected<std::vector<StreamedLayer>> CostModel::streamed_layers(const std::vector<HotExperts>& hot,
                                                                std::uint32_t rows) const {
  KTC_ASSIGN_OR_RETURN(const Step step, impl_->make_step("stream", rows, false, true));
  std::vector<StreamedLayer> layers;
  for (std::size_t i = 0; i < impl_->moe.size(); ++i) {
    const MoeLayer& moe = impl_->moe[i];
    const FixedLayer& fixed = step.layers[moe.layer];
    if (!is_cpu(impl_->modules[moe.module].device) || is_cpu(fixed.device)) continue;
    const DeviceRates& gpu = impl_->rates.of(fixed.device);
    StreamedLayer layer;
    layer.module = moe.module;
    layer.chain = fixed.before.total();
    layer.beside = fixed.beside.total();
    layer.cold = static_cast<double>(moe.probability.size());
    layer.pairs = step.all[i].pairs * rows;
    for (const HotExperts& entry : hot) {
      if (entry.module != moe.module) continue;
      KTC_ASSIGN_OR_RETURN(const double bytes, impl_->expert_bytes(entry));
      const Load load = impl_->load_of(step, i, entry.ids);
      layer.cold -= static_cast<double>(entry.ids.size());
      layer.pairs = std::max(0.0, layer.pairs - load.pairs * rows);
      if (entry.device == fixed.device)
        layer.beside +=
            impl_->expert_time(step, moe, gpu, entry.weights, entry.activations, entry.group, bytes, load).total();
    }
    layer.values = 2 * kCopyHandoffs * gpu.handoff_us +
                   rows * (2 * impl_->hidden + 2 * moe.top_k) * 4 / std::max(gpu.pcie, 1.0);
    if (layer.cold > 0) layers.push_back(layer);
  }
  return layers;
}

ExpertTime CostModel::expert_time(const StreamedLayer& layer, double rows) const {
  const std::size_t i = impl_->moe_index(layer.module);
  if (i == impl_->moe.size()) return {};
  const MoeLayer& moe = impl_->moe[i];
  const ModulePlacement& placed = impl_->modules[layer.module];
  const DeviceRates& gpu = impl_->rates.of(impl_->steps.front().layers[moe.layer].device);
  const double operations = rows * moe.operations;
  ExpertTime time;
  time.cpu = impl_->work(impl_->rates.of("cpu"), placed.weights, placed.activations, placed.group, moe.cold_bytes,
                         operations, rows, {}, rows * moe.outputs)
                 .total();
  time.gpu = impl_->work(gpu, Format::bf16, Format::bf16, 0, moe.cold_bytes, operations, rows, {}, rows * moe.outputs,
                         true)
                 .total();
  time.gpu += (moe.cold_bytes + moe.operations) / (gpu.read * gpu.reads.at(Format::bf16));  // unpacked, as in add_moe
  time.copy = moe.cold_bytes / std::max(gpu.pcie, 1.0);
  return time;
}

Expected<double> CostModel::hot_expert_bytes(const HotExperts& hot) const { return impl_->expert_bytes(hot); }

double CostModel::layer_us_per_token(std::uint32_t module, const std::vector<HotExperts>& hot, double expert_bytes) const {
  const std::size_t i = impl_->moe_index(module);
  if (i == impl_->moe.size()) return 0;
  double sum = 0, steps = 0;
  for (const Step& step : impl_->steps) {
    if (!step.decode) continue;
    const MoeLayer& layer = impl_->moe[i];
    std::vector<const HotExperts*> entries;
    std::vector<HotLoad> loads;
    for (const HotExperts& entry : hot) {
      entries.push_back(&entry);
      loads.push_back({&entry, expert_bytes, impl_->load_of(step, i, entry.ids)});
    }
    const Load cold = impl_->load_without(step, i, entries);
    // Twice the same layer: the second finds the late work of the first.
    const bool late = step.defer && i + 1 < impl_->moe.size();
    Timeline line;
    impl_->add_moe(step, layer, cold, loads, late, &line);
    const double first = line.now;
    if (step.defer) impl_->add_moe(step, layer, cold, loads, late, &line);
    sum += (step.defer ? line.now - first : first) / step.rows;
    ++steps;
  }
  return sum / std::max(steps, 1.0);
}

}  // namespace ktc::placement
