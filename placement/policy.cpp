#include "placement/policy.h"

#include <fmt/format.h>

#include <bit>

#include "placement/name_pattern.h"
#include "placement/expert_statistics.h"
#include "placement/read_text.h"
#include "placement/target.h"
#include "runtime/base/units.h"

namespace ktc::placement {
namespace {

using yaml::Map;
using yaml::Node;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMaxSequences = 65536;
constexpr std::int64_t kMaxPage = 1024;
constexpr std::int64_t kMaxChunk = std::int64_t{1} << 20;
constexpr std::size_t kMaxRules = 1024;  // each is matched against every module
constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;

Expected<std::string> read_device(const Node& node) {
  auto text = node.string();
  if (!text.ok() || !is_device_name(*text)) return node.error({}, "a device: cpu, cuda:0, cuda:1, ...");
  return *text;
}

Status read_count(const Map& map, std::string_view key, std::int64_t least, std::int64_t most, std::uint32_t* target) {
  if (!map.has(key)) return Status();
  KTC_ASSIGN_OR_RETURN(std::int64_t value, map[key].integer(least, most));
  *target = static_cast<std::uint32_t>(value);
  return Status();
}

Status read_weights(const Map& map, FormatChoice* choice) {
  if (!map.has("weights")) return Status();
  const Node node = map["weights"];
  KTC_ASSIGN_OR_RETURN(std::string_view word, node.choice<std::string_view>({{"native", "native"},
                                                                             {"f32", "f32"},
                                                                             {"bf16", "bf16"},
                                                                             {"fp8", "fp8"},
                                                                             {"int8", "int8"},
                                                                             {"int4", "int4"},
                                                                             {"mxfp4", "mxfp4"}}));
  *choice = {std::string(word), node.position()};
  return Status();
}

Status read_activations(const Map& map, FormatChoice* choice) {
  if (!map.has("activations")) return Status();
  const Node node = map["activations"];
  KTC_ASSIGN_OR_RETURN(std::string_view word,
                       node.choice<std::string_view>({{"f32", "f32"}, {"bf16", "bf16"}, {"int8", "int8"}}));
  *choice = {std::string(word), node.position()};
  return Status();
}

// Only int8, int4 and fp8 leave the granule of their scales to the user; the others have none or one that is part of the
// format.
Status read_group(const Map& map, const FormatChoice& weights, std::uint32_t* group) {
  if (!map.has("group")) return Status();
  const Node node = map["group"];
  auto value = node.choice<std::uint32_t>({{"row", kGroupRow}, {"32", 32}, {"64", 64}, {"128", 128}});
  if (!value.ok()) return value.status();
  if (weights.word != "int8" && weights.word != "int4" && weights.word != "fp8")
    return node.error("a group needs weights with scales", "weights: int8, int4 or fp8 beside it", "remove group",
                      "weights: " + (weights.stated() ? weights.word : std::string("native, the default")));
  *group = *value;
  return Status();
}

Expected<PlaceSpec> read_place(const Node& node) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"device", "weights", "group", "activations", "pin"}));
  PlaceSpec place;
  KTC_ASSIGN_OR_RETURN(Node device, map.require("device"));
  KTC_ASSIGN_OR_RETURN(place.device, read_device(device));
  place.device_position = device.position();
  KTC_RETURN_IF_ERROR(read_weights(map, &place.weights));
  KTC_RETURN_IF_ERROR(read_activations(map, &place.activations));
  KTC_RETURN_IF_ERROR(read_group(map, place.weights, &place.group));
  KTC_RETURN_IF_ERROR(map.read("pin", &place.pin));
  return place;
}

Expected<Rule> read_rule(const Node& node) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"match", "place"}));
  Rule rule;
  rule.position = node.position();

  KTC_ASSIGN_OR_RETURN(Node match_node, map.require("match"));
  KTC_ASSIGN_OR_RETURN(Map match, match_node.map({"class", "name"}));
  if (!match.has("class") && !match.has("name"))
    return match_node.error("a rule must say what it matches", "class, name or both",
                            "to match everything write class: \"*\"", "neither");
  if (match.has("class")) {
    using C = models::ModuleClass;
    KTC_ASSIGN_OR_RETURN(rule.cls, match["class"].choice<std::optional<C>>({{"Embedding", C::Embedding},
                                                                            {"Attention", C::Attention},
                                                                            {"LinearAttention", C::LinearAttention},
                                                                            {"Indexer", C::Indexer},
                                                                            {"DenseMlp", C::DenseMlp},
                                                                            {"SharedExperts", C::SharedExperts},
                                                                            {"Router", C::Router},
                                                                            {"RoutedExperts", C::RoutedExperts},
                                                                            {"Norm", C::Norm},
                                                                            {"Head", C::Head},
                                                                            {"*", std::nullopt}}));
  }
  if (match.has("name")) {
    const Node name = match["name"];
    KTC_ASSIGN_OR_RETURN(rule.name, name.string());
    if (rule.name.empty())
      return name.error("the pattern is empty", "a regular expression", "remove name to match any name");
    const auto pattern = NamePattern::compile(rule.name);
    if (!pattern.ok())
      return name.error("not a usable regular expression", "an ECMAScript pattern of a whole module name",
                        pattern.status().message());
  }
  KTC_ASSIGN_OR_RETURN(Node place, map.require("place"));
  KTC_ASSIGN_OR_RETURN(rule.place, read_place(place));
  return rule;
}

Status read_rules(const Node& node, Policy* policy) {
  KTC_ASSIGN_OR_RETURN(std::vector<Node> items, node.sequence());
  if (items.empty())
    return node.error("no rules", "at least one", "for example - {match: {class: \"*\"}, place: {device: cpu}}",
                      "an empty list");
  if (items.size() > kMaxRules)
    return node.error("too many rules", fmt::format("at most {}", kMaxRules), "let patterns match several modules",
                      std::to_string(items.size()));
  for (const Node& item : items) {
    KTC_ASSIGN_OR_RETURN(Rule rule, read_rule(item));
    policy->rules.push_back(std::move(rule));
  }
  return Status();
}

// `10%` is a share of all routed experts, `12` a number in every layer, `{max: 12GiB}` bytes.
Expected<ExpertBudget> read_budget(const Node& node) {
  ExpertBudget budget;
  if (node.is_map()) {
    KTC_ASSIGN_OR_RETURN(Map map, node.map({"max"}));
    KTC_ASSIGN_OR_RETURN(Node max, map.require("max"));
    KTC_ASSIGN_OR_RETURN(budget.bytes, max.bytes());
    budget.kind = ExpertBudget::Kind::bytes;
    return budget;
  }
  if (const auto share = node.percent(); share.ok()) {
    budget.share = *share;
    return budget;
  }
  if (const auto count = node.integer(0, kMaxCount); count.ok()) {
    budget.kind = ExpertBudget::Kind::per_layer;
    budget.count = static_cast<std::uint64_t>(*count);
    return budget;
  }
  return node.error({}, "a share such as 10%, a number of experts per layer, or {max: 12GiB}");
}

Status read_gpu_experts(const Node& node, ExpertsPolicy* experts) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"devices", "weights", "group", "activations"}));
  KTC_ASSIGN_OR_RETURN(Node devices, map.require("devices"));
  KTC_ASSIGN_OR_RETURN(std::vector<Node> items, devices.sequence());
  if (items.empty()) return devices.error("no device", "at least one GPU, such as [cuda:0]", {}, "an empty list");
  for (const Node& item : items) {
    KTC_ASSIGN_OR_RETURN(std::string device, read_device(item));
    if (device == "cpu")
      return item.error({}, "a GPU such as cuda:0", "experts that stay on the CPU are placed by the rules");
    for (const std::string& earlier : experts->gpu_devices)
      if (earlier == device) return item.error("device named twice", "each GPU once");
    experts->gpu_devices.push_back(std::move(device));
    experts->gpu_device_positions.push_back(item.position());
  }
  KTC_RETURN_IF_ERROR(read_weights(map, &experts->gpu_weights));
  KTC_RETURN_IF_ERROR(read_activations(map, &experts->gpu_activations));
  return read_group(map, experts->gpu_weights, &experts->gpu_group);
}

Status read_experts(const Node& node, ExpertsPolicy* experts) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"strategy", "on_gpu", "gpu", "statistics", "seed", "update"}));
  experts->position = node.position();
  if (map.has("strategy")) {
    KTC_ASSIGN_OR_RETURN(experts->strategy,
                         map["strategy"].choice<Strategy>({{"uniform", Strategy::uniform},
                                                           {"frequency", Strategy::frequency},
                                                           {"front-loading", Strategy::front_loading},
                                                           {"random", Strategy::random},
                                                           {"auto", Strategy::auto_}}));
  }
  if (map.has("on_gpu")) {
    KTC_ASSIGN_OR_RETURN(experts->on_gpu, read_budget(map["on_gpu"]));
    experts->on_gpu_position = map["on_gpu"].position();
  }
  if (map.has("gpu")) KTC_RETURN_IF_ERROR(read_gpu_experts(map["gpu"], experts));
  if (map.has("statistics")) {
    KTC_RETURN_IF_ERROR(map.read("statistics", &experts->statistics));
    experts->statistics_position = map["statistics"].position();
    if (experts->statistics.empty())
      return map["statistics"].error({}, "a path", "ktc-run --record-experts writes such a file");
  }
  if (map.has("seed")) {
    KTC_ASSIGN_OR_RETURN(std::int64_t seed, map["seed"].integer(0, INT64_MAX));
    experts->seed = static_cast<std::uint64_t>(seed);
  }
  if (map.has("update")) {
    KTC_ASSIGN_OR_RETURN(Map update, map["update"].map({"every_tokens"}));
    KTC_RETURN_IF_ERROR(update.require("every_tokens").status());
    KTC_RETURN_IF_ERROR(read_count(update, "every_tokens", 1, kMaxTokens, &experts->update_every_tokens));
  }
  if (!experts->on_gpu.none() && experts->gpu_devices.empty())
    return map["on_gpu"].error("experts for GPUs without a GPU", "experts.gpu beside it",
                               "write gpu: {devices: [cuda:0]} under experts");
  if (experts->strategy == Strategy::frequency && experts->statistics.empty())
    return map["strategy"].error("the strategy needs counts", "experts.statistics beside it",
                                 "record them with ktc-run --record-experts stats.json, or take uniform");
  return Status();
}

Status read_defer(const Node& node, DeferPolicy* defer) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"max_per_token", "phases", "scope"}));
  defer->position = node.position();
  KTC_RETURN_IF_ERROR(read_count(map, "max_per_token", 0, 1024, &defer->max_per_token));
  if (map.has("phases")) {
    enum class Phase : std::uint8_t { decode, prefill };
    KTC_ASSIGN_OR_RETURN(std::vector<Node> items, map["phases"].sequence());
    if (items.empty())
      return map["phases"].error("no phase", "prefill, decode or both", "to turn deferral off write max_per_token: 0",
                                 "an empty list");
    defer->decode = defer->extend = false;
    for (const Node& item : items) {
      KTC_ASSIGN_OR_RETURN(Phase phase, item.choice<Phase>({{"prefill", Phase::prefill}, {"decode", Phase::decode}}));
      bool& flag = phase == Phase::decode ? defer->decode : defer->extend;
      if (flag) return item.error("phase named twice", "each phase once");
      flag = true;
    }
  }
  if (map.has("scope")) {
    KTC_ASSIGN_OR_RETURN(defer->scope,
                         map["scope"].choice<DeferScope>({{"cpu", DeferScope::cpu}, {"all", DeferScope::all}}));
  }
  return Status();
}

Status read_kv_cache(const Node& node, KvCachePolicy* kv) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"dtype", "tokens", "sequences", "page"}));
  kv->position = node.position();
  if (map.has("dtype")) {
    const auto word = map["dtype"].string();
    const auto format = word.ok() ? parse_format(*word) : std::nullopt;
    if (!format || !format_serves(*format, FormatKind::cache))
      return map["dtype"].error({}, "one of " + list_formats(FormatKind::cache));
    kv->dtype = *format;
  }
  KTC_RETURN_IF_ERROR(read_count(map, "tokens", 1, kMaxTokens, &kv->tokens));
  KTC_RETURN_IF_ERROR(read_count(map, "sequences", 1, kMaxSequences, &kv->sequences));
  if (map.has("page")) {
    KTC_RETURN_IF_ERROR(read_count(map, "page", 1, kMaxPage, &kv->page));
    if (!std::has_single_bit(kv->page))
      return map["page"].error({}, "a power of two",
                               fmt::format("take {} or {}", std::bit_floor(kv->page), std::bit_ceil(kv->page)));
  }
  return Status();
}

Status read_batch(const Node& node, BatchPolicy* batch) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"decode", "chunk", "stream_chunk", "stream_from", "stream_share"}));
  batch->position = node.position();
  if (map.has("decode")) {
    KTC_ASSIGN_OR_RETURN(std::vector<Node> items, map["decode"].sequence());
    if (items.empty())
      return map["decode"].error("no bucket", "at least one, such as [1, 2, 4, 8]", {}, "an empty list");
    batch->decode.clear();
    for (const Node& item : items) {
      KTC_ASSIGN_OR_RETURN(std::int64_t bucket, item.integer(1, kMaxSequences));
      if (!batch->decode.empty() && bucket <= batch->decode.back())
        return item.error("buckets must ascend", fmt::format("more than {}", batch->decode.back()));
      batch->decode.push_back(static_cast<std::uint32_t>(bucket));
    }
  }
  KTC_RETURN_IF_ERROR(read_count(map, "chunk", 1, kMaxChunk, &batch->chunk));
  KTC_RETURN_IF_ERROR(read_count(map, "stream_chunk", 1, kMaxChunk, &batch->stream_chunk));
  if (batch->stream_chunk != 0 && batch->stream_chunk < batch->chunk)
    return map["stream_chunk"].error("smaller than chunk", fmt::format("at least {}", batch->chunk),
                                     "remove stream_chunk to stream nothing");
  KTC_RETURN_IF_ERROR(read_count(map, "stream_from", 1, kMaxChunk, &batch->stream_from));
  if (map.has("stream_share")) {
    KTC_ASSIGN_OR_RETURN(batch->stream_share, map["stream_share"].boolean());
  }
  for (const char* key : {"stream_from", "stream_share"})
    if (map.has(key) && batch->stream_chunk == 0)
      return map[key].error("nothing is streamed", "a batch with stream_chunk", std::string("add stream_chunk or remove ") + key);
  if (batch->stream_from > batch->stream_chunk)
    return map["stream_from"].error("more tokens than a step has", fmt::format("at most {}", batch->stream_chunk),
                                    "remove stream_chunk to stream nothing");
  return Status();
}

Status read_limits(const Node& node, std::map<std::string, Limit>* limits) {
  KTC_ASSIGN_OR_RETURN(std::vector<yaml::Entry> entries, node.entries());
  for (const yaml::Entry& entry : entries) {
    if (!is_device_name(entry.key))
      return make_error(StatusCode::invalid_argument, {to_string(entry.position),
                                                       "unknown key in limits",
                                                       "'" + entry.key + "'",
                                                       "a device: cpu, cuda:0, cuda:1, ...",
                                                       {}});
    KTC_ASSIGN_OR_RETURN(std::uint64_t bytes, entry.value.bytes());
    if (bytes == 0)
      return entry.value.error("a limit of nothing", "more than 0B", "remove the line to use all of the device");
    (*limits)[entry.key] = {bytes, entry.value.position()};
  }
  return Status();
}

}  // namespace

std::string to_string(const ExpertBudget& budget) {
  switch (budget.kind) {
    case ExpertBudget::Kind::share: return fmt::format("{:.6g}%", budget.share * 100);
    case ExpertBudget::Kind::per_layer: return std::to_string(budget.count);
    case ExpertBudget::Kind::bytes: return format_bytes(budget.bytes);
  }
  return "?";
}

std::string_view to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::uniform: return "uniform";
    case Strategy::frequency: return "frequency";
    case Strategy::front_loading: return "front-loading";
    case Strategy::random: return "random";
    case Strategy::auto_: return "auto";
  }
  return "invalid";
}

Expected<Policy> parse_policy(std::string_view text, std::string_view name) {
  Policy policy;
  policy.file = std::filesystem::path(name).filename().string();
  KTC_ASSIGN_OR_RETURN(Node root, yaml::parse(text, policy.file));
  if (root.kind() == yaml::Kind::null)
    return make_error(StatusCode::invalid_argument, {policy.file, "empty policy", "nothing", "version: 1 and rules",
                                                     "start from one of the shipped policies (docs/policy.md)"});
  KTC_ASSIGN_OR_RETURN(Map map, root.map({"version", "rules", "experts", "defer", "kv_cache", "batch", "activation_group", "limits", "best-effort"}));
  KTC_ASSIGN_OR_RETURN(Node version, map.require("version"));
  const auto number = version.integer();
  if (!number.ok() || *number != 1) return version.error({}, "1", "this ktc reads version 1 only");
  KTC_ASSIGN_OR_RETURN(Node rules, map.require("rules"));
  KTC_RETURN_IF_ERROR(read_rules(rules, &policy));
  if (map.has("experts")) KTC_RETURN_IF_ERROR(read_experts(map["experts"], &policy.experts));
  if (map.has("defer")) KTC_RETURN_IF_ERROR(read_defer(map["defer"], &policy.defer));
  if (map.has("kv_cache")) KTC_RETURN_IF_ERROR(read_kv_cache(map["kv_cache"], &policy.kv_cache));
  if (map.has("batch")) KTC_RETURN_IF_ERROR(read_batch(map["batch"], &policy.batch));
  if (map.has("activation_group")) {
    KTC_ASSIGN_OR_RETURN(policy.activation_group,
                         map["activation_group"].choice<std::uint32_t>({{"64", 64}, {"128", 128}, {"row", 0}}));
  }
  if (map.has("limits")) KTC_RETURN_IF_ERROR(read_limits(map["limits"], &policy.limits));
  KTC_RETURN_IF_ERROR(map.read("best-effort", &policy.best_effort));
  return policy;
}

Expected<Policy> read_policy(const std::filesystem::path& path) {
  KTC_ASSIGN_OR_RETURN(std::string text, read_text(path, "policy"));
  KTC_ASSIGN_OR_RETURN(Policy policy, parse_policy(text, path.filename().string()));
  ExpertsPolicy& experts = policy.experts;
  if (experts.statistics.empty()) return policy;
  auto counts = read_expert_statistics(path.parent_path() / experts.statistics);
  if (!counts.ok()) return counts.status().with_context(to_string(experts.statistics_position));
  experts.counts = std::move(*counts);
  return policy;
}

}  // namespace ktc::placement
