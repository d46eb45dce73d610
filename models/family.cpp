#include "models/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "models/family_parser.h"
#include "models/nearest.h"

namespace ktc::models {

constexpr std::int64_t kMostInteger = INT32_MAX;  // dimensions are 32-bit in ModelDesc
// What ModelDesc and the reader themselves need from every family.
constexpr std::string_view kNeededValues[] = {"vocab", "hidden", "layers", "max_positions"};

std::string_view to_string(ValueType type) {
  switch (type) {
    case ValueType::integer: return "an integer";
    case ValueType::boolean: return "true or false";
    case ValueType::number: return "a number";
    case ValueType::integers: return "a list of integers";
    case ValueType::texts: return "a list of texts";
  }
  return "a value";
}

const ConfigValue* Family::find_value(std::string_view value) const {
  for (const ConfigValue& candidate : values)
    if (candidate.name == value) return &candidate;
  return nullptr;
}

namespace {

// A literal of the family file, as the config would have it.
Expected<Value> literal(const yaml::Node& node) {
  if (node.is_sequence()) {
    KTC_ASSIGN_OR_RETURN(auto items, node.sequence());
    Value::List list;
    for (const yaml::Node& item : items) {
      KTC_ASSIGN_OR_RETURN(Value value, literal(item));
      list.push_back(std::move(value));
    }
    return Value{std::move(list)};
  }
  if (auto boolean = node.boolean(); boolean.ok()) return Value{*boolean};
  if (auto integer = node.integer(); integer.ok()) return Value{*integer};
  if (auto number = node.number(); number.ok()) return Value{*number};
  KTC_ASSIGN_OR_RETURN(std::string text, node.string());
  return Value{std::move(text)};
}

bool is_identifier(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

Status FamilyParser::declare(const std::string& name, const yaml::Position& position) {
  auto refuse = [&](std::string expected) {
    return make_error(StatusCode::invalid_argument,
                      {yaml::to_string(position), "name of a value", "'" + name + "'", std::move(expected), {}});
  };
  if (!is_identifier(name)) return refuse("letters, digits and _");
  for (std::string_view reserved :
       {"layer", "has", "first_of", "and", "or", "not", "in", "if", "else", "true", "false"})
    if (name == reserved) return refuse("a word that the expression language does not use");
  if (!names_.insert(name).second) return refuse("a name that is not declared yet");
  return Status();
}

Expected<Expression> FamilyParser::expression(const yaml::Node& node, bool in_layer) {
  KTC_ASSIGN_OR_RETURN(Expression parsed, Expression::parse(node));
  for (const auto& [name, offset] : parsed.names()) {
    const bool per_layer = name == "layer" || per_layer_.contains(name);
    if (per_layer && !in_layer)
      return make_error(
          StatusCode::invalid_argument,
          {yaml::to_string(parsed.position(offset)), "'" + name + "' has a value only within a layer", {}, {}, {}});
    if (name == "layer" || names_.contains(name)) continue;
    const std::string nearest = nearest_name(name, std::vector<std::string>(names_.begin(), names_.end()));
    return make_error(StatusCode::invalid_argument,
                      {yaml::to_string(parsed.position(offset)), "unknown name", "'" + name + "'",
                       "a value declared above", nearest.empty() ? "" : "did you mean '" + nearest + "'?"});
  }
  return parsed;
}

Status FamilyParser::parse_value(const yaml::Entry& entry) {
  KTC_RETURN_IF_ERROR(declare(entry.key, entry.position));
  KTC_ASSIGN_OR_RETURN(yaml::Map map, entry.value.map({"keys", "type", "least", "most", "default", "optional"}));
  ConfigValue value;
  value.name = entry.key;
  value.position = entry.position;
  KTC_RETURN_IF_ERROR(map.require("keys", &value.keys));
  if (value.keys.empty()) return map["keys"].error({}, "one spelling or more", {}, "an empty list");
  KTC_ASSIGN_OR_RETURN(yaml::Node type, map.require("type"));
  KTC_ASSIGN_OR_RETURN(value.type, type.choice<ValueType>({{"integer", ValueType::integer},
                                                           {"boolean", ValueType::boolean},
                                                           {"number", ValueType::number},
                                                           {"integers", ValueType::integers},
                                                           {"texts", ValueType::texts}}));
  value.most = kMostInteger;
  for (std::string_view bound : {"least", "most"}) {
    if (!map.has(bound)) continue;
    if (value.type != ValueType::integer) return map[bound].error({}, "no bound: only an integer has one");
    KTC_ASSIGN_OR_RETURN((bound == "least" ? value.least : value.most),
                         map[bound].integer(-kMostInteger, kMostInteger));
  }
  KTC_RETURN_IF_ERROR(map.read("optional", &value.optional));
  if (map.has("default")) {
    const yaml::Node fallback = map["default"];
    if (value.optional) return fallback.error({}, "either a default or `optional: true`");
    if (fallback.is_sequence()) {
      KTC_ASSIGN_OR_RETURN(Value list, literal(fallback));
      value.fallback = Expression::constant(std::move(list), fallback.position());
    } else {
      names_.erase(entry.key);  // a default may not use the value itself
      KTC_ASSIGN_OR_RETURN(value.fallback, expression(fallback, false));
      names_.insert(entry.key);
    }
  }
  family_.values.push_back(std::move(value));
  return Status();
}

Status FamilyParser::parse_restricted(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(auto entries, node.entries());
  for (const yaml::Entry& entry : entries) {
    RestrictedKey key{entry.key, {}, entry.position};
    KTC_ASSIGN_OR_RETURN(auto items, entry.value.sequence());
    for (const yaml::Node& item : items) {
      KTC_ASSIGN_OR_RETURN(Value value, literal(item));
      key.supported.push_back(std::move(value));
    }
    family_.restricted.push_back(std::move(key));
  }
  return Status();
}

Status FamilyParser::parse_rope_keys(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(yaml::Map map, node.map({"parameters", "scaling", "theta", "types"}));
  RopeKeys& rope = family_.rope;
  rope.position = node.position();
  KTC_RETURN_IF_ERROR(map.require("parameters", &rope.parameters));
  KTC_RETURN_IF_ERROR(map.require("scaling", &rope.scaling));
  KTC_RETURN_IF_ERROR(map.require("theta", &rope.theta));
  KTC_ASSIGN_OR_RETURN(yaml::Node types, map.require("types"));
  KTC_ASSIGN_OR_RETURN(auto items, types.sequence());
  for (const yaml::Node& item : items) {
    KTC_ASSIGN_OR_RETURN(auto type,
                         item.choice<std::string>(
                             {{"default", "default"}, {"linear", "linear"}, {"yarn", "yarn"}, {"llama3", "llama3"}}));
    rope.types.push_back(std::move(type));
  }
  return Status();
}

// A key may be listed once; a value's key may also be restricted.
Status FamilyParser::check_keys_once() const {
  std::set<std::string> seen;
  auto add = [&](const std::string& key) -> Status {
    if (seen.insert(key).second) return Status();
    return make_error(StatusCode::invalid_argument,
                      {family_.file, "config key '" + key + "' is listed twice", {}, {}, "keep one of the two"});
  };
  for (const ConfigValue& value : family_.values)
    for (const std::string& key : value.keys) KTC_RETURN_IF_ERROR(add(key));
  for (const auto* keys : {&family_.rope.parameters, &family_.rope.scaling, &family_.rope.theta, &family_.ignored})
    for (const std::string& key : *keys) KTC_RETURN_IF_ERROR(add(key));
  for (const RestrictedKey& key : family_.restricted)
    if (std::find(family_.ignored.begin(), family_.ignored.end(), key.key) != family_.ignored.end())
      KTC_RETURN_IF_ERROR(add(key.key));
  return Status();
}

Status FamilyParser::parse_config(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(yaml::Map map, node.map({"values", "restricted", "ignored", "rope"}));
  KTC_ASSIGN_OR_RETURN(yaml::Node values, map.require("values"));
  KTC_ASSIGN_OR_RETURN(auto entries, values.entries());
  for (const yaml::Entry& entry : entries) KTC_RETURN_IF_ERROR(parse_value(entry));
  for (std::string_view needed : kNeededValues) {
    const ConfigValue* value = family_.find_value(needed);
    if (!value || value->type != ValueType::integer || value->optional)
      return values.error({}, fmt::format("an integer value '{}', which every family has", needed), {}, "none");
  }
  if (map.has("restricted")) KTC_RETURN_IF_ERROR(parse_restricted(map["restricted"]));
  KTC_RETURN_IF_ERROR(map.read("ignored", &family_.ignored));
  KTC_ASSIGN_OR_RETURN(yaml::Node rope, map.require("rope"));
  KTC_RETURN_IF_ERROR(parse_rope_keys(rope));
  return check_keys_once();
}

Status FamilyParser::parse_derived(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(auto entries, node.entries());
  for (const yaml::Entry& entry : entries) {
    KTC_ASSIGN_OR_RETURN(Expression value, expression(entry.value, true));
    bool per_layer = false;
    for (const auto& name : value.names())
      per_layer = per_layer || name.name == "layer" || per_layer_.contains(name.name);
    KTC_RETURN_IF_ERROR(declare(entry.key, entry.position));
    if (per_layer) per_layer_.insert(entry.key);
    family_.derived.push_back({entry.key, std::move(value), per_layer});
  }
  return Status();
}

Status FamilyParser::parse_requirements(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(auto items, node.sequence());
  for (const yaml::Node& item : items) {
    KTC_ASSIGN_OR_RETURN(yaml::Map map, item.map({"that", "say"}));
    KTC_ASSIGN_OR_RETURN(yaml::Node that, map.require("that"));
    KTC_ASSIGN_OR_RETURN(Expression condition, expression(that, false));
    std::string say;
    KTC_RETURN_IF_ERROR(map.require("say", &say));
    family_.requirements.push_back({std::move(condition), std::move(say)});
  }
  return Status();
}

Status FamilyParser::parse(const yaml::Node& root) {
  KTC_ASSIGN_OR_RETURN(yaml::Map map,
                       root.map({"version", "family", "architectures", "config", "derived", "require", "before_layers",
                                 "layer_prefix", "layer_modules", "after_layers", "skip"}));
  KTC_ASSIGN_OR_RETURN(yaml::Node version, map.require("version"));
  KTC_ASSIGN_OR_RETURN(std::int64_t number, version.integer());
  if (number != 1) return version.error({}, "1, the version that this build reads");
  KTC_RETURN_IF_ERROR(map.require("family", &family_.name));
  KTC_RETURN_IF_ERROR(map.require("architectures", &family_.architectures));
  KTC_ASSIGN_OR_RETURN(yaml::Node config, map.require("config"));
  KTC_RETURN_IF_ERROR(parse_config(config));
  if (map.has("derived")) KTC_RETURN_IF_ERROR(parse_derived(map["derived"]));
  if (map.has("require")) KTC_RETURN_IF_ERROR(parse_requirements(map["require"]));
  KTC_RETURN_IF_ERROR(map.require("layer_prefix", &family_.layer_prefix));
  if (family_.layer_prefix.find("{layer}") == std::string::npos)
    return map["layer_prefix"].error({}, "a name with {layer}, such as model.layers.{layer}");
  KTC_ASSIGN_OR_RETURN(yaml::Node before, map.require("before_layers"));
  KTC_RETURN_IF_ERROR(parse_modules(before, false, &family_.before_layers));
  KTC_ASSIGN_OR_RETURN(yaml::Node within, map.require("layer_modules"));
  KTC_RETURN_IF_ERROR(parse_modules(within, true, &family_.layer_modules));
  KTC_ASSIGN_OR_RETURN(yaml::Node after, map.require("after_layers"));
  KTC_RETURN_IF_ERROR(parse_modules(after, false, &family_.after_layers));
  if (map.has("skip")) KTC_RETURN_IF_ERROR(parse_skips(map["skip"]));
  return Status();
}

Expected<Family> parse_family(std::string_view text, std::string_view name) {
  KTC_ASSIGN_OR_RETURN(yaml::Node root, yaml::parse(text, name));
  Family family;
  family.file = name;
  KTC_RETURN_IF_ERROR(FamilyParser(&family).parse(root));
  return family;
}

Expected<Family> find_family(const std::filesystem::path& folder, const std::string& architecture,
                             const std::string& config_file) {
  std::error_code failure;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator it(folder, failure), end; !failure && it != end; it.increment(failure))
    if (it->path().extension() == ".yaml") files.push_back(it->path());
  if (failure || files.empty())
    return make_error(StatusCode::not_found,
                      {folder.string(), "no family declarations", {}, "a folder with *.yaml files", {}});
  std::sort(files.begin(), files.end());
  std::optional<Family> found;
  std::vector<std::string> known;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    if (!stream) return make_error(StatusCode::io_error, {file.string(), "cannot be read", {}, {}, {}});
    KTC_ASSIGN_OR_RETURN(Family family, parse_family(text.str(), file.filename().string()));
    for (const std::string& served : family.architectures) {
      if (std::find(known.begin(), known.end(), served) != known.end())
        return make_error(StatusCode::invalid_argument, {family.file,
                                                         "architecture '" + served + "' is declared by two families",
                                                         {},
                                                         {},
                                                         "remove one of the two"});
      known.push_back(served);
    }
    const auto& served = family.architectures;
    if (std::find(served.begin(), served.end(), architecture) != served.end()) found = std::move(family);
  }
  if (found) return *std::move(found);
  std::sort(known.begin(), known.end());
  return make_error(StatusCode::unsupported,
                    {config_file, "architectures", "'" + architecture + "'",
                     "one of " + fmt::format("{}", fmt::join(known, ", ")), "docs/models.md says how to add a family"});
}

}  // namespace ktc::models
