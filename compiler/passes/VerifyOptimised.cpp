// kt-verify-optimised
#include "compiler/passes/Passes.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYOPTIMISED
#include "compiler/passes/Passes.h.inc"

namespace {

struct VerifyOptimised : impl::VerifyOptimisedBase<VerifyOptimised> {
  using VerifyOptimisedBase::VerifyOptimisedBase;

  void runOnOperation() override {
    if (mlir::failed(check(getOperation()))) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::optimised);
  }

  static mlir::LogicalResult check(mlir::ModuleOp module) {
    mlir::LogicalResult result = mlir::success();
    forEachStep(module, [&](kt::StepOpInterface step) {
      auto op = llvm::dyn_cast<kt::MlaOp>(step.getOperation());
      if (!op || !op.getKvBAttr() || mlir::failed(result)) return;
      result = op.emitOpError("holds kv_b, which no kernel takes; expected w_uk and w_uv, run kt-fold-weights");
    });
    if (mlir::failed(result)) return mlir::failure();
    if (mlir::Operation* unused = findUnused(module)) {
      return unused->emitOpError("is used by no step; a pass that replaces a weight removes it");
    }
    return mlir::success();
  }
};

}  // namespace
}  // namespace ktc::compiler
