#include "placement/resolve.h"

#include <fmt/format.h>

#include "placement/device_formats.h"
#include "placement/slot_use.h"

namespace ktc::placement {
namespace {

// Their choices are discrete (a router) or their cost is nothing (a norm): they keep the checkpoint's precision.
bool keeps_precision(models::ModuleClass cls) {
  return cls == models::ModuleClass::Router || cls == models::ModuleClass::Norm;
}

Status unavailable(const FormatChoice& choice, std::string_view what, models::ModuleClass cls, std::string_view device,
                   std::string expected) {
  return make_error(
      StatusCode::unsupported,
      {to_string(choice.position), fmt::format("{} of {} on {}", what, models::to_string(cls), device), choice.word,
       std::move(expected), fmt::format("this version's kernels take no {} there", choice.word)});
}

}  // namespace

bool rounds(const models::ModelDesc& model, const models::Module& module, Format weights) {
  if (weights != Format::bf16) return false;
  for (const SlotUse& use : slots_of(module))
    if (use.role != SlotRole::vector && model.slots[use.slot].type != models::TensorType::bf16) return true;
  return false;
}

bool keeps_rows(const models::Module& module, const Rule& rule) {
  const auto format = parse_format(rule.place.weights.word);
  return module.cls == models::ModuleClass::Embedding && format && has_scales(*format);
}

Expected<ModulePlacement> resolve(const models::ModelDesc& model, const models::Module& module, const Rule& rule) {
  const PlaceSpec& spec = rule.place;
  const DeviceFormats available = formats_of(spec.device);
  const Format native = has_only_bf16_matrices(model, module) ? Format::bf16 : Format::f32;
  ModulePlacement placed;
  placed.device = spec.device;
  placed.pin = spec.pin;
  placed.unrounded = native;

  if (keeps_precision(module.cls)) {
    // a rule for "*" means the modules that have a choice; one that names the class means what it says
    placed.weights = native;
    placed.activations = Format::f32;
    if (!rule.cls) return placed;
    const std::string_view cls = models::to_string(module.cls);
    if (spec.weights.stated() && spec.weights.word != "native" && spec.weights.word != to_string(native) &&
        spec.weights.word != "f32")
      return make_error(
          StatusCode::invalid_argument,
          {to_string(spec.weights.position), fmt::format("{} keeps the checkpoint's precision", cls), spec.weights.word,
           native == Format::f32 ? "native or f32" : "native, bf16 or f32", "remove weights from this rule"});
    if (spec.weights.word == "f32") placed.weights = Format::f32;  // widening changes no value
    if (spec.activations.stated() && spec.activations.word != "f32")
      return make_error(StatusCode::invalid_argument,
                        {to_string(spec.activations.position), fmt::format("{} computes in f32", cls),
                         spec.activations.word, "f32", "remove activations from this rule"});
    return placed;
  }

  placed.weights = native;
  const bool looks_up = module.cls == models::ModuleClass::Embedding && spec.device == "cpu";
  if (keeps_rows(module, rule)) {  // its rule's activations are those of weights with scales
    placed.activations = looks_up ? Format::f32 : default_activations(spec.device, native);
    return placed;
  }
  if (spec.weights.stated() && spec.weights.word != "native") {
    const auto format = parse_format(spec.weights.word);
    if (!format || !takes(available.weights, *format))
      return unavailable(spec.weights, "weights", module.cls, spec.device, "one of native, " + list(available.weights));
    placed.weights = *format;
  } else if (takes(available.weights, Format::fp8) && spec.activations.word != "f32" && keeps_fp8(model, module)) {
    placed.weights = Format::fp8;  // exact mode alone needs their values in f32 arithmetic
  }
  placed.group = spec.group == 0 ? default_group(placed.weights) : spec.group == kGroupRow ? 0 : spec.group;
  if (!has_group(placed.weights, placed.group))
    return make_error(StatusCode::invalid_argument,
                      {to_string(spec.weights.position), fmt::format("group of {} weights", spec.weights.word),
                       std::to_string(placed.group), placed.weights == Format::fp8 ? "row or 128" : "row",
                       placed.weights == Format::fp8 ? "remove group for 128"
                                                     : fmt::format("{} has one scale per row: remove group, or take int4",
                                                                   spec.weights.word)});
  placed.activations = default_activations(spec.device, placed.weights);
  if (spec.activations.stated()) {
    const auto format = parse_format(spec.activations.word);
    const auto possible = activations_for(spec.device, placed.weights);
    if (!format || !takes(possible, *format))
      return unavailable(spec.activations, fmt::format("activations for {} weights", to_string(placed.weights)), module.cls,
                         spec.device, (possible.size() > 1 ? "one of " : "") + list(possible));
    placed.activations = *format;
  }
  if (looks_up) placed.activations = Format::f32;
  return placed;
}

void share_tied_rows(const models::ModelDesc& model, const Policy& policy, std::vector<ModulePlacement>& modules) {
  const auto rows = [](const ModulePlacement& placed) { return placed.device == "cpu" && placed.weights == Format::bf16; };
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const auto* head = std::get_if<models::HeadDesc>(&model.modules[i].attributes);
    if (!head || !rows(modules[i]) || policy.rules[static_cast<std::size_t>(modules[i].rule)].place.activations.stated()) continue;
    for (std::size_t j = 0; j < model.modules.size(); ++j) {
      const auto* embedding = std::get_if<models::EmbeddingDesc>(&model.modules[j].attributes);
      if (embedding && embedding->weight == head->weight && rows(modules[j])) modules[i].activations = Format::f32;
    }
  }
}

}  // namespace ktc::placement
