#include "tools/ktc/run_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/ktc/run_output.h"
#include "tools/ktc/text_file.h"

namespace ktc::run {
namespace {

using nlohmann::json;

constexpr const char* kFlag = "--record-experts";
constexpr const char* kRemedy = "name another file, or remove this one to begin again";

Status wrong(const std::string& file, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::invalid_argument, {.place = fmt::format("{} {}", kFlag, file),
                                                   .what = std::move(what),
                                                   .found = std::move(found),
                                                   .expected = std::move(expected),
                                                   .remedy = kRemedy});
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

bool add(std::uint64_t& sum, std::uint64_t value) { return !__builtin_add_overflow(sum, value, &sum); }

}  // namespace

Expected<ExpertStatistics> parse_statistics(std::string_view text, const std::string& file) {
  const json root = json::parse(text, nullptr, false);
  if (!root.is_object() || !root.contains("layers") || !root["layers"].is_object() || !root.contains("tokens") ||
      !root["tokens"].is_number_unsigned())
    return wrong(file, "expert statistics", root.is_discarded() ? "no JSON" : shown(root), "an object of tokens and layers");
  ExpertStatistics out;
  out.tokens = root["tokens"].get<std::uint64_t>();
  std::uint64_t sum = 0;
  for (const auto& [key, counts] : root["layers"].items()) {
    std::uint32_t layer = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (error != std::errc() || end != key.data() + key.size())
      return wrong(file, "layers", "key " + shown(json(key)), "numbers of layers");
    if (!counts.is_array()) return wrong(file, "layer " + key, shown(counts), "a list of counts");
    for (const json& count : counts) {
      if (!count.is_number_unsigned()) return wrong(file, "layer " + key, shown(count), "integers from 0");
      out.layers[layer].push_back(count.get<std::uint64_t>());
      if (!add(sum, out.layers[layer].back())) return wrong(file, "sum of the counts", "more than 2^64", "less");
    }
  }
  return out;
}

Expected<std::unique_ptr<ExpertRecorder>> ExpertRecorder::open(std::filesystem::path file, const planfb::PlanT& plan) {
  auto recorder = std::make_unique<ExpertRecorder>();
  std::map<std::uint32_t, std::uint32_t> top_k;  // by layer
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps)
      if (const auto* op = step->op.AsExpertsOp()) top_k[op->layer] = static_cast<std::uint32_t>(step->inputs[1].columns());
  if (top_k.empty())
    return make_error(StatusCode::invalid_argument, {.place = kFlag,
                                                     .what = "the model has no routed experts",
                                                     .found = plan.model->name,
                                                     .expected = "a mixture of experts"});
  for (const auto& [layer, k] : top_k) recorder->layers_.push_back({layer, k});
  recorder->experts_ = plan.model->experts;
  recorder->counts_.resize(std::size_t{plan.model->layers} * plan.model->experts);

  const std::string name = file.string();
  std::error_code code;
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(folder, code))
    return make_error(StatusCode::not_found, {.place = fmt::format("{} {}", kFlag, name),
                                              .what = "no such folder",
                                              .found = folder.string(),
                                              .expected = "a folder to write to"});
  if (std::filesystem::exists(file, code)) {
    KTC_ASSIGN_OR_RETURN(const std::string text, tools::read_text_file(kFlag, file));
    KTC_ASSIGN_OR_RETURN(recorder->before_, parse_statistics(text, name));
    for (const auto& [layer, counts] : recorder->before_.layers)
      if (!top_k.contains(layer) || counts.size() != recorder->experts_)
        return wrong(name, fmt::format("layer {}", layer), fmt::format("{} counts", counts.size()),
                     top_k.contains(layer) ? fmt::format("{}, as {} has experts", recorder->experts_, plan.model->name)
                                           : fmt::format("no such layer: {} has no experts there", plan.model->name));
    for (const auto& [layer, k] : top_k)
      if (!recorder->before_.layers.contains(layer))
        return wrong(name, fmt::format("layer {}", layer), "no counts", fmt::format("those of {}", plan.model->name));
  }
  recorder->file_ = std::move(file);
  return recorder;
}

void ExpertRecorder::reset() { std::fill(counts_.begin(), counts_.end(), 0); }

Status ExpertRecorder::write() {
  const std::string name = file_.string();
  ExpertStatistics now;
  for (const Layer& layer : layers_) {
    const auto first = counts_.begin() + static_cast<std::ptrdiff_t>(std::size_t{layer.number} * experts_);
    std::vector<std::uint64_t>& counts = now.layers[layer.number];
    counts.assign(first, first + experts_);
    std::uint64_t sum = 0;
    for (const std::uint64_t count : counts) sum += count;
    // a layer behind the last attention may be computed for fewer rows
    now.tokens = std::max(now.tokens, sum / layer.top_k);
  }
  const std::uint64_t recorded = now.tokens;
  bool fits = add(now.tokens, before_.tokens);
  for (const auto& [layer, counts] : before_.layers)
    for (std::size_t e = 0; e < counts.size(); ++e) fits = add(now.layers[layer][e], counts[e]) && fits;
  if (!fits) return wrong(name, "sum of the counts", "more than 2^64", "less");

  const std::filesystem::path part = name + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << to_json(now);
  out.close();
  std::error_code code;
  if (out) std::filesystem::rename(part, file_, code);
  if (!out || code)
    return make_error(StatusCode::io_error, {.place = fmt::format("{} {}", kFlag, name),
                                             .what = "cannot write the file",
                                             .found = code ? code.message() : part.string()});
  note(fmt::format("wrote {}: experts of {} tokens{}", name, now.tokens,
                   before_.tokens == 0 ? "" : fmt::format(", {} of them of this run", recorded)));
  return {};
}

}  // namespace ktc::run
