// Writes a plan folder NAME.ktp/ from lowered IR: packed weights, tokenizer files, report.json, and plan.ktp last.
//
// A compile that is killed can be run again: finished weights are in a journal beside each weight file. plan.ktp is renamed
// into place when everything else is on disk, so a folder with a plan.ktp is complete.
// Deterministic: equal IR and checkpoint give equal bytes of every file, whatever the thread count.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/emit/PlanBuilder.h"
#include "compiler/emit/RandomWeights.h"
#include "compiler/weights/moments.h"

namespace ktc::compiler {

// What rounding did to one weight; errors are ||w - wq|| / ||w||.
struct WeightQuality {
  std::string name;
  std::string type;                        // "int4/64"
  double bits_per_weight = 0;              // of the packed bytes: scales and padding included
  double error = 0;                        // over the stack
  double worst_error = 0;                  // of one matrix
  std::uint64_t worst_matrix = 0, matrices = 1;
};

struct EmitOptions {
  std::filesystem::path folder;
  int threads = 0;                                                        // 0: all
  std::function<std::string(const std::vector<WeightQuality>&)> report;   // contents of report.json; called once, at the end
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes of weights
  std::function<bool()> cancelled;
  bool clip_search = true;                                                // false: plain rounding
  const Moments* moments = nullptr;                                       // weigh the search's errors; null: all alike
  std::optional<RandomOptions> random;                                    // no checkpoint is read, no weight file is written
  std::optional<double> max_error;                                        // of one matrix; above it the compile fails
};

// Errors: the folder exists and holds something else than a plan; no space; unreadable shards; interrupted; weights that are
// not finite; an error above max_error.
Status emitPlan(mlir::ModuleOp module, const models::ModelDesc& model, const EmitOptions& options);

}  // namespace ktc::compiler
