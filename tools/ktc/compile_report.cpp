#include "tools/ktc/compile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "dialects/kt/KtWalk.h"
#include "llvm/Support/JSON.h"
#include "models/dump.h"
#include "placement/device_formats.h"
#include "runtime/base/units.h"
#include "runtime/formats/formats.h"

namespace ktc::tools {
namespace {

struct Line {
  std::string device, category, name;
  std::uint64_t bytes;
};

std::vector<Line> account(mlir::ModuleOp module) {
  std::vector<Line> lines;
  for (mlir::Attribute attribute : module->getAttrOfType<mlir::ArrayAttr>(kt::kAccount)) {
    auto line = mlir::cast<kt::AccountAttr>(attribute);
    lines.push_back({line.getDevice().str(), line.getCategory().str(), line.getName().str(), line.getBytes()});
  }
  return lines;
}

std::uint64_t limit_of(const CompileFacts& facts, const std::string& device) {
  auto found = facts.policy.limits.find(device);
  return found != facts.policy.limits.end() ? found->second.bytes : facts.target.memory_of(device);
}

std::string requested(const placement::Rule& rule) {
  std::string text = rule.cls ? std::string(models::to_string(*rule.cls)) : "*";
  if (!rule.name.empty()) text += " /" + rule.name + "/";
  text += " -> " + rule.place.device + ", " + (rule.place.weights.word.empty() ? "native" : rule.place.weights.word);
  if (!rule.place.activations.word.empty()) text += ", activations " + rule.place.activations.word;
  return text;
}

// "bf16 x 12, f32 x 17": what the modules that a rule decided really got.
std::string granted(const CompileFacts& facts, std::size_t rule) {
  std::map<std::string, int> counts;
  for (const placement::ModulePlacement& placed : facts.placement.modules)
    if (placed.rule == static_cast<int>(rule))
      ++counts[fmt::format("{}, weights {}, activations {}", placed.device, placement::weights_text(placed.weights, placed.group), to_string(placed.activations))];
  std::string text;
  for (const auto& [what, count] : counts) text += fmt::format("{}{} x {}", text.empty() ? "" : "; ", count, what);
  return text.empty() ? "nothing" : text;
}

std::uint64_t device_total(const std::vector<Line>& lines, const std::string& device) {
  std::uint64_t total = 0;
  for (const Line& line : lines) total += line.device == device ? line.bytes : 0;
  return total;
}

// Devices in the order of their first line.
std::vector<std::string> devices(const std::vector<Line>& lines) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const Line& line : lines)
    if (seen.insert(line.device).second) out.push_back(line.device);
  return out;
}

}  // namespace

std::string report_text(const CompileFacts& facts) {
  const models::ModelDesc& model = facts.model;
  std::uint64_t tensor_bytes = 0;
  for (const models::Tensor& tensor : model.tensors) tensor_bytes += tensor.bytes;
  std::string text = fmt::format("model     {} ({}, {}): {} layers, hidden {}, vocabulary {}, {} tensors, {}\n", model.name,
                                 model.architecture, model.family, model.layers.size(), model.hidden, model.vocab,
                                 model.tensors.size(), format_bytes(tensor_bytes));
  for (const models::SkippedTensors& skipped : model.skipped) text += "skipped   " + models::describe(skipped) + "\n";
  for (const std::string& warning : model.warnings) text += "warning   " + warning + "\n";
  text += fmt::format("target    {}\n\nrule                requested and granted\n", facts.target.name);
  for (std::size_t i = 0; i < facts.policy.rules.size(); ++i) {
    const placement::Rule& rule = facts.policy.rules[i];
    text += fmt::format("{:<18}  {}\n{:<18}  {}\n", to_string(rule.position), requested(rule), "", granted(facts, i));
  }
  for (const std::string& note : facts.placement.notes) text += "note      " + note + "\n";

  const std::vector<Line> lines = account(facts.lowered);
  for (const std::string& device : devices(lines)) {
    text += fmt::format("\nmemory of {}\n", device);
    for (const Line& line : lines)
      if (line.device == device) text += fmt::format("  {:<12}{:<38}{:>16} bytes {:>12}\n", line.category, line.name, line.bytes, format_bytes(line.bytes));
    const std::uint64_t total = device_total(lines, device), limit = limit_of(facts, device);
    text += fmt::format("  {:<50}{:>16} bytes {:>12}", "total", total, format_bytes(total));
    text += limit ? fmt::format(" of {}\n", format_bytes(limit)) : "\n";
  }
  return text;
}

std::string report_json(const CompileFacts& facts, const std::vector<compiler::WeightQuality>& quality) {
  llvm::json::Object root;
  root["model"] = llvm::json::Object{{"name", facts.model.name}, {"family", facts.model.family},
                                     {"architecture", facts.model.architecture}};
  root["target"] = facts.target.name;
  llvm::json::Array rules, skipped, warnings, notes, memory, rounded;
  for (std::size_t i = 0; i < facts.policy.rules.size(); ++i)
    rules.push_back(llvm::json::Object{{"rule", to_string(facts.policy.rules[i].position)},
                                       {"requested", requested(facts.policy.rules[i])},
                                       {"granted", granted(facts, i)}});
  for (const models::SkippedTensors& s : facts.model.skipped) skipped.push_back(models::describe(s));
  for (const std::string& warning : facts.model.warnings) warnings.push_back(warning);
  for (const std::string& note : facts.placement.notes) notes.push_back(note);
  for (const Line& line : account(facts.lowered))
    memory.push_back(llvm::json::Object{{"device", line.device}, {"category", line.category}, {"name", line.name},
                                        {"bytes", static_cast<std::int64_t>(line.bytes)}});
  for (const compiler::WeightQuality& q : quality)
    rounded.push_back(llvm::json::Object{{"weight", q.name}, {"type", q.type}, {"bits_per_weight", q.bits_per_weight},
                                         {"error", q.error}, {"worst_error", q.worst_error},
                                         {"worst_matrix", static_cast<std::int64_t>(q.worst_matrix)},
                                         {"matrices", static_cast<std::int64_t>(q.matrices)}});
  root["quality"] = std::move(rounded);
  root["rules"] = std::move(rules);
  root["skipped"] = std::move(skipped);
  root["warnings"] = std::move(warnings);
  root["notes"] = std::move(notes);
  root["memory"] = std::move(memory);
  return fmt::format("{}\n", llvm::formatv("{0:2}", llvm::json::Value(std::move(root))).str());
}

std::string quality_text(const std::vector<compiler::WeightQuality>& quality) {
  struct Worst {
    std::size_t weights = 0;
    double largest = 0, bits = 0;
    const compiler::WeightQuality* worst = nullptr;
  };
  std::map<std::string, Worst> types;
  for (const compiler::WeightQuality& q : quality) {
    Worst& type = types[q.type];
    ++type.weights;
    type.bits += q.bits_per_weight;
    type.largest = std::max(type.largest, q.error);
    if (!type.worst || q.worst_error > type.worst->worst_error) type.worst = &q;
  }
  std::string text;
  for (const auto& [name, type] : types)
    text += fmt::format("ktc: {}: {} weights at {:.2f} bits, relative error up to {:.4f}, of one matrix {:.4f} ({}{})\n", name,
                        type.weights, type.bits / static_cast<double>(type.weights), type.largest, type.worst->worst_error,
                        type.worst->name,
                        type.worst->matrices > 1 ? fmt::format(", matrix {}", type.worst->worst_matrix) : std::string());
  return text;
}

}  // namespace ktc::tools
