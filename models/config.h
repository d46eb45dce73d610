// config.json seen through a family: every key is a named value, restricted, ignored on purpose, or reported.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/family.h"
#include "models/json_reader.h"
#include "models/rope.h"
#include "runtime/base/status.h"

namespace ktc::models {

// Values by name: those of the config, then derived ones; `layer` and per-layer derived values while a layer is
// entered.
class ModelConfig : public Scope {
 public:
  const Value* find(std::string_view name) const override;
  std::string explain_absence(std::string_view name) const override;

  // Of a value that every family declares (hidden, vocab, layers, max_positions).
  std::int64_t integer(std::string_view name) const;
  // nullopt: absent or not boolean.
  std::optional<bool> boolean(std::string_view name) const;
  // The spelling that the config uses for a value, else the family's first: "num_local_experts".
  std::string key_of(std::string_view name) const;

  // Evaluates the per-layer derived values for this layer.
  Status enter_layer(std::int64_t layer);
  void leave_layer();

  const Family& family() const { return *family_; }
  const std::string& file() const { return file_; }
  const RopeConfig& rope() const { return rope_; }

 private:
  friend Expected<ModelConfig> read_config(const Family& family, const Json& json, const std::string& file,
                                           std::vector<std::string>* warnings);
  Status read_value(const ConfigValue& value, const Json& json);
  Status check_restricted(const Json& json) const;
  void report_unknown(const Json& json, std::vector<std::string>* warnings) const;

  const Family* family_ = nullptr;  // outlives this object
  std::string file_;
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, std::string, std::less<>> spelling_;
  RopeConfig rope_;
};

// `family` must outlive the result. `file` stands for config.json in messages.
// Null equals absent. Two spellings of one value must agree. An unknown key is a warning; a key whose value this family
// does not serve, a missing value and a broken requirement are errors.
Expected<ModelConfig> read_config(const Family& family, const Json& json, const std::string& file,
                                  std::vector<std::string>* warnings);

}  // namespace ktc::models
