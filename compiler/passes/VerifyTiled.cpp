// kt-verify-tiled
#include "compiler/passes/Passes.h"
#include "compiler/passes/Symbols.h"
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
  auto format = parse_format(op.getFormat()->str());
  const uint64_t group = op.getGroup().value_or(0);
  if (format && !takes_packing(*format, *parse_packing(op.getPacking()->str()))) {
    return op.emitOpError() << "packing: found \"" << *op.getPacking() << "\", which " << *op.getFormat()
                            << " does not have; run kt-tile-cpu";
  }
  if (format && !has_group(*format, static_cast<uint32_t>(std::min<uint64_t>(group, UINT32_MAX)))) {
    return op.emitOpError() << "group: found " << group << ", which " << *op.getFormat() << " does not have";
  }
  if (packedBytes(op)) return mlir::success();
  return op.emitOpError("is larger than 2^64 bytes, or its format has no size");
}

// A product reads the packings that its kernel takes: gate and up side by side, everything else plain.
mlir::LogicalResult checkStep(kt::StepOpInterface step) {
  mlir::Operation* op = step;
  auto tile = op->getAttrOfType<kt::TileAttr>("tile");
  const bool panels = hasPanels(step);
  if (panels != (tile != nullptr)) {
    return op->emitOpError(panels ? "multiplies by panels and has no tile; run kt-tile-cpu"
                                  : "has a tile and no weights in panels; expected neither or both");
  }
  if (!panels) return mlir::success();
  for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
    mlir::Operation* symbol = mlir::SymbolTable::lookupNearestSymbolFrom(op, ref);
    auto weight = llvm::dyn_cast<kt::WeightOp>(symbol);
    if (weight && weight.isVector()) continue;
    auto mlp = llvm::dyn_cast<kt::MlpOp>(op);
    const bool paired = !weight || (mlp && mlp.getGateUpAttr() == ref);
    llvm::StringRef found = weight ? *weight.getPacking() : *llvm::cast<kt::ExpertBankOp>(symbol).getPacking();
    llvm::StringRef expected = paired ? "panel_paired" : "panel";
    if (found == expected) continue;
    return op->emitOpError() << ref << " is packed \"" << found << "\", expected \"" << expected << "\"; run kt-tile-cpu";
  }
  return mlir::success();
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
    mlir::LogicalResult result = mlir::success();
    forEachStep(getOperation(), [&](kt::StepOpInterface step) {
      if (mlir::succeeded(result)) result = checkStep(step);
    });
    if (mlir::failed(result)) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::tiled);
  }
};

}  // namespace
}  // namespace ktc::compiler
