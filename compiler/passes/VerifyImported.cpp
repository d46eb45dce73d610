// kt-verify-imported
#include "compiler/passes/Passes.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYIMPORTED
#include "compiler/passes/Passes.h.inc"

namespace {

mlir::LogicalResult checkEntry(kt::EntryOp entry, kt::ModelAttr model) {
  if (entry.getKind() == kt::EntryKind::generic) {
    return entry.emitOpError("is generic; expected bounded entries, run kt-specialise-entries");
  }
  for (auto embed : entry.getBody().getOps<kt::EmbedOp>()) {
    if (kt::columnsOf(embed.getOut()) == int64_t(model.getHidden())) continue;
    return embed.emitOpError() << "makes " << kt::columnsOf(embed.getOut())
                               << " columns, expected the model's hidden size, " << model.getHidden();
  }
  mlir::Block& block = entry.getBody().front();
  mlir::Value logits = entry.getKind() == kt::EntryKind::sample ? mlir::Value(block.getArgument(0))
                                                                : block.getTerminator()->getOperand(0);
  if (kt::columnsOf(logits) == int64_t(model.getVocab())) return mlir::success();
  return entry.emitOpError() << "has logits of " << kt::columnsOf(logits)
                             << " columns, expected the model's vocabulary, " << model.getVocab();
}

// Every kind is there, and the executor finds the smallest entry that fits by going through them in order.
mlir::LogicalResult checkKinds(mlir::ModuleOp module) {
  for (kt::EntryKind kind : {kt::EntryKind::extend, kt::EntryKind::decode, kt::EntryKind::sample}) {
    kt::EntryOp before;
    for (auto entry : module.getOps<kt::EntryOp>()) {
      if (entry.getKind() != kind) continue;
      if (before && entry.getBounds()->getTokens() <= before.getBounds()->getTokens()) {
        return entry.emitOpError() << "is bounded by " << entry.getBounds()->getTokens()
                                   << " tokens, expected more than @" << before.getSymName()
                                   << ", which comes before it";
      }
      before = entry;
    }
    if (!before) {
      return module.emitError() << "no kt.entry of kind " << kt::stringifyEntryKind(kind)
                                << "; expected extend, decode and sample, run kt-specialise-entries";
    }
  }
  return mlir::success();
}

struct VerifyImported : impl::VerifyImportedBase<VerifyImported> {
  using VerifyImportedBase::VerifyImportedBase;

  void runOnOperation() override {
    if (mlir::failed(check(getOperation()))) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::imported);
  }

  static mlir::LogicalResult check(mlir::ModuleOp module) {
    kt::ModelAttr model = kt::modelOf(module);
    if (!model) return module.emitError("no kt.model: expected the facts of the model, as import writes them");
    for (auto entry : module.getOps<kt::EntryOp>()) {
      if (mlir::failed(checkEntry(entry, model))) return mlir::failure();
    }
    if (mlir::failed(checkKinds(module))) return mlir::failure();
    if (mlir::Operation* unused = findUnused(module)) {
      return unused->emitOpError("is used by no step; expected every part of the model in some entry, remove it");
    }
    mlir::LogicalResult result = mlir::success();
    forEachStep(module, [&](kt::StepOpInterface step) {
      if (step.getPlaceAttr() && mlir::succeeded(result)) {
        result = step->emitOpError("has a place; expected none before kt-place");
      }
    });
    return result;
  }
};

}  // namespace
}  // namespace ktc::compiler
