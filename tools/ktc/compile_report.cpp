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
#include "placement/streaming.h"
#include "runtime/base/units.h"
#include "runtime/formats/formats.h"
#include "tools/ktc/prediction_report.h"

namespace ktc::tools {
namespace {

struct Line {
  std::string device, category, name;
  std::uint64_t bytes;
};

// The final account, and what the driver of each of its GPUs takes besides.
std::vector<Line> account(const CompileFacts& facts) {
  std::vector<Line> lines;
  mlir::ModuleOp module = facts.lowered;
  for (mlir::Attribute attribute : module->getAttrOfType<mlir::ArrayAttr>(kt::kAccount)) {
    auto line = mlir::cast<kt::AccountAttr>(attribute);
    lines.push_back({line.getDevice().str(), line.getCategory().str(), line.getName().str(), line.getBytes()});
  }
  for (const placement::MemoryLine& line : facts.placement.memory)
    if (line.category == "context") lines.push_back({line.device, line.category, line.name, line.bytes});
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

// "10 %, uniform": what the policy asks for under `experts`.
std::string requested(const placement::ExpertsPolicy& experts) {
  using Kind = placement::ExpertBudget::Kind;
  const placement::ExpertBudget& budget = experts.on_gpu;
  std::string amount = budget.kind == Kind::share       ? fmt::format("{:g} %", budget.share * 100)
                       : budget.kind == Kind::per_layer ? fmt::format("{} in every layer", budget.count)
                                                        : fmt::format("at most {}{}", format_bytes(budget.bytes), experts.gpu_devices.size() > 1 ? " of each" : "");
  return fmt::format("{} -> {}, {}", amount, fmt::join(experts.gpu_devices, ", "), placement::to_string(experts.strategy));
}

// "24 of 256 experts in 8 layers, 16 on cuda:0 and 8 on cuda:1, weights int4/64, activations bf16".
std::string granted_experts(const CompileFacts& facts) {
  std::size_t all = 0, hot = 0;
  for (const models::Module& module : facts.model.modules)
    if (const auto* experts = std::get_if<models::ExpertsDesc>(&module.attributes)) all += experts->experts;
  std::set<std::string> formats;
  std::set<std::uint32_t> layers;
  std::map<std::string, std::size_t> devices;
  for (const placement::HotExperts& layer : facts.placement.hot) {
    hot += layer.ids.size();
    layers.insert(layer.module);
    devices[layer.device] += layer.ids.size();
    formats.insert(fmt::format("weights {}, activations {}", placement::weights_text(layer.weights, layer.group), to_string(layer.activations)));
  }
  std::string where;  // of one GPU the request says it
  for (const auto& [device, count] : devices)
    if (facts.policy.experts.gpu_devices.size() > 1) where += fmt::format("{}{} on {}", where.empty() ? ", " : " and ", count, device);
  return fmt::format("{} of {} experts in {} layers{}{}{}", hot, all, layers.size(), where, formats.empty() ? "" : ", ", fmt::join(formats, "; "));
}

// What `auto` minimised: "least predicted time of a token in decode, 7662 us"; empty for other strategies.
std::string minimised(const CompileFacts& facts) {
  if (facts.policy.experts.strategy != placement::Strategy::auto_) return {};
  double sum = 0, buckets = 0;
  for (const placement::StepCost& step : facts.prediction.steps)
    if (step.entry.starts_with("decode")) sum += step.us / step.rows, ++buckets;
  return fmt::format("; least predicted time of a token in decode{}, {:.0f} us", buckets > 1 ? " (mean over batch.decode)" : "",
                     sum / std::max(buckets, 1.0));
}

// What a token's result depends on besides the token, where prompts stream experts; empty: nothing but the order of sums in f32.
std::string stream_rounding(const CompileFacts& facts) {
  if (facts.placement.stream.from == 0) return {};
  std::set<std::string> formats;
  for (std::size_t i = 0; i < facts.model.modules.size(); ++i) {
    const placement::ModulePlacement& placed = facts.placement.modules[i];
    if (facts.model.modules[i].cls != models::ModuleClass::RoutedExperts || placed.device != "cpu") continue;
    const std::string_view gpu = placed.activations == Format::f32 ? "f32" : "bf16";
    if (to_string(placed.activations) != gpu) formats.insert(fmt::format("{} on the CPU, {} where they are streamed", to_string(placed.activations), gpu));
  }
  if (formats.empty()) return {};
  return fmt::format("activations of experts are {}: which it is for a token follows from the tokens of its step{}", fmt::join(formats, "; "),
                     facts.placement.stream.shares.empty() ? "" : ", for each expert from how many rows of the step chose it (stream_share)");
}

// Bytes that kt-place reserved for a device before the compiler laid out its memory.
std::uint64_t reserved(const CompileFacts& facts, const std::string& device) {
  std::uint64_t total = 0;
  for (const placement::MemoryLine& line : facts.placement.memory) total += line.device == device ? line.bytes : 0;
  return total;
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
  if (!facts.policy.experts.on_gpu.none())
    text += fmt::format("{:<18}  {}\n{:<18}  {}\n", to_string(facts.policy.experts.on_gpu_position), "hot experts: " + requested(facts.policy.experts),
                        "", granted_experts(facts) + minimised(facts));
  if (facts.policy.defer.max_per_token > 0)
    text += fmt::format("{:<18}  late experts: up to {} of a token{}{}, among {}\n", to_string(facts.policy.defer.position),
                        facts.policy.defer.max_per_token, facts.policy.defer.decode ? ", decode" : "",
                        facts.policy.defer.extend ? ", prefill" : "",
                        facts.policy.defer.scope == placement::DeferScope::all ? "all" : "those on the CPU");
  if (facts.policy.batch.stream_chunk > 0) {
    text += fmt::format("{:<18}  prefill: {}\n", to_string(facts.policy.batch.position), placement::describe(facts.placement.stream));
    const std::string rounding = stream_rounding(facts);
    if (!rounding.empty()) text += fmt::format("{:<18}  {}\n", "", rounding);
  }
  for (const placement::Difference& d : facts.placement.differences)
    text += fmt::format("differs   {}: {}: requested {}, granted {}: {}\n", d.place, d.what, d.requested, d.granted, d.why);
  for (const std::string& note : facts.placement.notes) text += "note      " + note + "\n";

  const std::vector<Line> lines = account(facts);
  for (const std::string& device : devices(lines)) {
    text += fmt::format("\nmemory of {}\n", device);
    for (const Line& line : lines)
      if (line.device == device) text += fmt::format("  {:<12}{:<38}{:>16} bytes {:>12}\n", line.category, line.name, line.bytes, format_bytes(line.bytes));
    const std::uint64_t total = device_total(lines, device), limit = limit_of(facts, device);
    text += fmt::format("  {:<50}{:>16} bytes {:>12}", "total", total, format_bytes(total));
    text += limit ? fmt::format(" of {}\n", format_bytes(limit)) : "\n";
    if (const std::uint64_t most = reserved(facts, device); most > total)
      text += fmt::format("  {:<50}{:>16} bytes {:>12} less\n", "reserved by placement", most, format_bytes(most - total));
  }
  return text + prediction_text(facts.prediction);
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
  for (const Line& line : account(facts))
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
  llvm::json::Array differences;
  for (const placement::Difference& d : facts.placement.differences)
    differences.push_back(llvm::json::Object{{"place", d.place}, {"what", d.what}, {"requested", d.requested}, {"granted", d.granted},
                                             {"why", d.why}});
  root["differences"] = std::move(differences);
  llvm::json::Object hot, hot_on;  // by model layer, as files of counts have them; the same by device
  const auto list = [](const std::vector<std::uint32_t>& ids) {
    llvm::json::Array array;
    for (const std::uint32_t id : ids) array.push_back(id);
    return array;
  };
  std::map<std::string, std::vector<std::uint32_t>> of_layer;
  std::map<std::string, llvm::json::Object> on_device;
  for (const placement::HotExperts& layer : facts.placement.hot) {
    const std::string number = std::to_string(facts.model.modules[layer.module].layer);
    of_layer[number].insert(of_layer[number].end(), layer.ids.begin(), layer.ids.end());
    on_device[layer.device][number] = list(layer.ids);
  }
  for (auto& [layer, ids] : of_layer) {
    std::sort(ids.begin(), ids.end());
    hot[layer] = list(ids);
  }
  for (auto& [device, layers] : on_device) hot_on[device] = std::move(layers);
  root["hot_experts"] = std::move(hot);
  root["hot_experts_by_device"] = std::move(hot_on);
  if (facts.policy.batch.stream_chunk > 0) {
    llvm::json::Array points;
    const auto rounded = [](double us) { return std::stod(fmt::format("{:.6g}", us)); };
    for (const placement::StreamPoint& point : facts.placement.stream.points)
      points.push_back(llvm::json::Object{{"tokens", static_cast<std::int64_t>(point.tokens)},
                                          {"streamed_us", rounded(point.streamed)},
                                          {"without_share_us", rounded(point.unshared)},
                                          {"on_cpu_us", rounded(point.on_cpu)}});
    root["streaming"] = llvm::json::Object{{"from_tokens", static_cast<std::int64_t>(facts.placement.stream.from)},
                                           {"stated", facts.placement.stream.stated},
                                           {"cpu_takes_a_share", !facts.placement.stream.shares.empty()},
                                           {"depends_on_step", stream_rounding(facts)},
                                           {"predicted", std::move(points)}};
  }
  root["predicted"] = prediction_json(facts.prediction);
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
