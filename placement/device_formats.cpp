#include "placement/device_formats.h"

#include <algorithm>

namespace ktc::placement {
namespace {

constexpr Format kF32Bf16[] = {Format::f32, Format::bf16};
constexpr Format kF32[] = {Format::f32};
constexpr Format kInt8[] = {Format::int8};
constexpr Format kBf16[] = {Format::bf16};
constexpr Format kBf16F32[] = {Format::bf16, Format::f32};
constexpr Format kF32Bf16Int8[] = {Format::f32, Format::bf16, Format::int8};
constexpr Format kWeights[] = {Format::f32, Format::bf16, Format::fp8, Format::int8, Format::int4};

}  // namespace

DeviceFormats formats_of(std::string_view device) {
  if (device == "cpu") return {kWeights, kF32Bf16Int8, kF32Bf16};
  return {kWeights, kF32Bf16, kF32Bf16};
}

bool takes(std::span<const Format> formats, Format format) {
  return std::find(formats.begin(), formats.end(), format) != formats.end();
}

std::string list(std::span<const Format> formats) {
  std::string text;
  for (Format format : formats) {
    if (!text.empty()) text += ", ";
    text += to_string(format);
  }
  return text;
}

std::span<const Format> activations_for(std::string_view device, Format weights) {
  if (device != "cpu") return formats_of(device).activations;
  if (weights == Format::fp8) return kBf16;
  if (weights == Format::bf16) return kBf16F32;  // the first is the default
  return has_scales(weights) ? kInt8 : kF32;
}

std::string weights_text(Format weights, std::uint32_t group) {
  std::string text(to_string(weights));
  if (has_scales(weights)) text += group == 0 ? "/row" : "/" + std::to_string(group);
  return text;
}

Format default_activations(std::string_view device, Format weights) {
  if (device == "cpu") return activations_for(device, weights).front();
  return weights == Format::f32 ? Format::f32 : Format::bf16;
}

}  // namespace ktc::placement
