// kt-verify-transferred
#include "compiler/passes/Passes.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYTRANSFERRED
#include "compiler/passes/Passes.h.inc"

namespace {

llvm::StringRef deviceOf(mlir::Operation* symbol) {
  if (auto weight = llvm::dyn_cast<kt::WeightOp>(symbol)) return weight.getDevice().value_or("");
  if (auto bank = llvm::dyn_cast<kt::ExpertBankOp>(symbol)) return bank.getDevice().value_or("");
  return llvm::cast<kt::CacheOp>(symbol).getDevice().value_or("");
}

mlir::LogicalResult checkStep(kt::StepOpInterface step) {
  if (!step.getPlaceAttr()) return step->emitOpError("has no place; run kt-place");
  llvm::StringRef device = step.getPlaceAttr().getDevice();
  for (mlir::Value operand : step->getOperands()) {
    auto maker = operand.getDefiningOp<kt::StepOpInterface>();  // arguments are written where they are read
    if (!maker || !maker.getPlaceAttr() || maker.getPlaceAttr().getDevice() == device) continue;
    mlir::InFlightDiagnostic diagnostic = step->emitOpError();
    diagnostic << "runs on " << device << ", but an operand is made on " << maker.getPlaceAttr().getDevice()
               << "; values do not move between devices yet, place both modules on one";
    diagnostic.attachNote(maker.getLoc()) << "made here";
    return diagnostic;
  }
  auto checkSymbol = [&](mlir::FlatSymbolRefAttr ref) -> mlir::LogicalResult {
    llvm::StringRef found = deviceOf(mlir::SymbolTable::lookupNearestSymbolFrom(step, ref));
    if (found == device) return mlir::success();
    return step->emitOpError() << "runs on " << device << ", but " << ref << " lives on " << found;
  };
  for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
    if (mlir::failed(checkSymbol(ref))) return mlir::failure();
  }
  if (auto gqa = llvm::dyn_cast<kt::GqaOp>(step.getOperation())) return checkSymbol(gqa.getCacheAttr());
  if (auto mla = llvm::dyn_cast<kt::MlaOp>(step.getOperation())) return checkSymbol(mla.getCacheAttr());
  return mlir::success();
}

struct VerifyTransferred : impl::VerifyTransferredBase<VerifyTransferred> {
  using VerifyTransferredBase::VerifyTransferredBase;

  void runOnOperation() override {
    mlir::LogicalResult result = mlir::success();
    forEachStep(getOperation(), [&](kt::StepOpInterface step) {
      if (mlir::succeeded(result)) result = checkStep(step);
    });
    if (mlir::failed(result)) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::transferred);
  }
};

}  // namespace
}  // namespace ktc::compiler
