// Which formats the kernels of a device take, and what a policy gets when it states none.
#pragma once

#include <cstdint>
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

// Weights with scales: panels on a CPU, multiplied by int8 or bf16 activations, and gpu_rows on a GPU. They are for products: what else
// reads a weight (a lookup, the per-head matrices of latent attention) takes f32 or bf16.
constexpr bool has_scales(Format weights) {
  return weights == Format::int8 || weights == Format::int4 || weights == Format::fp8;
}

// Whether a CPU's products read such weights as panels (runtime/formats/panel.h): bf16 in rows is for f32 activations.
constexpr bool has_panels(Format weights, Format activations) {
  return has_scales(weights) || (weights == Format::bf16 && activations == Format::bf16);
}

// Input features per scale when the policy states no group: 64 for int4, 128 for fp8 (the blocks of released checkpoints),
// one scale per row (0) for the others.
constexpr std::uint32_t default_group(Format weights) {
  return weights == Format::int4 ? 64 : weights == Format::fp8 ? 128 : 0;
}

// "bf16", "int8/row", "int4/64", "fp8/128".
std::string weights_text(Format weights, std::uint32_t group);

std::string list(std::span<const Format> formats);  // "f32, bf16"

// The activations that the device's kernels for weights of a format take: on a CPU int8 for integer weights, bf16 for fp8, bf16
// or f32 for bf16, f32 for f32; on a GPU f32 or bf16 for all.
std::span<const Format> activations_for(std::string_view device, Format weights);

// Activations when the policy states none: f32 for f32 weights, int8 for integer weights on a CPU, else bf16.
Format default_activations(std::string_view device, Format weights);

}  // namespace ktc::placement
