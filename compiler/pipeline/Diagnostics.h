// MLIR's diagnostics as one Status, and its remarks as lines.
#pragma once

#include <string>
#include <vector>

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "runtime/base/status.h"

namespace ktc::compiler {

// While it lives, diagnostics of the context come here and nowhere else. `remarks` (may be null) receives one line
// each.
class DiagnosticCollector {
 public:
  DiagnosticCollector(mlir::MLIRContext& context, std::vector<std::string>* remarks);

  // The first error: "policy.yaml:9:5 (qwen3_moe.yaml:40): text; remedy".
  Status status(StatusCode code, std::string remedy) const;

 private:
  std::string place_, text_;
  mlir::ScopedDiagnosticHandler handler_;
};

}  // namespace ktc::compiler
