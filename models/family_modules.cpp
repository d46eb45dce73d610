// The module list of a family file: modules, their attributes, slots, tensors; and the skips.
#include <fmt/format.h>

#include <algorithm>

#include "models/family_parser.h"
#include "models/nearest.h"

namespace ktc::models {

Status FamilyParser::parse_modules(const yaml::Node& node, bool in_layer, std::vector<ModuleSpec>* modules) {
  KTC_ASSIGN_OR_RETURN(auto items, node.sequence());
  in_layer_ = in_layer;
  for (const yaml::Node& item : items) {
    KTC_ASSIGN_OR_RETURN(ModuleSpec spec, parse_module(item, in_layer));
    modules->push_back(std::move(spec));
  }
  return Status();
}

Expected<ModuleSpec> FamilyParser::parse_module(const yaml::Node& node, bool in_layer) {
  KTC_ASSIGN_OR_RETURN(yaml::Map map,
                       node.map({"name", "when", "class", "kind", "attributes", "rope", "tied", "slots"}));
  ModuleSpec spec;
  spec.position = node.position();
  KTC_RETURN_IF_ERROR(map.require("name", &spec.name));
  KTC_ASSIGN_OR_RETURN(yaml::Node class_node, map.require("class"));
  KTC_ASSIGN_OR_RETURN(std::string class_name, class_node.string());
  const auto cls = parse_module_class(class_name);
  const std::vector<std::string> kinds = cls ? module_kinds(*cls) : std::vector<std::string>();
  if (kinds.empty())
    return class_node.error({},
                            "one of Embedding, Attention, DenseMlp, SharedExperts, Router, RoutedExperts, Norm, Head");
  std::string kind;
  KTC_RETURN_IF_ERROR(map.read("kind", &kind));
  spec.schema = find_module_schema(*cls, kind);
  if (!spec.schema) {
    if (!map.has("kind"))
      return node.error("a module of class " + class_name, fmt::format("one of {}", fmt::join(kinds, ", ")), {},
                        "no kind");
    return map["kind"].error({}, kinds.front().empty() ? "no kind" : fmt::format("one of {}", fmt::join(kinds, ", ")));
  }
  if (map.has("when")) {
    KTC_ASSIGN_OR_RETURN(spec.when, expression(map["when"], in_layer));
  }
  KTC_RETURN_IF_ERROR(parse_attributes(map["attributes"], node, &spec));
  if (spec.schema->has_rope != map.has("rope"))
    return node.error("a module of class " + class_name, spec.schema->has_rope ? "a map 'rope'" : "no 'rope'", {},
                      spec.schema->has_rope ? "none" : "one");
  if (map.has("rope")) KTC_RETURN_IF_ERROR(parse_rope_spec(map["rope"], &spec));
  if (map.has("tied")) {
    if (*cls != ModuleClass::Head) return map["tied"].error({}, "it on a Head only");
    KTC_ASSIGN_OR_RETURN(yaml::Map tied, map["tied"].map({"flag", "to"}));
    TiedSpec target;
    KTC_RETURN_IF_ERROR(tied.require("flag", &target.flag));
    KTC_RETURN_IF_ERROR(tied.require("to", &target.module));
    const ConfigValue* flag = family_.find_value(target.flag);
    if (!flag || flag->type != ValueType::boolean) return tied["flag"].error({}, "the name of a boolean value");
    const auto& before = family_.before_layers;
    if (std::none_of(before.begin(), before.end(), [&](const ModuleSpec& m) {
          return m.name == target.module && m.schema->cls == ModuleClass::Embedding;
        }))
      return tied["to"].error({}, "the name of an Embedding of before_layers");
    spec.tied = std::move(target);
  }
  KTC_ASSIGN_OR_RETURN(yaml::Node slots, map.require("slots"));
  KTC_RETURN_IF_ERROR(parse_slots(slots, &spec));
  return spec;
}

Status FamilyParser::parse_attributes(const yaml::Node& node, const yaml::Node& module, ModuleSpec* spec) {
  std::vector<std::string> names;
  for (const AttributeSchema& attribute : spec->schema->attributes) names.emplace_back(attribute.name);
  if (names.empty()) {
    if (node.kind() != yaml::Kind::null) return node.error({}, "no attributes");
    return Status();
  }
  if (node.kind() == yaml::Kind::null)
    return module.error("attributes", fmt::format("a map with {}", fmt::join(names, ", ")), {}, "none");
  KTC_ASSIGN_OR_RETURN(yaml::Map map, node.map(names));
  for (const AttributeSchema& attribute : spec->schema->attributes) {
    if (!attribute.required && !map.has(attribute.name)) continue;
    KTC_ASSIGN_OR_RETURN(yaml::Node value, map.require(attribute.name));
    KTC_ASSIGN_OR_RETURN(Expression parsed, expression(value, in_layer_));
    spec->attributes.emplace(attribute.name, std::move(parsed));
  }
  return Status();
}

Status FamilyParser::parse_rope_spec(const yaml::Node& node, ModuleSpec* spec) {
  KTC_ASSIGN_OR_RETURN(yaml::Map map, node.map({"style", "dim", "temperature"}));
  KTC_ASSIGN_OR_RETURN(yaml::Node style, map.require("style"));
  KTC_ASSIGN_OR_RETURN(yaml::Node dim, map.require("dim"));
  RopeSpec rope;
  KTC_ASSIGN_OR_RETURN(rope.style,
                       style.choice<RopeStyle>({{"half", RopeStyle::half}, {"interleaved", RopeStyle::interleaved}}));
  KTC_ASSIGN_OR_RETURN(rope.dim, expression(dim, in_layer_));
  if (map.has("temperature")) {
    KTC_ASSIGN_OR_RETURN(rope.temperature_in_softmax,
                         map["temperature"].choice<bool>({{"rotation", false}, {"softmax", true}}));
  }
  spec->rope = std::move(rope);
  return Status();
}

Status FamilyParser::parse_slots(const yaml::Node& node, ModuleSpec* spec) {
  std::vector<std::string> roles;
  for (const SlotSchema& slot : spec->schema->slots) roles.emplace_back(slot.role);
  KTC_ASSIGN_OR_RETURN(yaml::Map map, node.map(roles));
  for (const SlotSchema& slot : spec->schema->slots)
    if (slot.required) KTC_RETURN_IF_ERROR(map.require(slot.role).status());
  KTC_ASSIGN_OR_RETURN(auto entries, node.entries());
  for (const yaml::Entry& entry : entries) {
    KTC_ASSIGN_OR_RETURN(SlotSpec slot, parse_slot(entry));
    spec->slots.push_back(std::move(slot));
  }
  return Status();
}

Expected<SlotSpec> FamilyParser::parse_slot(const yaml::Entry& entry) {
  SlotSpec slot;
  slot.role = entry.key;
  slot.position = entry.position;
  KTC_ASSIGN_OR_RETURN(yaml::Map map, entry.value.map({"when", "tensor", "shape", "batch", "stacked", "one_of"}));
  if (map.has("when")) {
    KTC_ASSIGN_OR_RETURN(slot.when, expression(map["when"], in_layer_));
  }
  if (!map.has("one_of")) {
    KTC_ASSIGN_OR_RETURN(StorageSpec storage, parse_storage(entry.value, {"when", "one_of"}));
    slot.storages.push_back(std::move(storage));
    return slot;
  }
  KTC_ASSIGN_OR_RETURN(map, entry.value.map({"when", "one_of"}));
  KTC_ASSIGN_OR_RETURN(auto items, map["one_of"].sequence());
  if (items.empty()) return map["one_of"].error({}, "one storage or more", {}, "an empty list");
  for (const yaml::Node& item : items) {
    KTC_ASSIGN_OR_RETURN(StorageSpec storage, parse_storage(item, {}));
    slot.storages.push_back(std::move(storage));
  }
  return slot;
}

Expected<StorageSpec> FamilyParser::parse_storage(const yaml::Node& node,
                                                  std::initializer_list<std::string_view> more_keys) {
  std::vector<std::string> keys{"tensor", "shape", "batch", "stacked"};
  keys.insert(keys.end(), more_keys.begin(), more_keys.end());
  KTC_ASSIGN_OR_RETURN(yaml::Map map, node.map(keys));
  if (map.has("tensor") == map.has("stacked"))
    return node.error("storage", "either 'tensor' with 'shape' or 'stacked'", {},
                      map.has("tensor") ? "both" : "neither");
  StorageSpec storage;
  if (map.has("batch")) {
    KTC_ASSIGN_OR_RETURN(storage.batch, expression(map["batch"], in_layer_));
  }
  if (map.has("tensor")) {
    KTC_ASSIGN_OR_RETURN(yaml::Node shape, map.require("shape"));
    KTC_ASSIGN_OR_RETURN(TensorSpec tensor, parse_tensor(map["tensor"], shape, storage.batch.has_value()));
    storage.stacked.push_back(std::move(tensor));
    return storage;
  }
  if (map.has("shape")) return map["shape"].error({}, "a shape on each stacked tensor");
  KTC_ASSIGN_OR_RETURN(auto items, map["stacked"].sequence());
  if (items.empty()) return map["stacked"].error({}, "one tensor or more", {}, "an empty list");
  for (const yaml::Node& item : items) {
    KTC_ASSIGN_OR_RETURN(yaml::Map one, item.map({"tensor", "shape"}));
    KTC_ASSIGN_OR_RETURN(yaml::Node name, one.require("tensor"));
    KTC_ASSIGN_OR_RETURN(yaml::Node shape, one.require("shape"));
    KTC_ASSIGN_OR_RETURN(TensorSpec tensor, parse_tensor(name, shape, storage.batch.has_value()));
    if (tensor.shape.size() != 2) return shape.error({}, "[rows, columns]: tensors are stacked by rows");
    storage.stacked.push_back(std::move(tensor));
  }
  return storage;
}

Expected<TensorSpec> FamilyParser::parse_tensor(const yaml::Node& name, const yaml::Node& shape, bool per_expert) {
  TensorSpec tensor;
  tensor.position = name.position();
  KTC_ASSIGN_OR_RETURN(tensor.name, name.string());
  if ((tensor.name.find("{expert}") != std::string::npos) != per_expert)
    return name.error({}, per_expert ? "a name with {expert}, since the storage has a batch"
                                     : "a name without {expert}, or a storage with a batch");
  KTC_ASSIGN_OR_RETURN(auto sizes, shape.sequence());
  if (sizes.empty() || sizes.size() > 3 || (per_expert && sizes.size() > 2))
    return shape.error({}, per_expert ? "one or two sizes" : "one to three sizes", {}, fmt::format("{}", sizes.size()));
  for (const yaml::Node& size : sizes) {
    KTC_ASSIGN_OR_RETURN(Expression parsed, expression(size, in_layer_));
    tensor.shape.push_back(std::move(parsed));
  }
  return tensor;
}

Status FamilyParser::parse_skips(const yaml::Node& node) {
  KTC_ASSIGN_OR_RETURN(auto items, node.sequence());
  for (const yaml::Node& item : items) {
    KTC_ASSIGN_OR_RETURN(yaml::Map map,
                         item.map({"reason", "prefixes", "suffixes", "layers_beyond", "announced", "markers"}));
    SkipSpec skip;
    KTC_RETURN_IF_ERROR(map.require("reason", &skip.reason));
    KTC_RETURN_IF_ERROR(map.read("prefixes", &skip.prefixes));
    KTC_RETURN_IF_ERROR(map.read("suffixes", &skip.suffixes));
    KTC_RETURN_IF_ERROR(map.read("layers_beyond", &skip.layers_beyond));
    KTC_RETURN_IF_ERROR(map.read("announced", &skip.announced));
    KTC_RETURN_IF_ERROR(map.read("markers", &skip.markers));
    const int conditions = int{!skip.prefixes.empty()} + int{!skip.suffixes.empty()} + int{skip.layers_beyond};
    if (conditions != 1)
      return item.error("skip", "exactly one of prefixes, suffixes, layers_beyond: true", {},
                        fmt::format("{}", conditions));
    for (const auto* affixes : {&skip.prefixes, &skip.suffixes})
      if (std::find(affixes->begin(), affixes->end(), "") != affixes->end())
        return item.error("skip", "prefixes and suffixes of one character or more", {}, "an empty one");
    if (!skip.layers_beyond && (!skip.announced.empty() || !skip.markers.empty()))
      return item.error("skip", "announced and markers with layers_beyond only", {}, "them elsewhere");
    if (!skip.announced.empty()) {
      const ConfigValue* value = family_.find_value(skip.announced);
      if (!value || value->type != ValueType::integer || value->optional)
        return map["announced"].error({}, "the name of an integer value with a default or required");
    }
    family_.skips.push_back(std::move(skip));
  }
  return Status();
}

}  // namespace ktc::models
