#include "placement/explore.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

#include "models/yaml_reader.h"
#include "placement/for_target.h"
#include "placement/quality_cost.h"

namespace ktc::placement {
namespace {

Status bad(const std::string& flag, const std::string& found, std::string expected) {
  return make_error(StatusCode::invalid_argument, {flag, {}, "'" + found + "'", std::move(expected), {}});
}

template <typename T>
std::vector<std::optional<T>> choices(const std::vector<T>& axis) {
  std::vector<std::optional<T>> all(axis.begin(), axis.end());
  if (all.empty()) all.emplace_back();
  return all;
}

std::string format_text(const Policy& policy) {
  for (const Rule& rule : policy.rules) {
    if (rule.cls != models::ModuleClass::RoutedExperts) continue;
    std::string text = rule.place.weights.stated() ? rule.place.weights.word : "native";
    if (rule.place.group == kGroupRow) return text + "/row";
    return rule.place.group == 0 ? text : fmt::format("{}/{}", text, rule.place.group);
  }
  return "native";
}

void mark_pareto(std::vector<SweepRow>* rows) {
  auto key = [](const SweepRow& row) { return std::tuple(-row.tokens_per_second(), row.gpu_memory, row.quality_cost); };
  for (SweepRow& row : *rows) {
    if (row.refused) continue;
    row.pareto = std::none_of(rows->begin(), rows->end(), [&](const SweepRow& other) {
      return !other.refused && other.tokens_per_second() >= row.tokens_per_second() && other.gpu_memory <= row.gpu_memory &&
             other.quality_cost <= row.quality_cost && key(other) != key(row);
    });
  }
}

}  // namespace

Expected<Strategy> parse_strategy(const std::string& flag, const std::string& text) {
  for (const Strategy s : {Strategy::uniform, Strategy::frequency, Strategy::front_loading, Strategy::random, Strategy::auto_})
    if (to_string(s) == text) return s;
  return bad(flag, text, "one of uniform, frequency, front-loading, random, auto");
}

Expected<ExpertBudget> parse_on_gpu(const std::string& flag, const std::string& text) {
  ExpertBudget budget;
  if (const auto share = yaml::parse_percent(text)) {
    budget.share = *share;
    return budget;
  }
  if (const auto bytes = yaml::parse_bytes(text)) {
    budget.kind = ExpertBudget::Kind::bytes, budget.bytes = *bytes;
    return budget;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), budget.count);
  if (error == std::errc() && end == text.data() + text.size() && budget.count <= UINT32_MAX) {
    budget.kind = ExpertBudget::Kind::per_layer;
    return budget;
  }
  return bad(flag, text, "a share such as 10%, a number of experts per layer, or a size such as 12GiB");
}

Expected<SweepFormat> parse_sweep_format(const std::string& flag, const std::string& text) {
  constexpr std::string_view kWords[] = {"native", "f32", "bf16", "fp8", "int8", "int4"};
  SweepFormat format{text.substr(0, text.find('/')), 0};
  const std::string group = format.word.size() == text.size() ? "" : text.substr(format.word.size() + 1);
  const bool known = std::find(std::begin(kWords), std::end(kWords), format.word) != std::end(kWords);
  const bool whole = format.word.size() == text.size();
  if (group == "row") format.group = kGroupRow;
  if (group == "32" || group == "64" || group == "128") format.group = static_cast<std::uint32_t>(std::stoul(group));
  const auto parsed = parse_format(format.word);
  const bool grouped = whole || (parsed && format.group != 0 && (*parsed == Format::int8 || *parsed == Format::int4 || *parsed == Format::fp8) &&
                                 has_group(*parsed, format.group == kGroupRow ? 0 : format.group));
  if (known && grouped) return format;
  return bad(flag, text, "native, f32, bf16, int8, int4 (with /row, /32, /64 or /128) or fp8 (with /row or /128)");
}

Expected<Policy> with_choices(const Policy& base, const Target& target, std::optional<Strategy> strategy,
                              const std::optional<ExpertBudget>& on_gpu, std::optional<std::uint32_t> defer,
                              const std::optional<SweepFormat>& format) {
  Policy policy = base;
  if (strategy) policy.experts.strategy = *strategy;
  if (on_gpu) policy.experts.on_gpu = *on_gpu;
  if (defer) policy.defer.max_per_token = *defer;
  if (!policy.experts.on_gpu.none() && policy.experts.gpu_devices.empty()) {
    if (target.gpus.empty())
      return make_error(StatusCode::invalid_argument, {"--gpu-experts", fmt::format("target '{}' has no GPU", target.name),
                                                       to_string(policy.experts.on_gpu), "0%", "name a target with --target"});
    for (const GpuTarget& gpu : target.gpus)  // those that the policy uses, else the first
      if (std::any_of(policy.rules.begin(), policy.rules.end(), [&](const Rule& rule) { return rule.place.device == gpu.device; }))
        policy.experts.gpu_devices.push_back(gpu.device);
    if (policy.experts.gpu_devices.empty()) policy.experts.gpu_devices = {target.gpus.front().device};
    policy.experts.gpu_device_positions.assign(policy.experts.gpu_devices.size(), policy.experts.position);
  }
  if (format) {
    bool any = false;
    auto set = [&](FormatChoice* weights, std::uint32_t* group, FormatChoice* activations) {
      weights->word = format->word;
      *group = format->group;
      if (activations) activations->word.clear();  // what suited another format
    };
    for (Rule& rule : policy.rules)
      if (rule.cls == models::ModuleClass::RoutedExperts)
        set(&rule.place.weights, &rule.place.group, &rule.place.activations), any = true;
    if (!any)
      return make_error(StatusCode::invalid_argument,
                        {policy.file, "no rule of class RoutedExperts", {}, "one, whose weights --format replaces",
                         "put - match: {class: RoutedExperts} in front of the rule for \"*\""});
    set(&policy.experts.gpu_weights, &policy.experts.gpu_group, nullptr);
  }
  return for_target(std::move(policy), target);
}

Expected<std::vector<SweepRow>> explore(const models::ModelDesc& model, const Policy& base, const Target& target,
                                        const SweepAxes& axes, const CostOptions& options) {
  std::vector<SweepRow> rows;
  std::set<std::tuple<std::string, std::string, std::uint32_t>> bare;  // plans without hot experts: strategies do not matter
  for (const auto& format : choices(axes.formats))
    for (const auto& defer : choices(axes.defer))
      for (const auto& on_gpu : choices(axes.on_gpu))
        for (const auto& strategy : choices(axes.strategies)) {
          SweepRow row;
          KTC_ASSIGN_OR_RETURN(row.policy, with_choices(base, target, strategy, on_gpu, defer, format));
          const Policy& policy = row.policy;
          row.strategy = policy.experts.on_gpu.none() ? "none" : std::string(to_string(policy.experts.strategy));
          row.on_gpu = to_string(policy.experts.on_gpu);
          row.format = format_text(policy);
          row.defer = policy.defer.max_per_token;
          if (policy.experts.on_gpu.none() && !bare.emplace(row.on_gpu, row.format, row.defer).second) continue;
          auto placed = place(model, policy, target);
          if (!placed.ok()) {
            row.refused = placed.status().message();
            rows.push_back(std::move(row));
            continue;
          }
          KTC_ASSIGN_OR_RETURN(const CostModel cost,
                               CostModel::create(model, placed->modules, policy, target, placed->counts, options));
          KTC_ASSIGN_OR_RETURN(row.prediction, cost.predict(placed->hot));
          for (const HotExperts& layer : placed->hot) row.hot += layer.ids.size();
          for (const MemoryLine& line : placed->memory) {
            row.memory[line.device] += line.bytes;
            if (line.device != "cpu") row.gpu_memory += line.bytes;
          }
          row.quality_cost = expected_cost_percent(model, *placed, policy, row.prediction.steps.front().hit_rate);
          rows.push_back(std::move(row));
        }
  mark_pareto(&rows);
  std::stable_sort(rows.begin(), rows.end(), [](const SweepRow& a, const SweepRow& b) {
    if (a.refused.has_value() != b.refused.has_value()) return b.refused.has_value();
    return !a.refused && a.tokens_per_second() > b.tokens_per_second();
  });
  return rows;
}

}  // namespace ktc::placement
