// Remarks of the passes: ktc compile --remarks, ktc-opt --remarks-filter.
#pragma once

#include <algorithm>
#include <cmath>

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Remarks.h"

namespace ktc::compiler {

inline mlir::remark::RemarkOpts remark(llvm::StringRef pass, llvm::StringRef name) {
  return mlir::remark::RemarkOpts::name(name).category(pass);
}

// A predicted time as a metric.
inline uint64_t microseconds(double us) { return static_cast<uint64_t>(std::llround(std::min(us, 1e15))); }

// What a pass did to the whole module, in numbers: "kt-place: Counts: copies 1".
inline void remarkCounts(mlir::ModuleOp module, llvm::StringRef pass,
                         std::initializer_list<std::pair<llvm::StringRef, uint64_t>> counts) {
  auto remark = mlir::remark::analysis(module.getLoc(), compiler::remark(pass, "Counts"));
  for (const auto& [name, count] : counts) remark << mlir::remark::metric(name, count);
}

}  // namespace ktc::compiler
