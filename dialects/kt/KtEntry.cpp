// The verifier of entries: what goes in and out by kind, and the order of accesses to caches.
#include "dialects/kt/Kt.h"
#include "llvm/ADT/MapVector.h"

namespace ktc::kt {
namespace {

struct Role {
  llvm::StringRef name;
  BufferRole role;
  Dim dim;
  bool scores = false;  // f32 [dim, vocab]; otherwise i32 [dim, 1]
};

bool isCut(EntryKind kind, mlir::Block& block) {
  return kind == EntryKind::extend && block.getNumArguments() > 0 && isValue(block.getArgument(0).getType()) &&
         dimOf(block.getArgument(0)) == Dim::first_half;
}

// Of a body with so many arguments: only entries with late experts have `deferred`.
llvm::SmallVector<Role> argumentsOf(EntryKind kind, bool cut, unsigned count) {
  const Dim first = cut ? Dim::first_half : Dim::tokens;
  const Role ids{"ids", BufferRole::ids, first}, positions{"positions", BufferRole::positions, first},
      rows{"rows", BufferRole::output_rows, Dim::rows}, deferred{"deferred", BufferRole::deferred, first};
  switch (kind) {
    case EntryKind::generic: return {ids, positions};
    case EntryKind::extend:
    case EntryKind::decode: {
      llvm::SmallVector<Role> roles{ids, positions, rows};
      const bool late = count > (cut ? 5 : 3);
      if (late) roles.push_back(deferred);
      if (!cut) return roles;
      for (Role role : {ids, positions, deferred}) {
        role.dim = Dim::second_half;
        if (role.role != BufferRole::deferred || late) roles.push_back(role);
      }
      return roles;
    }
    case EntryKind::sample: return {{"logits", BufferRole::logits, Dim::rows, true}};
  }
  return {};
}

Role resultOf(EntryKind kind) {
  switch (kind) {
    case EntryKind::generic: return {"next ids", BufferRole::next_ids, Dim::tokens};
    case EntryKind::extend:
    case EntryKind::decode: return {"logits", BufferRole::logits, Dim::rows, true};
    case EntryKind::sample: return {"next ids", BufferRole::next_ids, Dim::rows};
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

bool EntryOp::isCutInHalves() { return isCut(getKind(), getBody().front()); }

BufferRole roleOf(mlir::BlockArgument argument) {
  mlir::Block* block = argument.getOwner();
  const EntryKind kind = llvm::cast<EntryOp>(block->getParentOp()).getKind();
  return argumentsOf(kind, isCut(kind, *block), block->getNumArguments())[argument.getArgNumber()].role;
}

void EntryOp::getAsmBlockArgumentNames(mlir::Region& region, mlir::OpAsmSetValueNameFn setName) {
  if (region.empty()) return;
  mlir::Block& block = region.front();
  llvm::SmallVector<Role> roles = argumentsOf(getKind(), isCut(getKind(), block), block.getNumArguments());
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
  const bool cut = isCut(getKind(), block);
  llvm::SmallVector<Role> roles = argumentsOf(getKind(), cut, block.getNumArguments());
  if (block.getNumArguments() != roles.size()) {
    const std::size_t least = argumentsOf(getKind(), cut, 0).size(), most = argumentsOf(getKind(), cut, UINT_MAX).size();
    mlir::InFlightDiagnostic diagnostic = emitOpError();
    diagnostic << "of kind " << kind << ": found " << block.getNumArguments() << " arguments, expected " << least;
    if (least != most) diagnostic << ", or " << most << " with late experts";
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
