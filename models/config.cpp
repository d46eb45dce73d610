#include "models/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/nearest.h"

namespace ktc::models {
namespace {

std::optional<Value> to_value(const Json& json, ValueType type) {
  switch (type) {
    case ValueType::integer:
      if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
      if (json.is_number_integer()) return Value{json.get<std::int64_t>()};
      return std::nullopt;
    case ValueType::boolean:
      if (json.is_boolean()) return Value{json.get<bool>()};
      return std::nullopt;
    case ValueType::number:
      if (json.is_number() && std::isfinite(json.get<double>())) return Value{json.get<double>()};
      return std::nullopt;
    case ValueType::integers:
    case ValueType::texts: {
      if (!json.is_array()) return std::nullopt;
      Value::List list;
      for (const Json& item : json) {
        if (type == ValueType::texts && !item.is_string()) return std::nullopt;
        auto value = type == ValueType::texts ? Value{item.get<std::string>()} : to_value(item, ValueType::integer);
        if (!value) return std::nullopt;
        list.push_back(*std::move(value));
      }
      return Value{std::move(list)};
    }
  }
  return std::nullopt;
}

bool equals(const Json& json, const Value& value) {
  if (const auto* boolean = value.get<bool>()) return json.is_boolean() && json.get<bool>() == *boolean;
  if (const auto* text = value.get<std::string>())
    return json.is_string() && json.get_ref<const std::string&>() == *text;
  if (const auto* integer = value.get<std::int64_t>()) return json.is_number() && json == Json(*integer);
  if (const auto* real = value.get<double>()) return json.is_number() && json == Json(*real);
  return false;
}

std::string list_values(const std::vector<Value>& values) {
  std::string list;
  for (const Value& value : values) {
    const auto* text = value.get<std::string>();
    list += (list.empty() ? "" : ", ") + (text ? '"' + *text + '"' : to_string(value));
  }
  return values.size() == 1 ? list : "one of " + list;
}

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

const Value* ModelConfig::find(std::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

std::string ModelConfig::explain_absence(std::string_view name) const {
  if (const ConfigValue* value = family_->find_value(name))
    return fmt::format("{} has no '{}', which is needed here", file_, fmt::join(value->keys, "' or '"));
  return fmt::format("'{}' has no value here", name);
}

std::int64_t ModelConfig::integer(std::string_view name) const {
  const Value* value = find(name);
  const auto* integer = value ? value->get<std::int64_t>() : nullptr;
  return integer ? *integer : 0;
}

std::optional<bool> ModelConfig::boolean(std::string_view name) const {
  const Value* value = find(name);
  const auto* boolean = value ? value->get<bool>() : nullptr;
  return boolean ? std::optional<bool>(*boolean) : std::nullopt;
}

std::string ModelConfig::key_of(std::string_view name) const {
  if (const auto it = spelling_.find(name); it != spelling_.end()) return it->second;
  const ConfigValue* value = family_->find_value(name);
  return value ? value->keys.front() : std::string(name);
}

Status ModelConfig::enter_layer(std::int64_t layer) {
  leave_layer();
  values_["layer"] = Value{layer};
  for (const DerivedValue& derived : family_->derived) {
    if (!derived.per_layer) continue;
    KTC_ASSIGN_OR_RETURN(values_[derived.name], derived.value.evaluate(*this));
  }
  return Status();
}

void ModelConfig::leave_layer() {
  values_.erase("layer");
  for (const DerivedValue& derived : family_->derived)
    if (derived.per_layer) values_.erase(derived.name);
}

Status ModelConfig::read_value(const ConfigValue& value, const Json& json) {
  const Json* given = nullptr;
  std::string spelling;
  for (const std::string& key : value.keys) {
    const Json* candidate = find_key(json, key);
    if (!candidate) continue;
    if (given && *given != *candidate)
      return make_error(StatusCode::invalid_argument,
                        {file_, fmt::format("'{}' and '{}' are two spellings of one value", spelling, key),
                         show(*given) + " and " + show(*candidate), "equal values", "remove the wrong one"});
    if (!given) given = candidate, spelling = key;
  }
  auto refuse = [&](std::string found, std::string expected) {
    return make_error(StatusCode::invalid_argument, {file_, spelling, std::move(found), std::move(expected), {}});
  };
  if (!given) {
    if (value.optional) return Status();
    if (!value.fallback)
      return make_error(StatusCode::invalid_argument, {file_,
                                                       fmt::format("'{}' is missing", fmt::join(value.keys, "' or '")),
                                                       {},
                                                       std::string(to_string(value.type)),
                                                       fmt::format("family {} needs it", family_->name)});
    KTC_ASSIGN_OR_RETURN(Value fallback, value.fallback->evaluate(*this));
    if (value.type == ValueType::number && fallback.get<std::int64_t>())
      fallback = Value{static_cast<double>(*fallback.get<std::int64_t>())};
    values_[value.name] = std::move(fallback);
    return Status();
  }
  std::optional<Value> read = to_value(*given, value.type);
  if (!read) return refuse(show(*given), std::string(to_string(value.type)));
  if (const auto* integer = read->get<std::int64_t>(); integer && (*integer < value.least || *integer > value.most))
    return refuse(std::to_string(*integer), fmt::format("an integer from {} to {}", value.least, value.most));
  values_[value.name] = *std::move(read);
  spelling_[value.name] = spelling;
  return Status();
}

Status ModelConfig::check_restricted(const Json& json) const {
  for (const RestrictedKey& key : family_->restricted) {
    const Json* given = find_key(json, key.key);
    if (!given) continue;
    auto served = [&](const Json& item) {
      return std::any_of(key.supported.begin(), key.supported.end(),
                         [&](const Value& value) { return equals(item, value); });
    };
    // a quantised checkpoint is told by its method; what each tensor is stored in, the tensor says itself
    if (given->is_object() && given->contains("quant_method")) given = &(*given)["quant_method"];
    bool all = given->is_array() && !key.supported.empty() ? std::all_of(given->begin(), given->end(), served)
                                                           : served(*given);
    if (all) continue;
    return make_error(
        StatusCode::unsupported,
        {file_, key.key, show(*given), key.supported.empty() ? "no such key, or null" : list_values(key.supported),
         fmt::format("family {} serves nothing else", family_->name)});
  }
  return Status();
}

void ModelConfig::report_unknown(const Json& json, std::vector<std::string>* warnings) const {
  std::vector<std::string> known = family_->ignored;
  known.emplace_back("architectures");
  for (const ConfigValue& value : family_->values) known.insert(known.end(), value.keys.begin(), value.keys.end());
  for (const RestrictedKey& key : family_->restricted) known.push_back(key.key);
  for (const auto* keys : {&family_->rope.parameters, &family_->rope.scaling, &family_->rope.theta})
    known.insert(known.end(), keys->begin(), keys->end());
  known.emplace_back("partial_rotary_factor");  // checked with the rope keys
  for (const auto& [key, value] : json.items()) {
    if (contains(known, key) || value.is_null()) continue;
    const std::string nearest = nearest_name(key, known);
    warnings->push_back(fmt::format("{}: unknown key {} = {} is not used by family {}{}", file_, show(Json(key)),
                                    show(value), family_->name,
                                    nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
  }
}

Expected<ModelConfig> read_config(const Family& family, const Json& json, const std::string& file,
                                  std::vector<std::string>* warnings) {
  ModelConfig config;
  config.family_ = &family;
  config.file_ = file;
  if (!json.is_object()) return make_error(StatusCode::invalid_argument, {file, {}, show(json), "an object", {}});
  KTC_RETURN_IF_ERROR(config.check_restricted(json));
  for (const ConfigValue& value : family.values) KTC_RETURN_IF_ERROR(config.read_value(value, json));
  config.report_unknown(json, warnings);
  for (const DerivedValue& derived : family.derived) {
    if (derived.per_layer) continue;
    KTC_ASSIGN_OR_RETURN(config.values_[derived.name], derived.value.evaluate(config));
  }
  for (const Requirement& requirement : family.requirements) {
    KTC_ASSIGN_OR_RETURN(bool holds, requirement.that.evaluate_boolean(config));
    if (holds) continue;
    std::string found;
    for (const auto& name : requirement.that.names())
      if (const Value* value = config.find(name.name);
          value && found.find(config.key_of(name.name) + " = ") == std::string::npos)
        found += (found.empty() ? "" : ", ") + config.key_of(name.name) + " = " + to_string(*value);
    return make_error(StatusCode::invalid_argument, {file, requirement.say, found, {}, {}});
  }
  const auto max_positions = static_cast<double>(config.integer("max_positions"));
  KTC_ASSIGN_OR_RETURN(config.rope_, read_rope_config(json, family.rope, max_positions, file, warnings));
  return config;
}

}  // namespace ktc::models
