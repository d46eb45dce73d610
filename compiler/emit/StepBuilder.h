// One op of a lowered body to one Step of the plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dialects/kt/Kt.h"
#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

namespace ktc::compiler {

// What names in the IR have become in the plan.
struct PlanIndex {
  std::map<std::string, std::uint32_t> devices, weights, caches;
  std::vector<mlir::Attribute> ropes;     // #kt.rope in plan order; grows as steps are built

  std::uint32_t rope(mlir::Attribute attribute);
};

Expected<std::unique_ptr<planfb::StepT>> buildStep(kt::StepOpInterface op, PlanIndex& index);

}  // namespace ktc::compiler
