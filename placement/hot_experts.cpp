#include "placement/hot_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "placement/auto_experts.h"
#include "placement/cost_model.h"
#include "placement/device_formats.h"
#include "placement/memory.h"
#include "placement/saturating.h"
#include "placement/slot_use.h"
#include "placement/spread_experts.h"
#include "runtime/base/units.h"

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

// How a layer's hot experts would be packed on one of the GPUs, by layer; no ids.
using Shapes = std::vector<HotExperts>;

// Of the largest hot expert of any layer; at least 1.
Expected<std::uint64_t> largest_bytes(const models::ModelDesc& model, const Movable& movable, const WeightChoice& weights) {
  const auto& numbers = movable.input.experts;
  std::uint64_t largest = 1;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    KTC_ASSIGN_OR_RETURN(std::uint64_t bytes, weight_bytes(model, model.modules[movable.modules[i]], weights));
    largest = std::max(largest, numbers[i] == 0 ? 0 : bytes / numbers[i]);
  }
  return largest;
}

// Of all GPUs together. A size is one of each GPU.
Expected<std::uint64_t> budget_in_slots(const Movable& movable, const ExpertsPolicy& experts, std::uint64_t expert_bytes) {
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
    case ExpertBudget::Kind::bytes:
      return std::min(all, experts.on_gpu.bytes / expert_bytes * experts.gpu_devices.size());
  }
  return Status(StatusCode::internal, "experts.on_gpu: an unknown kind; please report this");
}

// Experts that each GPU has room for beside everything else, with the largest arena that hot experts can ask for.
Expected<std::vector<std::uint64_t>> room(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules, const Policy& policy,
                                          const Target& target, const Shapes& shapes, std::uint64_t expert_bytes) {
  const std::vector<std::string>& devices = policy.experts.gpu_devices;
  std::vector<HotExperts> one_each;
  for (const HotExperts& shape : shapes)
    for (const std::string& device : devices) {
      one_each.push_back(shape);
      one_each.back().device = device;
      one_each.back().ids = {0};
    }
  KTC_ASSIGN_OR_RETURN(const std::vector<MemoryLine> lines, account(model, modules, one_each, policy, target));
  std::vector<std::uint64_t> slots;
  for (const std::string& device : devices) {
    const auto limit = policy.limits.find(device);
    const std::uint64_t most = limit != policy.limits.end() ? limit->second.bytes : target.memory_of(device);
    std::uint64_t others = 0;
    for (const MemoryLine& line : lines)
      if (line.device == device && (line.category != "hot-experts" || line.name == "spare")) others = plus(others, line.bytes);
    slots.push_back(most == 0 ? UINT64_MAX : most > others ? (most - others) / expert_bytes : 0);
    if (policy.experts.on_gpu.kind != ExpertBudget::Kind::bytes) continue;
    const std::uint64_t stated = policy.experts.on_gpu.bytes / expert_bytes;  // what is too much is the account's to say
    slots.back() = policy.best_effort ? std::min(slots.back(), stated) : stated;
  }
  return slots;
}

// The GPU of each movable layer's router, among those of hot experts.
std::vector<std::uint32_t> homes(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules, const Movable& movable,
                                 const std::vector<std::string>& devices) {
  std::vector<std::uint32_t> homes;
  for (const std::uint32_t module : movable.modules) {
    std::uint32_t home = kNoGpu;
    for (const models::Layer& layer : model.layers) {
      if (layer.experts != module || layer.router == models::kNoModule) continue;
      const auto found = std::find(devices.begin(), devices.end(), modules[layer.router].device);
      if (found != devices.end()) home = static_cast<std::uint32_t>(found - devices.begin());
    }
    homes.push_back(home);
  }
  return homes;
}

// The choice as the account and the cost model take it: by layer, its home first, then in the policy's order.
std::vector<HotExperts> entries_of(const HotChoice& choice, const Shapes& shapes, const std::vector<std::string>& devices,
                                   const std::vector<std::uint32_t>& home) {
  std::vector<HotExperts> hot;
  for (std::size_t l = 0; l < shapes.size(); ++l) {
    const auto add = [&](std::size_t g) {
      if (choice.sets[g][l].empty()) return;
      hot.push_back(shapes[l]);
      hot.back().device = devices[g];
      hot.back().ids = choice.sets[g][l];
    };
    if (home[l] != kNoGpu) add(home[l]);
    for (std::size_t g = 0; g < devices.size(); ++g)
      if (g != home[l]) add(g);
  }
  return hot;
}

// `auto` under the cost model.
Expected<HotChoice> choose_by_cost(const CostModel& cost, const StrategyInput& input, const SpreadInput& gpus, const Shapes& shapes,
                                   const std::vector<std::string>& devices) {
  std::vector<double> bytes;
  for (const HotExperts& layer : shapes) {
    KTC_ASSIGN_OR_RETURN(const double of_one, cost.hot_expert_bytes(layer));
    bytes.push_back(of_one);
  }
  HotCost costs;
  costs.layer = [&](std::size_t layer, const std::vector<std::vector<std::uint32_t>>& ids) {
    std::vector<HotExperts> hot;
    for (std::size_t g = 0; g < ids.size(); ++g) {
      if (ids[g].empty()) continue;
      hot.push_back(shapes[layer]);
      hot.back().device = devices[g];
      hot.back().ids = ids[g];
    }
    return cost.layer_us_per_token(shapes[layer].module, hot, bytes[layer]);
  };
  Status failed;
  costs.total = [&](const HotChoice& choice) {
    const auto us = cost.us_per_token(entries_of(choice, shapes, devices, gpus.home));
    if (!us.ok()) failed = us.status();
    return us.ok() ? *us : 0;
  };
  auto choice = choose_auto(input, gpus, costs);
  return failed.ok() ? std::move(choice) : Expected<HotChoice>(failed);
}

// What did not find room, device by device.
std::string rooms(const std::vector<std::string>& devices, const std::vector<std::uint64_t>& slots) {
  std::string text;
  for (std::size_t g = 0; g < devices.size(); ++g)
    text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", slots[g], devices[g]);
  return text;
}

}  // namespace

Expected<std::vector<HotExperts>> choose_hot_experts(const models::ModelDesc& model,
                                                     const std::vector<ModulePlacement>& modules, const Policy& policy,
                                                     const Target& target, const ExpertCounts& counts, std::uint64_t most,
                                                     Difference* reduced) {
  const ExpertsPolicy& experts = policy.experts;
  std::vector<HotExperts> hot;
  if (experts.on_gpu.none()) return hot;
  KTC_ASSIGN_OR_RETURN(Movable movable, find_movable(model, modules, counts));
  if (movable.modules.empty()) return hot;
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
  const std::vector<std::string>& devices = experts.gpu_devices;
  const WeightChoice packed{.format = first, .group = group_for(first), .gpu = true};
  KTC_ASSIGN_OR_RETURN(const std::uint64_t expert_bytes, largest_bytes(model, movable, packed));
  StrategyInput& input = movable.input;
  KTC_ASSIGN_OR_RETURN(input.budget, budget_in_slots(movable, experts, expert_bytes));
  input.budget = std::min(input.budget, most);
  input.seed = experts.seed;
  for (const std::uint32_t module : movable.modules) {
    const Format weights = format_for(module);
    hot.push_back({module, device, weights, activations.value_or(default_activations(device, weights)), {}, group_for(weights)});
  }
  SpreadInput gpus{{input.budget}, homes(model, modules, movable, devices), experts.update_every_tokens > 0};
  if (devices.size() > 1) {  // one GPU's account is checked as a whole, with all that could be smaller
    KTC_ASSIGN_OR_RETURN(gpus.slots, room(model, modules, policy, target, hot, expert_bytes));
    std::uint64_t slots = 0;
    for (const std::uint64_t one : gpus.slots) slots = plus(slots, one);
    if (slots < input.budget) {
      const std::string what = fmt::format("{} hot experts of {}", input.budget, format_bytes(expert_bytes));
      const std::string fits = fmt::format("at most {}: {}", slots, rooms(devices, gpus.slots));
      if (!policy.best_effort)
        return make_error(StatusCode::resource_exhausted, {to_string(experts.on_gpu_position), "hot experts do not fit on their GPUs", what, fits,
                                                           "ask for fewer, raise limits, or shorten kv_cache"});
      if (reduced != nullptr)
        *reduced = {to_string(experts.on_gpu_position), "hot experts", std::to_string(input.budget), std::to_string(slots), fits};
      input.budget = slots;
    }
  }
  auto choice = [&]() -> Expected<HotChoice> {
    if (experts.strategy == Strategy::auto_) {
      KTC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::create(model, modules, policy, target, counts));
      return choose_by_cost(cost, input, gpus, hot, devices);
    }
    KTC_ASSIGN_OR_RETURN(const HotSets sets, choose(experts.strategy, input));
    HotChoice spread_out = spread(sets, input.counts, gpus);
    if (count_of(spread_out) == count_of(sets) || policy.best_effort) return spread_out;
    // room for all, but not for every layer in one piece
    return make_error(StatusCode::unsupported, {to_string(experts.on_gpu_position),
                                                "experts that move at run time are on one GPU for each layer, and some layers' hot experts fit on none",
                                                fmt::format("room for {}", rooms(devices, gpus.slots)),
                                                fmt::format("{} hot experts in whole layers", count_of(sets)),
                                                "ask for fewer, or remove update"});
  }();
  if (!choice.ok()) return choice.status().with_context(to_string(experts.position));
  return entries_of(*choice, hot, devices, gpus.home);
}

}  // namespace ktc::placement
