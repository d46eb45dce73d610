// Internal to family.cpp and family_modules.cpp: the state of reading one family file.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "models/family.h"

namespace ktc::models {

class FamilyParser {
 public:
  explicit FamilyParser(Family* family) : family_(*family) {}
  Status parse(const yaml::Node& root);

 private:
  Status parse_config(const yaml::Node& node);
  Status parse_value(const yaml::Entry& entry);
  Status parse_restricted(const yaml::Node& node);
  Status parse_rope_keys(const yaml::Node& node);
  Status parse_derived(const yaml::Node& node);
  Status parse_requirements(const yaml::Node& node);
  Status check_keys_once() const;

  // family_modules.cpp
  Status parse_modules(const yaml::Node& node, bool in_layer, std::vector<ModuleSpec>* modules);
  Expected<ModuleSpec> parse_module(const yaml::Node& node, bool in_layer);
  Status parse_attributes(const yaml::Node& node, const yaml::Node& module, ModuleSpec* spec);
  Status parse_rope_spec(const yaml::Node& node, ModuleSpec* spec);
  Status parse_slots(const yaml::Node& node, ModuleSpec* spec);
  Expected<SlotSpec> parse_slot(const yaml::Entry& entry);
  Expected<StorageSpec> parse_storage(const yaml::Node& node, std::initializer_list<std::string_view> more_keys);
  Expected<TensorSpec> parse_tensor(const yaml::Node& name, const yaml::Node& shape, bool per_expert);
  Status parse_skips(const yaml::Node& node);

  // An expression whose every name is declared; `layer` counts where `in_layer` says so.
  Expected<Expression> expression(const yaml::Node& node, bool in_layer);
  Status declare(const std::string& name, const yaml::Position& position);

  Family& family_;
  std::set<std::string, std::less<>> names_;      // values and derived values declared so far
  std::set<std::string, std::less<>> per_layer_;  // derived values that depend on `layer`
  bool in_layer_ = false;                         // of the module being read
};

}  // namespace ktc::models
