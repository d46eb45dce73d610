#include "placement/place.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "placement/device_formats.h"
#include "placement/expert_statistics.h"
#include "placement/hot_experts.h"
#include "placement/memory.h"
#include "placement/name_pattern.h"
#include "placement/resolve.h"
#include "placement/streaming.h"
#include "runtime/base/units.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using models::Module;

std::string describe(const Rule& rule) {
  std::string text = "class " + (rule.cls ? std::string(models::to_string(*rule.cls)) : "*");
  if (!rule.name.empty()) text += fmt::format(", name '{}'", rule.name);
  return text;
}

Status unknown_device(const Position& position, const std::string& device, const Target& target) {
  return make_error(StatusCode::invalid_argument,
                    {to_string(position), fmt::format("a device that target '{}' does not have", target.name), device,
                     "one of its devices: " + target.list_devices(),
                     "name one of these, compile for another target with --target, or write best-effort: true to take what there is"});
}

// Every device that the policy names, before anything is matched: also in rules that decide nothing.
Status check_devices(const Policy& policy, const Target& target) {
  for (const Rule& rule : policy.rules)
    if (!target.has_device(rule.place.device))
      return unknown_device(rule.place.device_position, rule.place.device, target);
  for (std::size_t i = 0; i < policy.experts.gpu_devices.size(); ++i)
    if (!target.has_device(policy.experts.gpu_devices[i]))
      return unknown_device(policy.experts.gpu_device_positions[i], policy.experts.gpu_devices[i], target);
  for (const auto& [device, limit] : policy.limits)
    if (!target.has_device(device)) return unknown_device(limit.position, device, target);
  return Status();
}

// A parsed policy never fails here; one whose sizes a flag has changed may.
Status check_sizes(const Policy& policy) {
  const KvCachePolicy& kv = policy.kv_cache;
  const bool ascending = std::adjacent_find(policy.batch.decode.begin(), policy.batch.decode.end(),
                                            std::greater_equal<>()) == policy.batch.decode.end();
  if (kv.tokens > 0 && kv.sequences > 0 && std::has_single_bit(kv.page) && policy.batch.chunk > 0 && ascending &&
      !policy.batch.decode.empty() && policy.batch.decode.front() > 0)
    return Status();
  return make_error(StatusCode::invalid_argument,
                    {policy.file, "sizes of kv_cache and batch",
                     "a zero, a page that is no power of two, or buckets that do not ascend",
                     "what docs/policy.md allows", "correct the flag or the key"});
}

// Which rule decides each module, and how often each rule applies.
Status match_rules(const ModelDesc& model, const Policy& policy, Placement* placement) {
  placement->modules.resize(model.modules.size());
  placement->rules.resize(policy.rules.size());
  for (std::size_t r = 0; r < policy.rules.size(); ++r) {
    const Rule& rule = policy.rules[r];
    std::optional<NamePattern> pattern;
    if (!rule.name.empty()) {
      auto compiled = NamePattern::compile(rule.name);
      if (!compiled.ok()) return compiled.status().with_context(to_string(rule.position));
      pattern = std::move(*compiled);
    }
    RuleUse& use = placement->rules[r];
    for (std::size_t i = 0; i < model.modules.size(); ++i) {
      const Module& module = model.modules[i];
      if (rule.cls && *rule.cls != module.cls) continue;
      if (pattern && !pattern->matches(module.name)) continue;
      ++use.matched;
      if (placement->modules[i].rule >= 0) continue;
      placement->modules[i].rule = static_cast<int>(r);
      ++use.decided;
    }
  }
  return Status();
}

Status check_unmatched(const ModelDesc& model, const Policy& policy, const Placement& placement) {
  constexpr std::size_t kShown = 3;
  std::size_t count = 0;
  std::string names;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    if (placement.modules[i].rule >= 0) continue;
    if (++count <= kShown)
      names += fmt::format("{}{} '{}'", names.empty() ? "" : ", ", models::to_string(model.modules[i].cls),
                           model.modules[i].name);
  }
  if (count == 0) return Status();
  if (count > kShown) names += fmt::format(" and {} more", count - kShown);
  return make_error(StatusCode::invalid_argument,
                    {policy.file, "modules that no rule matches", std::move(names), "a rule for every module",
                     "end the rules with one for class: \"*\""});
}

// A name that matches nothing is a typing error; a class that the model lacks is how one policy serves many models.
Status judge_rules(const ModelDesc& model, const Policy& policy, Placement* placement) {
  for (std::size_t r = 0; r < policy.rules.size(); ++r) {
    const Rule& rule = policy.rules[r];
    const RuleUse& use = placement->rules[r];
    if (use.matched > 0 && use.decided == 0) {
      placement->notes.push_back(fmt::format("rule {} ({}) decides nothing: earlier rules match all {} of its modules",
                                             to_string(rule.position), describe(rule), use.matched));
    }
    if (use.matched > 0) continue;
    if (rule.name.empty()) {
      placement->notes.push_back(
          fmt::format("rule {} ({}) matches nothing in this model", to_string(rule.position), describe(rule)));
      continue;
    }
    const auto example = std::find_if(model.modules.begin(), model.modules.end(),
                                      [&](const Module& module) { return !rule.cls || *rule.cls == module.cls; });
    std::string remedy = "correct the pattern or remove the rule";
    if (example != model.modules.end())
      remedy = fmt::format("names look like '{}'", example->name);
    else if (rule.cls)
      remedy = fmt::format("this model has no {}", models::to_string(*rule.cls));
    return make_error(StatusCode::invalid_argument,
                      {to_string(rule.position), "a rule that matches nothing", describe(rule),
                       "a module whose whole name matches", std::move(remedy)});
  }
  return Status();
}

void note_rounding(const ModelDesc& model, const Policy& policy, Placement* placement) {
  std::vector<std::uint32_t> rounded(policy.rules.size(), 0);
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const ModulePlacement& placed = placement->modules[i];
    if (rounds(model, model.modules[i], placed.weights)) ++rounded[static_cast<std::size_t>(placed.rule)];
  }
  for (std::size_t r = 0; r < rounded.size(); ++r)
    if (rounded[r] > 0)
      placement->notes.push_back(fmt::format("rule {} ({}) rounds the weights of {} modules to bf16",
                                             to_string(policy.rules[r].position), describe(policy.rules[r]),
                                             rounded[r]));
}

// Embeddings that keep their rows, and what that costs when the head is tied to them.
void note_embeddings(const ModelDesc& model, const Policy& policy, Placement* placement) {
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const ModulePlacement& placed = placement->modules[i];
    const Rule& rule = policy.rules[static_cast<std::size_t>(placed.rule)];
    if (!keeps_rows(model.modules[i], rule)) continue;
    std::string note = fmt::format("rule {} ({}) asks for {}, '{}' keeps {}: a lookup reads single rows",
                                   to_string(rule.position), describe(rule), rule.place.weights.word, model.modules[i].name,
                                   to_string(placed.weights));
    const auto* embedding = std::get_if<models::EmbeddingDesc>(&model.modules[i].attributes);
    for (std::size_t j = 0; embedding && j < model.modules.size(); ++j) {
      const auto* head = std::get_if<models::HeadDesc>(&model.modules[j].attributes);
      const ModulePlacement& other = placement->modules[j];
      if (head && head->weight == embedding->weight && other.device == placed.device &&
          (other.weights != placed.weights || has_panels(other.weights, other.activations)))
        note += fmt::format("; '{}' is tied to it and packed once more as {}", model.modules[j].name,
                            weights_text(other.weights, other.group));
    }
    placement->notes.push_back(std::move(note));
  }
}

// Settings that are legal but probably not what was meant.
Status judge_sizes(const ModelDesc& model, const Policy& policy, const Target& target, Placement* placement) {
  const KvCachePolicy& kv = policy.kv_cache;
  const std::uint64_t pages = (std::uint64_t{kv.tokens} + kv.page - 1) / kv.page * kv.sequences;
  if (pages > UINT32_MAX)
    return make_error(StatusCode::invalid_argument,
                      {to_string(kv.position), "more KV pages than a plan can number", std::to_string(pages),
                       fmt::format("at most {}", UINT32_MAX), "take fewer tokens or sequences, or a larger page"});
  if (model.max_positions > 0 && kv.tokens > model.max_positions)
    placement->notes.push_back(
        fmt::format("kv_cache.tokens is {}, the model has {} positions", kv.tokens, model.max_positions));
  if (policy.batch.decode.back() > kv.sequences)
    placement->notes.push_back(
        fmt::format("batch.decode goes to {}, kv_cache.sequences is {}: larger buckets are never filled",
                    policy.batch.decode.back(), kv.sequences));
  for (const auto& [device, limit] : policy.limits)
    if (const std::uint64_t memory = target.memory_of(device); memory > 0 && limit.bytes > memory)
      placement->notes.push_back(
          fmt::format("limits.{} is {}, the target has {}", device, format_bytes(limit.bytes), format_bytes(memory)));
  return Status();
}

// What rules and `experts` ask for and modules cannot have. A rule for class "*" asks nothing of the classes that keep their
// precision (docs/policy.md); one that names Embedding does.
void find_differences(const ModelDesc& model, const Policy& policy, Placement* placement) {
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const ModulePlacement& placed = placement->modules[i];
    const Rule& rule = policy.rules[static_cast<std::size_t>(placed.rule)];
    if (rule.cls == models::ModuleClass::Embedding && keeps_rows(model.modules[i], rule))
      placement->differences.push_back({to_string(rule.position), "weights of '" + model.modules[i].name + "'",
                                        rule.place.weights.word, std::string(to_string(placed.weights)),
                                        "a lookup reads single rows"});
  }
  if (policy.experts.on_gpu.none() || !placement->hot.empty()) return;
  bool movable = false, any = false;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    if (model.modules[i].cls != models::ModuleClass::RoutedExperts) continue;
    any = true;
    movable = movable || (placement->modules[i].device == "cpu" && !placement->modules[i].pin);
  }
  if (any && !movable)
    placement->differences.push_back({to_string(policy.experts.on_gpu_position), "hot experts", "some", "none",
                                      "no rule leaves routed experts on the cpu without pin"});
}

// The most hot experts that fit, where what the policy demands does not: between none and as many as it got.
Status fit_hot_experts(const ModelDesc& model, const Policy& policy, const Target& target, Placement* placement) {
  std::size_t demanded = 0;
  for (const HotExperts& layer : placement->hot) demanded += layer.ids.size();
  std::size_t fits = 0, too_many = demanded;
  Status why = check_budget(model, *placement, policy, target);
  auto attempt = [&](std::size_t count) -> Status {
    KTC_ASSIGN_OR_RETURN(placement->hot, choose_hot_experts(model, placement->modules, policy, target, placement->counts, count));
    KTC_ASSIGN_OR_RETURN(placement->memory, account(model, placement->modules, placement->hot, policy, target));
    return check_budget(model, *placement, policy, target);
  };
  KTC_RETURN_IF_ERROR(attempt(0));  // not even without
  while (fits + 1 < too_many) {
    const std::size_t middle = fits + (too_many - fits) / 2;
    (attempt(middle).ok() ? fits : too_many) = middle;
  }
  KTC_RETURN_IF_ERROR(attempt(fits));
  std::size_t granted = 0;  // auto may take fewer
  for (const HotExperts& layer : placement->hot) granted += layer.ids.size();
  const std::string message = why.message();
  placement->differences.push_back({to_string(policy.experts.on_gpu_position), "hot experts", std::to_string(demanded),
                                    std::to_string(granted), message.substr(0, message.find(": found"))});
  return Status();
}

}  // namespace

Expected<Placement> place(const ModelDesc& model, const Policy& policy, const Target& target,
                          const ExpertCounts& counts) {
  Placement placement;
  KTC_RETURN_IF_ERROR(check_sizes(policy));
  KTC_RETURN_IF_ERROR(check_devices(policy, target));
  KTC_RETURN_IF_ERROR(match_rules(model, policy, &placement));
  KTC_RETURN_IF_ERROR(judge_rules(model, policy, &placement));
  KTC_RETURN_IF_ERROR(check_unmatched(model, policy, placement));
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const int rule = placement.modules[i].rule;
    KTC_ASSIGN_OR_RETURN(placement.modules[i],
                         resolve(model, model.modules[i], policy.rules[static_cast<std::size_t>(rule)]));
    placement.modules[i].rule = rule;
    if (placement.kv_device.empty() && model.modules[i].cls == models::ModuleClass::Attention)
      placement.kv_device = placement.modules[i].device;
  }
  share_tied_rows(model, policy, placement.modules);
  placement.counts = counts;
  if (counts.empty() && !policy.experts.counts.empty()) {
    auto rows = counts_of(model, policy.experts.counts);
    if (!rows.ok()) return rows.status().with_context(to_string(policy.experts.statistics_position));
    placement.counts = std::move(*rows);
  }
  Difference reduced;
  KTC_ASSIGN_OR_RETURN(placement.hot, choose_hot_experts(model, placement.modules, policy, target, placement.counts, UINT64_MAX, &reduced));
  note_rounding(model, policy, &placement);
  note_embeddings(model, policy, &placement);
  KTC_RETURN_IF_ERROR(judge_sizes(model, policy, target, &placement));
  KTC_ASSIGN_OR_RETURN(placement.memory, account(model, placement.modules, placement.hot, policy, target));
  if (reduced.what.empty()) find_differences(model, policy, &placement);
  else placement.differences.push_back(std::move(reduced));
  placement.differences.insert(placement.differences.begin(), policy.replaced.begin(), policy.replaced.end());
  if (!placement.differences.empty() && !policy.best_effort) {
    const Difference& first = placement.differences.front();
    return make_error(StatusCode::unsupported, {first.place, first.what + ": " + first.why, first.granted, first.requested,
                                                "ask for what there is, or write best-effort: true"});
  }
  const Status budget = check_budget(model, placement, policy, target);
  if (!budget.ok() && policy.best_effort && !placement.hot.empty())
    KTC_RETURN_IF_ERROR(fit_hot_experts(model, policy, target, &placement));
  else if (!budget.ok())
    return budget;
  if (policy.batch.stream_chunk > 0) {
    KTC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::create(model, placement.modules, policy, target, placement.counts));
    KTC_ASSIGN_OR_RETURN(placement.stream, choose_streaming(cost, placement.hot, policy));
  }
  return placement;
}

}  // namespace ktc::placement
