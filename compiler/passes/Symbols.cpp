#include "compiler/passes/Symbols.h"

namespace ktc::compiler {

llvm::StringMap<Steps> usersOfWeights(mlir::ModuleOp module) {
  llvm::StringMap<Steps> users;
  forEachStep(module, [&](kt::StepOpInterface step) {
    for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
      Steps& steps = users[ref.getValue()];
      if (steps.empty() || steps.back() != step) steps.push_back(step);
    }
  });
  return users;
}

llvm::StringSet<> usedCaches(mlir::ModuleOp module) {
  llvm::StringSet<> used;
  forEachStep(module, [&](kt::StepOpInterface step) {
    if (auto effects = llvm::dyn_cast<kt::SymbolEffectsOpInterface>(step.getOperation())) {
      for (const kt::SymbolEffect& effect : effects.getSymbolEffects()) used.insert(effect.symbol.getValue());
    }
  });
  return used;
}

mlir::Operation* findUnused(mlir::ModuleOp module) {
  llvm::StringMap<Steps> weights = usersOfWeights(module);
  llvm::StringSet<> caches = usedCaches(module);
  for (mlir::Operation& op : *module.getBody()) {
    bool isWeight = llvm::isa<kt::WeightOp, kt::ExpertBankOp>(op), isState = llvm::isa<kt::CacheOp, kt::TableOp>(op);
    llvm::StringRef name = isWeight || isState ? mlir::SymbolTable::getSymbolName(&op).getValue() : "";
    if ((isWeight && !weights.contains(name)) || (isState && !caches.contains(name))) return &op;
  }
  return nullptr;
}

}  // namespace ktc::compiler
