#include "compiler/emit/RandomWeights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
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
    if (name && w.zipf == 0) kinds[{name->kind, w.device, w.format, w.packing, w.group, w.batch, w.rows, w.columns}][name->layer] = i;
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

constexpr float kDeviation = 8;  // of embeddings: layers add about 1 to the variance, so tokens stay different for dozens of them

// Says which matrices have uneven rows. Errors as in the header.
Status makeUneven(planfb::PlanT& plan, const RandomOptions& options) {
  std::set<std::uint32_t> routers, tokens, embeddings;
  for (const auto& entry : plan.entries)
    for (const auto& step : entry->steps) {
      if (const auto* route = step->op.AsRouteOp()) routers.insert(route->w);
      if (const auto* embed = step->op.AsEmbedOp()) tokens.insert(embed->w), embeddings.insert(embed->w);
      if (const auto* linear = step->op.AsLinearOp(); linear != nullptr && linear->head) tokens.insert(linear->w);
    }
  for (const std::uint32_t i : routers) plan.weights[i]->zipf = options.router_zipf;
  if (options.router_zipf != 0 || options.topics != 0)
    for (const std::uint32_t i : embeddings) plan.weights[i]->deviation = kDeviation;
  for (const std::uint32_t i : tokens) {
    planfb::WeightT& w = *plan.weights[i];
    if (options.topics == 0) continue;
    if (static_cast<Packing>(w.packing) != Packing::row_major)
      return make_error(StatusCode::invalid_argument, {"--topics", w.name + " in packing " + std::string(to_string(static_cast<Packing>(w.packing))),
                                                       "rows of f32 or bf16", "place Embedding and Head on a GPU with native weights"});
    if (options.topics > w.rows)
      return make_error(StatusCode::invalid_argument, {"--topics", std::to_string(options.topics), "at most " + std::to_string(w.rows) + ", the tokens", ""});
    w.topics = options.topics;
  }
  return {};
}

}  // namespace

Status makeRandom(PlanAndJobs& built, const RandomOptions& options) {
  for (auto& weight : built.plan.weights) {
    weight->source = planfb::WeightSource::random;
    weight->seed = options.seed;
    weight->file = plan::kNone;
    weight->offset = 0;
  }
  built.plan.weight_files.clear();
  built.files.clear();
  KTC_RETURN_IF_ERROR(makeUneven(built.plan, options));
  if (options.alias_layers == 0) return {};
  aliasLayers(built.plan, options.alias_layers);
  countWeights(built.plan);
  return {};
}

}  // namespace ktc::compiler
