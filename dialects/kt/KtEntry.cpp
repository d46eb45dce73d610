// The verifier of entries: what goes in and out by kind, and the order of accesses to caches.
#include "dialects/kt/Kt.h"
#include "llvm/ADT/MapVector.h"

namespace ktc::kt {
namespace {

struct Role {
  llvm::StringRef name;
  Dim dim;
  bool scores;  // f32 [dim, vocab]; otherwise i32 [dim, 1]
};

llvm::SmallVector<Role> argumentsOf(EntryKind kind) {
  switch (kind) {
    case EntryKind::generic: return {{"ids", Dim::tokens, false}, {"positions", Dim::tokens, false}};
    case EntryKind::extend:
    case EntryKind::decode:
      return {{"ids", Dim::tokens, false},
              {"positions", Dim::tokens, false},
              {"rows", Dim::rows, false},
              {"deferred", Dim::tokens, false}};
    case EntryKind::sample: return {{"logits", Dim::rows, true}};
  }
  return {};
}

// Only entries with late experts have the last one.
unsigned leastArguments(EntryKind kind) {
  return argumentsOf(kind).size() - (kind == EntryKind::extend || kind == EntryKind::decode);
}

Role resultOf(EntryKind kind) {
  switch (kind) {
    case EntryKind::generic: return {"next ids", Dim::tokens, false};
    case EntryKind::extend:
    case EntryKind::decode: return {"logits", Dim::rows, true};
    case EntryKind::sample: return {"next ids", Dim::rows, false};
  }
  return {};
}

bool plays(const Role& role, mlir::Type type) {
  if (!isValue(type) || dimOf(type) != role.dim) return false;
  return role.scores ? elementOf(type).isF32() : elementOf(type).isInteger(32) && columnsOf(type) == 1;
}

std::string describe(const Role& role) {
  std::string text = role.name.str() + (role.scores ? " tensor<?xVOCABxf32" : " tensor<?x1xi32");
  return text + ", #kt.dim<" + stringifyDim(role.dim).str() + ">>";
}

// A step is captured in a graph of the entry that belongs to the step's device.
mlir::LogicalResult checkGraphs(EntryOp entry) {
  mlir::ArrayAttr graphs = entry.getGraphsAttr();
  for (auto step : entry.getBody().getOps<StepOpInterface>()) {
    mlir::IntegerAttr index = step.getGraphAttr();
    if (!index) continue;
    int64_t count = graphs ? graphs.size() : 0;
    if (index.getInt() < 0 || index.getInt() >= count) {
      return step->emitOpError() << "graph: found " << index.getInt() << ", expected one of the " << count
                                 << " of the entry";
    }
    auto graph = llvm::cast<GraphAttr>(graphs[index.getInt()]);
    llvm::StringRef device = step.getPlaceAttr() ? step.getPlaceAttr().getDevice() : "";
    if (graph.getDevice() == device) continue;
    return step->emitOpError() << "graph: found \"" << graph.getName() << "\" of " << graph.getDevice()
                               << ", expected one of \"" << device << "\", where the step runs";
  }
  return mlir::success();
}

// Two accesses to one symbol conflict when one of them writes; then the later one has the higher order. Import hands
// out distinct orders, so any exchange or duplication of conflicting accesses leaves a descent somewhere.
mlir::LogicalResult checkOrder(EntryOp entry) {
  struct Last {
    SymbolEffectsOpInterface write, any;  // with the highest order so far
  };
  llvm::MapVector<mlir::Attribute, Last> lasts;
  for (auto op : entry.getBody().getOps<SymbolEffectsOpInterface>()) {
    for (const SymbolEffect& effect : op.getSymbolEffects()) {
      Last& last = lasts[effect.symbol];
      SymbolEffectsOpInterface before = effect.write ? last.any : last.write;
      if (before && op.getEffectOrder() <= before.getEffectOrder()) {
        mlir::InFlightDiagnostic diagnostic = op->emitOpError();
        diagnostic << "accesses " << effect.symbol << " with order " << op.getEffectOrder()
                   << " after an access with order " << before.getEffectOrder()
                   << " that it conflicts with; expected ascending orders, move it back before it";
        diagnostic.attachNote(before->getLoc()) << "the access before it";
        return diagnostic;
      }
      auto raise = [&](SymbolEffectsOpInterface& slot) {
        if (!slot || slot.getEffectOrder() < op.getEffectOrder()) slot = op;
      };
      raise(last.any);
      if (effect.write) raise(last.write);
    }
  }
  return mlir::success();
}

}  // namespace

void EntryOp::getAsmBlockArgumentNames(mlir::Region& region, mlir::OpAsmSetValueNameFn setName) {
  llvm::SmallVector<Role> roles = argumentsOf(getKind());
  for (auto [argument, role] : llvm::zip(region.getArguments(), roles)) setName(argument, role.name);
}

mlir::LogicalResult EntryOp::verifyRegions() {
  llvm::StringRef kind = stringifyEntryKind(getKind());
  if ((getKind() == EntryKind::generic) == (getBoundsAttr() != nullptr)) {
    return emitOpError() << "of kind " << kind
                         << (getBoundsAttr() ? " has bounds; expected none before kt-specialise-entries"
                                             : " has no bounds; expected bounds <tokens = …, rows = …, sequences = …>");
  }
  mlir::Block& block = getBody().front();
  llvm::SmallVector<Role> roles = argumentsOf(getKind());
  unsigned least = leastArguments(getKind());
  if (block.getNumArguments() < least || block.getNumArguments() > roles.size()) {
    mlir::InFlightDiagnostic diagnostic = emitOpError();
    diagnostic << "of kind " << kind << ": found " << block.getNumArguments() << " arguments, expected " << least;
    if (least != roles.size()) diagnostic << ", or " << roles.size() << " with late experts";
    return diagnostic;
  }
  for (auto [argument, role] : llvm::zip(block.getArguments(), roles)) {
    if (!plays(role, argument.getType())) {
      return emitOpError() << "argument " << argument.getArgNumber() << ": found " << argument.getType()
                           << ", expected " << describe(role);
    }
  }
  auto ret = llvm::dyn_cast<ReturnOp>(block.back());
  if (!ret) return emitOpError("does not end with kt.return");
  for (mlir::Operation& op : block) {
    if (&op != ret && !llvm::isa<StepOpInterface>(op)) {
      return op.emitOpError("is no step; expected only steps of kt in the body of an entry");
    }
  }
  if (mlir::failed(checkGraphs(*this))) return mlir::failure();
  Role result = resultOf(getKind());
  if (ret.getValues().size() != 1 || !plays(result, ret.getValues()[0].getType())) {
    return ret.emitOpError() << "of an entry of kind " << kind << ": expected one value, " << describe(result);
  }
  return checkOrder(*this);
}

}  // namespace ktc::kt
