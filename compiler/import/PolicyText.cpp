// The policy as YAML with every default written out. placement/policy.cpp reads the same keys; test/compiler compares.
#include <fmt/format.h>

#include "compiler/import/Import.h"

namespace ktc::compiler {
namespace {

using placement::ExpertBudget;
using placement::Policy;

// Always quoted: a name or path may look like a number, a list or a comment.
std::string quotedText(std::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

std::string groupText(std::uint32_t group) {
  if (group == 0) return "";
  return group == placement::kGroupRow ? ", group: row" : fmt::format(", group: {}", group);
}

std::string placeText(const placement::PlaceSpec& place) {
  std::string text = fmt::format("{{device: {}, weights: {}{}", quotedText(place.device),
                                 place.weights.stated() ? place.weights.word : "native", groupText(place.group));
  if (place.activations.stated()) text += ", activations: " + place.activations.word;
  if (place.pin) text += ", pin: true";
  return text + "}";
}

std::string ruleText(const placement::Rule& rule) {
  std::string match = rule.cls ? std::string(models::to_string(*rule.cls)) : "\"*\"";
  if (!rule.name.empty()) match += ", name: " + quotedText(rule.name);
  return fmt::format("  - match: {{class: {}}}\n    place: {}\n", match, placeText(rule.place));
}

std::string budgetText(const ExpertBudget& budget) {
  switch (budget.kind) {
    case ExpertBudget::Kind::share: return fmt::format("{:.10g}%", budget.share * 100);
    case ExpertBudget::Kind::per_layer: return std::to_string(budget.count);
    case ExpertBudget::Kind::bytes: return fmt::format("{{max: {}B}}", budget.bytes);
  }
  return {};
}

std::string expertsText(const placement::ExpertsPolicy& experts) {
  std::string text = fmt::format("experts:\n  strategy: {}\n  on_gpu: {}\n", placement::to_string(experts.strategy),
                                 budgetText(experts.on_gpu));
  if (!experts.gpu_devices.empty()) {
    std::string devices;
    for (const std::string& device : experts.gpu_devices) devices += (devices.empty() ? "" : ", ") + quotedText(device);
    text +=
        fmt::format("  gpu: {{devices: [{}], weights: {}{}{}}}\n", devices,
                    experts.gpu_weights.stated() ? experts.gpu_weights.word : "native", groupText(experts.gpu_group),
                    experts.gpu_activations.stated() ? ", activations: " + experts.gpu_activations.word : "");
  }
  if (!experts.statistics.empty()) text += "  statistics: " + quotedText(experts.statistics) + "\n";
  text += fmt::format("  seed: {}\n", experts.seed);
  if (experts.update_every_tokens != 0)
    text += fmt::format("  update: {{every_tokens: {}}}\n", experts.update_every_tokens);
  return text;
}

std::string deferText(const placement::DeferPolicy& defer) {
  const char* phases = defer.decode && defer.extend ? "prefill, decode" : defer.decode ? "decode" : "prefill";
  return fmt::format("defer: {{max_per_token: {}, phases: [{}], scope: {}}}\n", defer.max_per_token, phases,
                     defer.scope == placement::DeferScope::cpu ? "cpu" : "all");
}

}  // namespace

std::string policyText(const Policy& policy) {
  std::string text = "version: 1\nrules:\n";
  for (const placement::Rule& rule : policy.rules) text += ruleText(rule);
  text += expertsText(policy.experts) + deferText(policy.defer);
  const placement::KvCachePolicy& kv = policy.kv_cache;
  text += fmt::format("kv_cache: {{dtype: {}, tokens: {}, sequences: {}, page: {}}}\n", to_string(kv.dtype), kv.tokens,
                      kv.sequences, kv.page);
  text += fmt::format("batch: {{decode: [{}], chunk: {}", fmt::join(policy.batch.decode, ", "), policy.batch.chunk);
  if (policy.batch.stream_chunk != 0) text += fmt::format(", stream_chunk: {}", policy.batch.stream_chunk);
  text += "}\n";
  if (!policy.limits.empty()) text += "limits:\n";
  for (const auto& [device, limit] : policy.limits) text += fmt::format("  {}: {}B\n", quotedText(device), limit.bytes);
  if (policy.activation_group != 64)
    text += policy.activation_group == 0 ? "activation_group: row\n" : fmt::format("activation_group: {}\n", policy.activation_group);
  if (policy.best_effort) text += "best-effort: true\n";
  return text;
}

}  // namespace ktc::compiler
