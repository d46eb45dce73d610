// From what a rule says to what a module gets: device, formats, defaults, and the refusals.
#pragma once

#include "models/model_desc.h"
#include "placement/place.h"

namespace ktc::placement {

// Applies `rule` (which decides `module`) on a target that has its device. Errors: a format that this version's kernels
// do not take on the device; a format that would change the precision of a Router or Norm.
// Weights with scales are for products: an Embedding, which looks rows up, keeps the checkpoint's precision. `native` of a
// module whose matrices are all FP8 keeps their codes where the device has kernels for them, but not with `activations: f32`.
Expected<ModulePlacement> resolve(const models::ModelDesc& model, const models::Module& module, const Rule& rule);

// Whether a rule asks for weights with scales of a module that keeps its precision: an Embedding.
bool keeps_rows(const models::Module& module, const Rule& rule);

// Whether resolving rounds: matrices of f32 or f16 packed as bf16.
bool rounds(const models::ModelDesc& model, const models::Module& module, Format weights);

}  // namespace ktc::placement
