// What a compile asked for and got: for people (--dry-run) and for programs (report.json).
#pragma once

#include <string>
#include <vector>

#include "compiler/emit/Emit.h"
#include "mlir/IR/BuiltinOps.h"
#include "models/model_desc.h"
#include "placement/cost_model.h"
#include "placement/place.h"

namespace ktc::tools {

struct CompileFacts {
  const models::ModelDesc& model;
  const placement::Policy& policy;
  const placement::Target& target;
  const placement::Placement& placement;
  mlir::ModuleOp lowered;                // its account is final
  const placement::Prediction& prediction;
};

std::string report_text(const CompileFacts& facts);

// Deterministic; no times, no paths. `quality`: the weights that were rounded.
std::string report_json(const CompileFacts& facts, const std::vector<compiler::WeightQuality>& quality);

// One line a type of weights: how much rounding changed the weights on the whole, and the worst matrix.
std::string quality_text(const std::vector<compiler::WeightQuality>& quality);

}  // namespace ktc::tools
