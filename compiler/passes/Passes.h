// Passes of the compiler; Passes.td describes each. Pipeline.cpp has their order.
#pragma once

#include <memory>

#include "dialects/kt/Kt.h"
#include "mlir/Pass/Pass.h"
#include "models/model_desc.h"
#include "placement/place.h"
#include "placement/policy.h"
#include "placement/target.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

#define GEN_PASS_DECL
#include "compiler/passes/Passes.h.inc"

// A model and what placement::place made of it, under one policy and target.
struct PlacedModel {
  const models::ModelDesc* model = nullptr;
  const placement::Placement* placement = nullptr;
};

// kt-place with what the caller has read already. All of it must outlive the pass. `placed`: of the model that the IR was imported
// from, so that nothing is placed twice; without it the pass places what the IR describes. A failure of placement is also left in
// `status`, with its code.
std::unique_ptr<mlir::Pass> createPlace(const placement::Policy& policy, const placement::Target& target, Status& status,
                                        PlacedModel placed = {});

// kt-tile-cpu with a target that the caller has read; it must outlive the pass. `granule`: of x and h, 64, 128 or 0.
std::unique_ptr<mlir::Pass> createTileCpu(const placement::Target& target, bool thresholds, std::uint32_t granule);

// kt-schedule with a target that the caller has read; it must outlive the pass. `granule`: of int8 activations, 0 for a row.
std::unique_ptr<mlir::Pass> createSchedule(const placement::Target& target, std::uint32_t granule);

// kt-halve-batches likewise; `below`: of the whole's predicted time.
std::unique_ptr<mlir::Pass> createHalveBatches(const placement::Target& target, std::uint32_t granule, double below);

#define GEN_PASS_REGISTRATION
#include "compiler/passes/Passes.h.inc"

}  // namespace ktc::compiler
