#include "compiler/passes/Prerequisites.h"

namespace ktc::compiler {

mlir::FailureOr<placement::Target> targetOfPass(mlir::MLIRContext& context, const placement::Target* given, llvm::StringRef path) {
  if (given != nullptr) return *given;
  auto loaded = path.empty() ? Expected<placement::Target>(placement::host_target()) : placement::read_target(path.str());
  if (!loaded.ok()) return mlir::emitError(mlir::UnknownLoc::get(&context)) << loaded.status().message();
  return *std::move(loaded);
}

mlir::LogicalResult requirePlaces(kt::EntryOp entry) {
  for (auto step : entry.getBody().getOps<kt::StepOpInterface>())
    if (!step.getPlaceAttr()) return step->emitOpError("has no place; run kt-place first");
  return mlir::success();
}

}  // namespace ktc::compiler
