// Passes of the compiler; Passes.td describes each. Pipeline.cpp has their order.
#pragma once

#include <memory>

#include "dialects/kt/Kt.h"
#include "mlir/Pass/Pass.h"
#include "placement/policy.h"
#include "placement/target.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

#define GEN_PASS_DECL
#include "compiler/passes/Passes.h.inc"

// kt-place with what the caller has read already. Both must outlive the pass. A failure of placement is also left in
// `status`, with its code.
std::unique_ptr<mlir::Pass> createPlace(const placement::Policy& policy, const placement::Target& target,
                                        Status& status);

// kt-tile-cpu with a target that the caller has read; it must outlive the pass. `granule`: of x and h, 64, 128 or 0.
std::unique_ptr<mlir::Pass> createTileCpu(const placement::Target& target, bool thresholds, std::uint32_t granule);

#define GEN_PASS_REGISTRATION
#include "compiler/passes/Passes.h.inc"

}  // namespace ktc::compiler
