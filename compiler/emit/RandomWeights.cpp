#include "compiler/emit/RandomWeights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace ktc::compiler {
namespace {

struct LayerName {
  std::string kind;     // the name with * for the number
  std::uint64_t layer;
};

// "model.layers.12.mlp.experts.down": the first dotted part that is a number. Nothing for names outside layers.
std::optional<LayerName> layerOf(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos)
      return LayerName{name.substr(0, begin) + "*" + name.substr(end), std::stoull(part)};
    begin = end + 1;
  }
  return std::nullopt;
}

void aliasLayers(planfb::PlanT& plan, std::uint32_t most) {
  using Key = std::tuple<std::string, std::uint32_t, unsigned, unsigned, unsigned, std::uint64_t, std::uint64_t, std::uint64_t>;
  std::map<Key, std::map<std::uint64_t, std::uint32_t>> kinds;  // layer -> weight
  for (std::uint32_t i = 0; i < plan.weights.size(); ++i) {
    const planfb::WeightT& w = *plan.weights[i];
    const auto name = layerOf(w.name);
    if (name) kinds[{name->kind, w.device, w.format, w.packing, w.group, w.batch, w.rows, w.columns}][name->layer] = i;
  }
  for (const auto& [key, layers] : kinds) {
    std::vector<std::uint32_t> kept;
    std::size_t index = 0;
    for (const auto& [layer, weight] : layers) {
      if (index < most) {
        kept.push_back(weight);
      } else {
        plan.weights[weight]->source = planfb::WeightSource::alias;
        plan.weights[weight]->alias_of = kept[index % most];
        plan.weights[weight]->seed = 0;
      }
      ++index;
    }
  }
}

// One line of distinct weights where the lines by class stood.
void countWeights(planfb::PlanT& plan) {
  std::vector<std::uint64_t> bytes(plan.devices.size(), 0);
  for (const auto& weight : plan.weights)
    if (weight->source != planfb::WeightSource::alias) bytes[weight->device] += weight->bytes;
  std::vector<bool> seen(plan.devices.size(), false);
  std::erase_if(plan.account, [&](const auto& line) {
    if (line->category != "weights") return false;
    if (seen[line->device]) return true;
    seen[line->device] = true;
    line->name = "random, shared by layers";
    line->bytes = bytes[line->device];
    return false;
  });
}

}  // namespace

void makeRandom(PlanAndJobs& built, const RandomOptions& options) {
  for (auto& weight : built.plan.weights) {
    weight->source = planfb::WeightSource::random;
    weight->seed = options.seed;
    weight->file = plan::kNone;
    weight->offset = 0;
  }
  built.plan.weight_files.clear();
  built.files.clear();
  if (options.alias_layers == 0) return;
  aliasLayers(built.plan, options.alias_layers);
  countWeights(built.plan);
}

}  // namespace ktc::compiler
