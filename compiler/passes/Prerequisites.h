// What several passes need before they begin.
#pragma once

#include "dialects/kt/Kt.h"
#include "placement/target.h"

namespace ktc::compiler {

// The target that a pass works for: `given` by the pipeline, else read from `path`, else this machine. Says itself why there is none.
mlir::FailureOr<placement::Target> targetOfPass(mlir::MLIRContext& context, const placement::Target* given, llvm::StringRef path);

// Fails, and says so at the first step of the entry that has no place.
mlir::LogicalResult requirePlaces(kt::EntryOp entry);

}  // namespace ktc::compiler
