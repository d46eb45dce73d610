#include "models/model_desc.h"

namespace ktc::models {

namespace {
constexpr std::pair<ModuleClass, std::string_view> kClasses[] = {
    {ModuleClass::Embedding, "Embedding"},
    {ModuleClass::Attention, "Attention"},
    {ModuleClass::LinearAttention, "LinearAttention"},
    {ModuleClass::Indexer, "Indexer"},
    {ModuleClass::DenseMlp, "DenseMlp"},
    {ModuleClass::SharedExperts, "SharedExperts"},
    {ModuleClass::Router, "Router"},
    {ModuleClass::RoutedExperts, "RoutedExperts"},
    {ModuleClass::Norm, "Norm"},
    {ModuleClass::Head, "Head"},
};
}  // namespace

std::string_view to_string(TensorType type) {
  switch (type) {
    case TensorType::f32: return "f32";
    case TensorType::bf16: return "bf16";
    case TensorType::f16: return "f16";
    case TensorType::f8_e4m3: return "f8_e4m3";
    case TensorType::other: return "other";
  }
  return "other";
}

int tensor_type_bytes(TensorType type) {
  switch (type) {
    case TensorType::f32: return 4;
    case TensorType::bf16: return 2;
    case TensorType::f16: return 2;
    case TensorType::f8_e4m3: return 1;
    case TensorType::other: return 0;
  }
  return 0;
}

std::string_view to_string(ModuleClass cls) {
  for (const auto& [value, name] : kClasses)
    if (value == cls) return name;
  return "?";
}

std::optional<ModuleClass> parse_module_class(std::string_view name) {
  for (const auto& [value, text] : kClasses)
    if (text == name) return value;
  return std::nullopt;
}

}  // namespace ktc::models
