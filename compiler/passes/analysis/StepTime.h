// Predicted time of one step of an entry, from its shapes, formats and the rates of the target: the cost model of placement
// (placement/cost_model.h) for ops instead of modules. kt-schedule orders by it.
#pragma once

#include "dialects/kt/Kt.h"
#include "mlir/IR/SymbolTable.h"
#include "placement/product_time.h"
#include "placement/rates.h"

namespace ktc::compiler {

class StepTimes {
 public:
  StepTimes(mlir::ModuleOp module, const placement::Target& target, bool rowScales);

  // us of the step at the bounds of its entry; decode: in the middle of the longest context. Of experts the share of the pairs that a
  // part has, and as many matrices as independent choices touch.
  double us(kt::StepOpInterface step, kt::EntryOp entry) const;

 private:
  double product(kt::StepOpInterface step, llvm::StringRef device, double rows) const;
  double experts(kt::ExpertsOp op, double rows) const;
  double attention(kt::StepOpInterface step, kt::EntryOp entry, double rows) const;

  mlir::ModuleOp module_;
  mlir::SymbolTable symbols_;
  placement::Rates rates_;
  placement::CpuTarget cpu_;
  bool rowScales_;
};

}  // namespace ktc::compiler
