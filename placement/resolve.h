// From what a rule says to what a module gets: device, formats, defaults, and the refusals.
#pragma once

#include "models/model_desc.h"
#include "placement/place.h"

namespace ktc::placement {

// Applies `rule` (which decides `module`) on a target that has its device. Errors: a format that this version's kernels
// do not take on the device; a format that would change the precision of a Router or Norm.
// Weights with scales are for products: an Embedding, which looks rows up, keeps the checkpoint's precision. It has no products
// either: on a CPU its activations are f32, whatever the rule says. `native` of a
// module whose matrices are all FP8 keeps their codes where the device has kernels for them, but not with `activations: f32`.
Expected<ModulePlacement> resolve(const models::ModelDesc& model, const models::Module& module, const Rule& rule);

// Whether a rule asks for weights with scales of a module that keeps its precision: an Embedding.
bool keeps_rows(const models::Module& module, const Rule& rule);

// Of a placed model: a Head on a CPU that has its bf16 matrix in common with an Embedding there takes f32 activations, and thus the
// Embedding's rows, unless its rule states activations. Panels of its own would be the matrix once more, and a few rows of
// output, which is what a head computes, run at the memory's rate either way.
void share_tied_rows(const models::ModelDesc& model, const Policy& policy, std::vector<ModulePlacement>& modules);

// Whether resolving rounds: matrices of f32 or f16 packed as bf16.
bool rounds(const models::ModelDesc& model, const models::Module& module, Format weights);

}  // namespace ktc::placement
