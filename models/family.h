// A family declaration (models/families/*.yaml) as read: names resolved, expressions parsed, everything checked that
// can be checked without a checkpoint. docs/models.md is the schema.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/expression.h"
#include "models/model_desc.h"
#include "models/module_schema.h"
#include "models/yaml_reader.h"
#include "runtime/base/status.h"

namespace ktc::models {

enum class ValueType : std::uint8_t { integer, boolean, number, integers, texts };
std::string_view to_string(ValueType type);  // "an integer", "true or false", ...

// A named value from config.json.
struct ConfigValue {
  std::string name;
  std::vector<std::string> keys;  // accepted spellings
  ValueType type = ValueType::integer;
  std::optional<Expression> fallback;  // when the config is silent; may use values declared before
  bool optional = false;               // may stay absent: has(name) tells
  std::int64_t least = 0;              // of an integer
  std::int64_t most = 0;
  yaml::Position position;
};

// A config key that changes the mathematics and of which only some values are served.
struct RestrictedKey {
  std::string key;
  std::vector<Value> supported;  // empty: none, the key must be absent or null
  yaml::Position position;
};

struct DerivedValue {
  std::string name;
  Expression value;
  bool per_layer = false;  // mentions `layer`, directly or through another derived value
};

struct Requirement {
  Expression that;
  std::string say;
};

struct RopeKeys {
  std::vector<std::string> parameters;  // one object with everything (new form); wins
  std::vector<std::string> scaling;     // object without the base (old form)
  std::vector<std::string> theta;       // the base (old form)
  std::vector<std::string> types;       // served scaling types
  yaml::Position position;
};

struct RopeSpec {
  RopeStyle style = RopeStyle::half;
  Expression dim;
  bool temperature_in_softmax = false;  // DeepSeek: m(factor, mscale_all_dim)^2 multiplies the softmax scale
};

// One tensor of a slot: its name under the module, its shape.
struct TensorSpec {
  std::string name;  // "{expert}" stands for the number of the batch entry
  std::vector<Expression> shape;
  yaml::Position position;
};

// One way in which a checkpoint may store a slot: tensors stacked by rows, once or once per batch entry.
struct StorageSpec {
  std::optional<Expression> batch;  // number of entries; absent: the tensors are the whole slot
  std::vector<TensorSpec> stacked;
};

struct SlotSpec {
  std::string role;
  std::vector<StorageSpec> storages;  // alternatives; which one is decided by the tensors that exist
  std::optional<Expression> when;
  yaml::Position position;
};

struct TiedSpec {
  std::string flag;    // a boolean value
  std::string module;  // whose weight it is when tied
};

struct ModuleSpec {
  std::string name;  // under the layer's prefix
  const ModuleSchema* schema = nullptr;
  std::map<std::string, Expression> attributes;
  std::optional<RopeSpec> rope;
  std::optional<TiedSpec> tied;  // Head
  std::vector<SlotSpec> slots;
  std::optional<Expression> when;
  yaml::Position position;
};

// Tensors that are left out on purpose. Exactly one of the three conditions is set.
struct SkipSpec {
  std::string reason;
  std::vector<std::string> prefixes;
  std::vector<std::string> suffixes;
  bool layers_beyond = false;  // a path element `layers.N` with N at or above the number of layers
  std::string announced;       // the value that says how many there are; empty: the config does not say
  std::vector<std::string>
      markers;  // a layer that is not announced is skipped only if one of its tensors has such a path element
};

struct Family {
  std::string name;
  std::string file;  // "qwen3_moe.yaml"
  std::vector<std::string> architectures;
  std::vector<ConfigValue> values;
  std::vector<RestrictedKey> restricted;
  std::vector<std::string> ignored;  // without effect on the mathematics
  RopeKeys rope;
  std::vector<DerivedValue> derived;
  std::vector<Requirement> requirements;
  std::vector<ModuleSpec> before_layers, layer_modules, after_layers;
  std::string layer_prefix;  // "model.layers.{layer}"
  std::vector<SkipSpec> skips;

  const ConfigValue* find_value(std::string_view name) const;
};

// `name` is the file's name in positions. Errors carry file:line:column.
Expected<Family> parse_family(std::string_view text, std::string_view name);

// The family whose `architectures` lists `architecture`. All files of the folder are read and must be sound.
Expected<Family> find_family(const std::filesystem::path& folder, const std::string& architecture,
                             const std::string& config_file);

}  // namespace ktc::models
