// A ModelDesc as text: one line per module and slot. Stable, free of paths, for tests and `ktc compile --dry-run`.
#pragma once

#include <string>

#include "models/model_desc.h"

namespace ktc::models {

struct DumpOptions {
  bool slots = true;     // a line per slot
  bool tensors = false;  // a line per tensor piece below its slot
};

std::string dump(const ModelDesc& model, const DumpOptions& options = {});

// One line about skipped tensors: "MTP layer, not used for generation: 1 layer, 20 tensors, 512 bytes".
std::string describe(const SkippedTensors& skipped);

}  // namespace ktc::models
