// From a model to lowered IR: the phases of DESIGN section 6, each of which can be stopped after and resumed from.
//
// Threading: one context, one thread. A context made with threading disabled starts faster and loses nothing here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dialects/kt/Kt.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Pass/PassManager.h"
#include "models/model_desc.h"
#include "placement/place.h"
#include "placement/policy.h"
#include "placement/target.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

using kt::Phase;

// "imported, placed, …": for flags and their errors.
std::optional<Phase> parsePhase(std::string_view name);
std::string listPhases();

// Optimisations that can be switched off, one name each (kt-fuse or fuse). Nothing else changes but speed; without
// defer-experts the policy's late experts are in time.
constexpr std::string_view kSwitchable[] = {"defer-experts", "fold-weights", "form-cuda-graphs", "fuse", "halve-batches",
                                            "join-launches", "schedule", "split-experts", "stream-experts"};
// The name as kSwitchable has it. Error: another name.
Expected<std::string> parseSwitchable(std::string_view name);

// A cut must promise a twentieth: its prediction leaves out what launches and copies of half the size cost.
constexpr double kHalvesBelow = 0.95;

struct PipelineOptions {
  placement::BatchPolicy batch;                                // bounds of the entries
  std::function<std::unique_ptr<mlir::Pass>()> makePlace;      // kt-place with a policy and a target
  std::function<std::unique_ptr<mlir::Pass>()> makeTile;       // kt-tile-cpu with a target
  std::function<std::unique_ptr<mlir::Pass>()> makeSchedule;   // kt-schedule with a target
  std::vector<std::string> disabled = {};                      // of kSwitchable
  std::function<std::unique_ptr<mlir::Pass>()> makeHalve = {}; // kt-halve-batches with a target
};

// Appends the passes that lead from `from` (nullopt: fresh from import) to `to`, with the checks at every seam between.
void buildPipeline(mlir::OpPassManager& passes, std::optional<Phase> from, Phase to, const PipelineOptions& options);

// ktc-opt's --kt-pipeline="from=… to=… policy=FILE target=FILE decode=… chunk=…".
void registerPipeline();

struct CompileOptions {
  Phase stop = Phase::lowered;                     // `planned` is emit's: here it is the same as lowered
  std::vector<std::string>* remarks = nullptr;     // one line each: why something was folded, or was not
  bool tile = true;                                // false: no tile kernels, whatever the target has
  std::vector<std::string> disabled = {};          // optimisations to leave out, of kSwitchable
  const placement::Placement* placed = nullptr;    // of the model that is imported; null: kt-place makes its own
  double halves_below = kHalvesBelow;              // extend entries are cut in halves that are predicted to take less than so much of the whole's time
};

// Imports the model and runs the pipeline. Errors are one line: the policy's rule and the family's line where known,
// then what is wrong; a diagnostic about the compiler's own IR has code `internal`.
Expected<mlir::OwningOpRef<mlir::ModuleOp>> compileTo(mlir::MLIRContext& context, const models::ModelDesc& model,
                                                      const placement::Policy& policy, const placement::Target& target,
                                                      const CompileOptions& options);

// Parses the text of a phase. `name` stands for it in messages. Errors: text that does not parse or verify.
Expected<mlir::OwningOpRef<mlir::ModuleOp>> parseModule(mlir::MLIRContext& context, std::string_view text,
                                                        std::string_view name);

// Runs the rest of the pipeline on a parsed module, from the phase that it states. Errors also when it states another
// phase than `start` (where given), or one behind `options.stop`.
Status resume(mlir::ModuleOp module, std::optional<Phase> start, const placement::Policy& policy,
              const placement::Target& target, const CompileOptions& options);

// The text of a module, with locations: resuming from it loses nothing. Equal modules give equal bytes.
std::string printModule(mlir::ModuleOp module);

}  // namespace ktc::compiler
