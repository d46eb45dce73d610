#include "placement/hot_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "placement/auto_experts.h"
#include "placement/cost_model.h"
#include "placement/device_formats.h"
#include "placement/memory.h"
#include "placement/slot_use.h"

namespace ktc::placement {
namespace {

// The layers whose experts may move, and the same rows of the statistics.
struct Movable {
  std::vector<std::uint32_t> modules;
  StrategyInput input;
};

Expected<Movable> find_movable(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules,
                               const ExpertCounts& counts) {
  Movable movable;
  std::size_t layer = 0;
  for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
    const auto* desc = std::get_if<models::ExpertsDesc>(&model.modules[i].attributes);
    if (!desc) continue;
    if (modules[i].device == "cpu" && !modules[i].pin) {
      movable.modules.push_back(i);
      movable.input.experts.push_back(desc->experts);
      if (layer < counts.size()) movable.input.counts.push_back(counts[layer]);
    }
    ++layer;
  }
  if (!counts.empty() && counts.size() != layer)
    return make_error(StatusCode::invalid_argument,
                      {"expert statistics", "counts of another model", fmt::format("{} rows", counts.size()),
                       fmt::format("{}, one for each MoE layer", layer), "record them with this model"});
  return movable;
}

Expected<std::uint64_t> budget_in_slots(const models::ModelDesc& model, const Movable& movable,
                                        const ExpertsPolicy& experts, const WeightChoice& weights) {
  const auto& numbers = movable.input.experts;
  std::uint64_t all = 0;
  for (std::uint32_t number : numbers) all += number;
  switch (experts.on_gpu.kind) {
    case ExpertBudget::Kind::share:
      // 29 % of 100 is 28.999... in binary: the small addend keeps whole numbers whole
      return static_cast<std::uint64_t>(std::floor(experts.on_gpu.share * static_cast<double>(all) + 1e-6));
    case ExpertBudget::Kind::per_layer: {
      const std::uint32_t least = *std::min_element(numbers.begin(), numbers.end());
      if (experts.on_gpu.count > least)
        return make_error(StatusCode::invalid_argument,
                          {to_string(experts.on_gpu_position),
                           "experts.on_gpu per layer",
                           std::to_string(experts.on_gpu.count),
                           fmt::format("at most {}, the number of experts of a layer", least),
                           {}});
      return experts.on_gpu.count * numbers.size();
    }
    case ExpertBudget::Kind::bytes: {
      std::uint64_t largest = 1;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        KTC_ASSIGN_OR_RETURN(std::uint64_t bytes, weight_bytes(model, model.modules[movable.modules[i]], weights));
        largest = std::max(largest, numbers[i] == 0 ? 0 : bytes / numbers[i]);
      }
      return experts.on_gpu.bytes / largest;
    }
  }
  return Status(StatusCode::internal, "experts.on_gpu: an unknown kind; please report this");
}

// `auto` under the cost model. `shape` says how a layer's hot experts would be packed on the GPU, without ids.
Expected<HotSets> choose_by_cost(const CostModel& cost, const StrategyInput& input, const std::vector<HotExperts>& shape) {
  std::vector<double> bytes;
  for (const HotExperts& layer : shape) {
    KTC_ASSIGN_OR_RETURN(const double of_one, cost.hot_expert_bytes(layer));
    bytes.push_back(of_one);
  }
  HotExperts probe;
  HotCost costs;
  costs.layer = [&](std::size_t layer, std::uint32_t, const std::vector<std::uint32_t>& ids) {
    probe = shape[layer];
    probe.ids = ids;
    return cost.layer_us_per_token(probe, bytes[layer]);
  };
  Status failed;
  costs.total = [&](const HotChoice& choice) {
    std::vector<HotExperts> hot = shape;
    for (std::size_t i = 0; i < hot.size(); ++i) hot[i].ids = choice.sets[i];
    const auto us = cost.us_per_token(hot);
    if (!us.ok()) failed = us.status();
    return us.ok() ? *us : 0;
  };
  auto choice = choose_auto(input, {input.budget}, costs);
  if (!failed.ok()) return failed;
  if (!choice.ok()) return choice.status();
  return std::move(choice->sets);
}

}  // namespace

Expected<std::vector<HotExperts>> choose_hot_experts(const models::ModelDesc& model,
                                                     const std::vector<ModulePlacement>& modules, const Policy& policy,
                                                     const Target& target, const ExpertCounts& counts) {
  const ExpertsPolicy& experts = policy.experts;
  std::vector<HotExperts> hot;
  if (experts.on_gpu.none()) return hot;
  KTC_ASSIGN_OR_RETURN(Movable movable, find_movable(model, modules, counts));
  if (movable.modules.empty()) return hot;
  if (experts.gpu_devices.size() > 1)
    return make_error(StatusCode::unsupported,
                      {to_string(experts.gpu_device_positions[1]), "hot experts on several GPUs",
                       fmt::format("{} devices", experts.gpu_devices.size()), "one", "name one GPU"});
  const std::string& device = experts.gpu_devices.front();
  const DeviceFormats available = formats_of(device);

  std::optional<Format> stated;
  if (experts.gpu_weights.stated() && experts.gpu_weights.word != "native") {
    stated = parse_format(experts.gpu_weights.word);
    if (!stated || !takes(available.weights, *stated))
      return make_error(StatusCode::unsupported,
                        {to_string(experts.gpu_weights.position), fmt::format("weights of hot experts on {}", device),
                         experts.gpu_weights.word, "one of native, " + list(available.weights),
                         fmt::format("this version's kernels take no {} there", experts.gpu_weights.word)});
  }
  const bool exact = experts.gpu_activations.word == "f32";  // native then keeps no FP8 codes, as in rules
  auto format_for = [&](std::uint32_t module) {
    if (stated) return *stated;
    if (!exact && keeps_fp8(model, model.modules[module])) return Format::fp8;
    return has_only_bf16_matrices(model, model.modules[module]) ? Format::bf16 : Format::f32;
  };
  auto group_for = [&](Format weights) {
    if (!has_scales(weights)) return std::uint32_t{0};
    return experts.gpu_group == 0 ? default_group(weights) : experts.gpu_group == kGroupRow ? 0 : experts.gpu_group;
  };
  const Format first = format_for(movable.modules.front());
  if (!has_group(first, group_for(first)))
    return make_error(StatusCode::invalid_argument,
                      {to_string(experts.gpu_weights.position), fmt::format("group of {} weights", to_string(first)),
                       std::to_string(group_for(first)), first == Format::fp8 ? "row or 128" : "row", "remove group"});
  std::optional<Format> activations;
  if (experts.gpu_activations.stated()) {
    activations = parse_format(experts.gpu_activations.word);
    if (!activations || !takes(available.activations, *activations))
      return make_error(StatusCode::unsupported,
                        {to_string(experts.gpu_activations.position), fmt::format("activations of hot experts on {}", device),
                         experts.gpu_activations.word, "one of " + list(available.activations),
                         fmt::format("this version's kernels take no {} there", experts.gpu_activations.word)});
  }
  KTC_ASSIGN_OR_RETURN(
      movable.input.budget,
      budget_in_slots(model, movable, experts, {.format = first, .group = group_for(first), .gpu = true}));
  movable.input.seed = experts.seed;
  for (const std::uint32_t module : movable.modules) {
    const Format weights = format_for(module);
    hot.push_back({module, device, weights, activations.value_or(default_activations(device, weights)), {}, group_for(weights)});
  }
  auto sets = [&]() -> Expected<HotSets> {
    if (experts.strategy != Strategy::auto_) return choose(experts.strategy, movable.input);
    KTC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::create(model, modules, policy, target, counts));
    return choose_by_cost(cost, movable.input, hot);
  }();
  if (!sets.ok()) return sets.status().with_context(to_string(experts.position));
  for (std::size_t i = 0; i < hot.size(); ++i) hot[i].ids = std::move((*sets)[i]);
  std::erase_if(hot, [](const HotExperts& layer) { return layer.ids.empty(); });
  return hot;
}

}  // namespace ktc::placement
