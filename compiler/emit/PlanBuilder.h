// Lowered IR to plan: the mapping that the head of dialects/kt/KtDialect.td states, and nothing else.
// Pure: reads no files, decides nothing but where in the weight files each weight lies.
#pragma once

#include <string>
#include <vector>

#include "compiler/weights/recipe.h"
#include "models/model_desc.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

namespace ktc::compiler {

// A weight file and what goes into it. jobs[i] is weight `weights[i]` of the plan.
struct FileJobs {
  std::string path;                       // relative to the plan's folder
  std::uint64_t bytes = 0;
  std::vector<WeightJob> jobs;
  std::vector<std::uint32_t> weights;
};

struct PlanAndJobs {
  planfb::PlanT plan;                     // digests of weights and text files are still zero, text_files is empty
  std::vector<FileJobs> files;
};

// `module` is in phase `lowered`. Errors: another phase, a slot that `model` lacks (the checkpoint changed since import).
Expected<PlanAndJobs> buildPlan(mlir::ModuleOp module, const models::ModelDesc& model);

}  // namespace ktc::compiler
