// kt-verify-tiled
#include "compiler/passes/Passes.h"
#include "compiler/passes/analysis/Workspace.h"
#include "dialects/kt/KtWalk.h"
#include "runtime/formats/formats.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYTILED
#include "compiler/passes/Passes.h.inc"

namespace {

template <typename Op>
mlir::LogicalResult checkPacked(Op op) {
  if (!op.getPacking()) return op.emitOpError("has no packing; run kt-place");
  if (!parse_packing(op.getPacking()->str())) {
    return op.emitOpError() << "packing: found \"" << *op.getPacking()
                            << "\", expected one of runtime/formats/packings.def";
  }
  if (packedBytes(op)) return mlir::success();
  return op.emitOpError("is larger than 2^64 bytes, or its format has no size");
}

struct VerifyTiled : impl::VerifyTiledBase<VerifyTiled> {
  using VerifyTiledBase::VerifyTiledBase;

  void runOnOperation() override {
    for (auto weight : getOperation().getOps<kt::WeightOp>()) {
      if (mlir::failed(checkPacked(weight))) return signalPassFailure();
    }
    for (auto bank : getOperation().getOps<kt::ExpertBankOp>()) {
      if (mlir::failed(checkPacked(bank))) return signalPassFailure();
    }
    kt::setPhase(getOperation(), kt::Phase::tiled);
  }
};

}  // namespace
}  // namespace ktc::compiler
