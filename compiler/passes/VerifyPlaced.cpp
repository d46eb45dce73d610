// kt-verify-placed
#include "compiler/passes/Passes.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/MapVector.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYPLACED
#include "compiler/passes/Passes.h.inc"

namespace {

mlir::LogicalResult checkFormat(mlir::Operation* op, llvm::StringRef what, llvm::StringRef format, FormatKind kind) {
  auto known = parse_format(format.str());
  if (known && format_serves(*known, kind)) return mlir::success();
  return op->emitOpError() << what << ": found \"" << format << "\", expected one of " << list_formats(kind);
}

mlir::LogicalResult checkDevice(mlir::Operation* op, llvm::StringRef device) {
  if (placement::is_device_name(device)) return mlir::success();
  return op->emitOpError() << "device: found \"" << device << "\", expected cpu, cuda:0, cuda:1, ...";
}

template <typename Op>
mlir::LogicalResult checkSymbol(Op op, FormatKind kind) {
  if (!op.getDevice()) return op.emitOpError("has no device; run kt-place");
  if (mlir::failed(checkDevice(op, *op.getDevice()))) return mlir::failure();
  return checkFormat(op, "format", *op.getFormat(), kind);
}

mlir::LogicalResult checkStep(kt::StepOpInterface step) {
  kt::PlaceAttr place = step.getPlaceAttr();
  if (!place) return step->emitOpError("has no place; run kt-place");
  if (mlir::failed(checkDevice(step, place.getDevice())) ||
      mlir::failed(checkFormat(step, "weights", place.getWeights(), FormatKind::weight)) ||
      mlir::failed(checkFormat(step, "activations", place.getActivations(), FormatKind::activation))) {
    return mlir::failure();
  }
  for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
    mlir::Operation* symbol = mlir::SymbolTable::lookupNearestSymbolFrom(step, ref);
    auto weight = llvm::dyn_cast<kt::WeightOp>(symbol);
    auto bank = llvm::dyn_cast<kt::ExpertBankOp>(symbol);
    llvm::StringRef found = weight ? *weight.getFormat() : *bank.getFormat();
    llvm::StringRef expected = weight && weight.isVector() ? "f32" : place.getWeights();
    if (found == expected) continue;
    return step->emitOpError() << ref << " has format \"" << found << "\", expected \"" << expected << "\" as "
                               << (weight && weight.isVector() ? "vectors have" : "the op's place says");
  }
  return mlir::success();
}

// What one router chose is computed once: every expert has a matrix in exactly one of the ops over its ids. In time and late
// ops do not exist yet.
mlir::LogicalResult checkSlots(kt::EntryOp entry) {
  llvm::MapVector<mlir::Value, llvm::SmallVector<kt::ExpertsOp>> byChoice;
  for (auto op : entry.getBody().getOps<kt::ExpertsOp>()) byChoice[op.getIds()].push_back(op);
  for (auto& [ids, ops] : byChoice) {
    if (ops.size() == 1 && !ops[0].getSlotsAttr()) continue;
    std::vector<unsigned> owners;
    for (kt::ExpertsOp op : ops) {
      mlir::DenseI32ArrayAttr slots = op.getSlotsAttr();
      if (!slots || (!owners.empty() && owners.size() != std::size_t(slots.size()))) {
        return op.emitOpError("shares its experts with another op; expected slots of as many experts on both");
      }
      owners.resize(slots.size(), 0);
      for (auto [expert, slot] : llvm::enumerate(slots.asArrayRef())) owners[expert] += slot >= 0;
    }
    for (auto [expert, count] : llvm::enumerate(owners)) {
      if (count == 1) continue;
      return ops[0].emitOpError() << "slots: expert " << expert << " has a matrix in " << count
                                  << " of the ops over these ids, expected in one";
    }
  }
  return mlir::success();
}

struct VerifyPlaced : impl::VerifyPlacedBase<VerifyPlaced> {
  using VerifyPlacedBase::VerifyPlacedBase;

  void runOnOperation() override {
    if (mlir::failed(check(getOperation()))) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::placed);
  }

  static mlir::LogicalResult check(mlir::ModuleOp module) {
    for (auto weight : module.getOps<kt::WeightOp>()) {
      if (mlir::failed(checkSymbol(weight, FormatKind::weight))) return mlir::failure();
    }
    for (auto bank : module.getOps<kt::ExpertBankOp>()) {
      if (mlir::failed(checkSymbol(bank, FormatKind::weight))) return mlir::failure();
      if (bank.getHotAttr()) return bank.emitOpError("has hot experts that are nowhere yet; run kt-split-experts");
    }
    for (auto entry : module.getOps<kt::EntryOp>()) {
      if (mlir::failed(checkSlots(entry))) return mlir::failure();
    }
    for (auto cache : module.getOps<kt::CacheOp>()) {
      if (mlir::failed(checkSymbol(cache, FormatKind::cache))) return mlir::failure();
    }
    mlir::LogicalResult result = mlir::success();
    forEachStep(module, [&](kt::StepOpInterface step) {
      if (mlir::succeeded(result)) result = checkStep(step);
    });
    return result;
  }
};

}  // namespace
}  // namespace ktc::compiler
