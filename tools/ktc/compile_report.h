// What a compile asked for and got: for people (--dry-run) and for programs (report.json).
#pragma once

#include <string>

#include "mlir/IR/BuiltinOps.h"
#include "models/model_desc.h"
#include "placement/place.h"

namespace ktc::tools {

struct CompileFacts {
  const models::ModelDesc& model;
  const placement::Policy& policy;
  const placement::Target& target;
  const placement::Placement& placement;
  mlir::ModuleOp lowered;                // its account is final
};

std::string report_text(const CompileFacts& facts);

// Deterministic; no times, no paths.
std::string report_json(const CompileFacts& facts);

}  // namespace ktc::tools
