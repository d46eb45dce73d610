// From a family, a config and a checkpoint's tensors to modules, slots and layers.
#pragma once

#include "models/checkpoint.h"
#include "models/config.h"
#include "models/model_desc.h"
#include "runtime/base/status.h"

namespace ktc::models {

// Fills dimensions, slots, modules, layers, tied_head, skipped and warnings of *model; the caller has set `shards` and
// `tensors` from the same checkpoint.
Status build_model(const Checkpoint& checkpoint, ModelConfig* config, ModelDesc* model);

}  // namespace ktc::models
