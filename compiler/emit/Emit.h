// Writes a plan folder NAME.ktp/ from lowered IR: packed weights, tokenizer files, report.json, and plan.ktp last.
//
// A compile that is killed can be run again: finished weights are in a journal beside each weight file. plan.ktp is renamed
// into place when everything else is on disk, so a folder with a plan.ktp is complete.
// Deterministic: equal IR and checkpoint give equal bytes of every file, whatever the thread count.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "compiler/emit/PlanBuilder.h"

namespace ktc::compiler {

struct EmitOptions {
  std::filesystem::path folder;
  int threads = 0;                                                        // 0: all
  std::string report;                                                     // contents of report.json
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes of weights
  std::function<bool()> cancelled;
};

// Errors: the folder exists and holds something else than a plan; no space; unreadable shards; interrupted.
Status emitPlan(mlir::ModuleOp module, const models::ModelDesc& model, const EmitOptions& options);

}  // namespace ktc::compiler
