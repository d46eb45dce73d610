// Which steps use which symbols; what passes and verifiers ask again and again.
#pragma once

#include "dialects/kt/Kt.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace ktc::compiler {

using Steps = llvm::SmallVector<kt::StepOpInterface, 4>;

// Every step of every entry, in order.
template <typename Callback>
void forEachStep(mlir::ModuleOp module, Callback callback) {
  for (auto entry : module.getOps<kt::EntryOp>()) {
    for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) callback(step);
  }
}

// Users of weights and banks, by name; symbols without users are absent.
llvm::StringMap<Steps> usersOfWeights(mlir::ModuleOp module);

// Names of the caches that steps access.
llvm::StringSet<> usedCaches(mlir::ModuleOp module);

// A weight, bank, cache or table that nothing uses, or null.
mlir::Operation* findUnused(mlir::ModuleOp module);

}  // namespace ktc::compiler
