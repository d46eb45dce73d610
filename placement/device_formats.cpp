#include "placement/device_formats.h"

#include <algorithm>

namespace ktc::placement {
namespace {

constexpr Format kF32Bf16[] = {Format::f32, Format::bf16};
constexpr Format kF32[] = {Format::f32};

}  // namespace

DeviceFormats formats_of(std::string_view device) {
  // No CPU kernel takes bf16 activations yet; f32 ones lose nothing and cost little beside reading the weights.
  if (device == "cpu") return {kF32Bf16, kF32, kF32Bf16};
  return {kF32Bf16, kF32Bf16, kF32Bf16};
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

Format default_activations(std::string_view device, Format weights) {
  return weights == Format::bf16 && takes(formats_of(device).activations, Format::bf16) ? Format::bf16 : Format::f32;
}

}  // namespace ktc::placement
