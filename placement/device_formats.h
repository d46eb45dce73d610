// Which formats the kernels of a device take, and what a policy gets when it states none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/formats/formats.h"

namespace ktc::placement {

struct DeviceFormats {
  std::span<const Format> weights;
  std::span<const Format> activations;
  std::span<const Format> caches;
};

// `device` is "cpu" or "cuda:N".
DeviceFormats formats_of(std::string_view device);

bool takes(std::span<const Format> formats, Format format);
std::string list(std::span<const Format> formats);  // "f32, bf16"

// Activations when the policy states none: bf16 where weights are bf16 and the device has such kernels, else f32.
Format default_activations(std::string_view device, Format weights);

}  // namespace ktc::placement
