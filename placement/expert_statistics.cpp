#include "placement/expert_statistics.h"

#include <fmt/format.h>

#include <charconv>

#include "models/json_reader.h"

namespace ktc::placement {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
constexpr const char* kRemedy = "record it again with ktc-run --record-experts";

Status wrong(const std::string& file, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::invalid_argument, {file, std::move(what), std::move(found), std::move(expected), kRemedy});
}

Expected<std::uint32_t> layer_number(const std::string& file, const std::string& key) {
  std::uint32_t layer = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
  if (error != std::errc() || end != key.data() + key.size() || (key.size() > 1 && key[0] == '0'))
    return wrong(file, "layers", "key " + models::show(models::Json(key)), "numbers of layers");
  return layer;
}

}  // namespace

Expected<CountsByLayer> parse_expert_statistics(std::string_view text, const std::string& file) {
  KTC_ASSIGN_OR_RETURN(const models::Json json, models::parse_json(text, file));
  if (!json.is_object()) return wrong(file, "expert statistics", models::show(json), "an object of layers and tokens");
  for (const auto& [key, value] : json.items())
    if (key != "layers" && key != "tokens") return wrong(file, "unknown key", models::show(models::Json(key)), "layers, tokens");
  const models::Json* layers = models::find_key(json, "layers");
  if (layers == nullptr || !layers->is_object() || layers->empty())
    return wrong(file, "layers", layers == nullptr ? "nothing" : models::show(*layers), "an object of at least one layer");
  CountsByLayer out;
  std::uint64_t sum = 0;
  for (const auto& [key, value] : layers->items()) {
    KTC_ASSIGN_OR_RETURN(const std::uint32_t layer, layer_number(file, key));
    if (!value.is_array() || value.empty())
      return wrong(file, fmt::format("layer {}", layer), models::show(value), "a list of counts, one per expert");
    std::vector<std::uint64_t>& counts = out[layer];
    for (const models::Json& count : value) {
      if (!count.is_number_unsigned()) return wrong(file, fmt::format("layer {}", layer), models::show(count), "integers from 0");
      counts.push_back(count.get<std::uint64_t>());
      if (__builtin_add_overflow(sum, counts.back(), &sum)) return wrong(file, "sum of the counts", "more than 2^64", "less");
    }
  }
  return out;
}

Expected<CountsByLayer> read_expert_statistics(const std::filesystem::path& path) {
  KTC_ASSIGN_OR_RETURN(const std::string text, models::read_text(path, kMostBytes));
  return parse_expert_statistics(text, path.filename().string());
}

Expected<ExpertCounts> counts_of(const models::ModelDesc& model, const CountsByLayer& layers) {
  ExpertCounts counts;
  for (const models::Module& module : model.modules) {
    const auto* desc = std::get_if<models::ExpertsDesc>(&module.attributes);
    if (desc == nullptr) continue;
    const auto row = layers.find(static_cast<std::uint32_t>(module.layer));
    if (module.layer < 0 || row == layers.end())
      return make_error(StatusCode::invalid_argument, {"expert statistics", "counts of '" + module.name + "'", "none",
                                                       fmt::format("layer {}", module.layer), "record them with this model"});
    if (row->second.size() != desc->experts)
      return make_error(StatusCode::invalid_argument,
                        {"expert statistics", "counts of '" + module.name + "'", std::to_string(row->second.size()),
                         fmt::format("{}, one for each expert", desc->experts), "record them with this model"});
    counts.push_back(row->second);
  }
  return counts;
}

}  // namespace ktc::placement
