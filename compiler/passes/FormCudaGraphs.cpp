// kt-form-cuda-graphs
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/MapVector.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_FORMCUDAGRAPHS
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-form-cuda-graphs";

class EntryGraphs {
 public:
  explicit EntryGraphs(kt::EntryOp entry) : entry_(entry) {}

  unsigned run() {
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) {
      if (llvm::isa<kt::TransferOp>(step.getOperation())) {
        cut(step);
        continue;
      }
      llvm::StringRef device = step.getPlaceAttr() ? step.getPlaceAttr().getDevice() : "";
      if (device.empty() || device == "cpu") continue;
      auto [open, fresh] = open_.try_emplace(device, 0);
      if (fresh) open->second = create(device);
      step.setGraphAttr(mlir::Builder(entry_.getContext()).getI64IntegerAttr(open->second));
      ++steps_[open->second];
    }
    if (graphs_.empty()) return 0;
    entry_.setGraphsAttr(mlir::ArrayAttr::get(entry_.getContext(), graphs_));
    for (auto [graph, steps] : llvm::zip(graphs_, steps_)) {
      mlir::remark::passed(entry_.getLoc(), remark(kName, "Graph"))
          << llvm::cast<kt::GraphAttr>(graph).getName() << mlir::remark::metric("steps", steps);
    }
    return graphs_.size();
  }

 private:
  // The host takes part in a copy from or to the CPU; one between GPUs is ordered by events between two chains. Either way no chain
  // goes across it.
  void cut(kt::StepOpInterface step) {
    for (llvm::StringRef device : {step.operandDevice(), step.resultDevice()}) {
      if (!open_.erase(device)) continue;
      mlir::remark::missed(step->getLoc(), remark(kName, "Cut"))
          << (entry_.getSymName() + ": " + kt::stepName(step) + " cuts the chain of " + device).str();
    }
  }

  unsigned create(llvm::StringRef device) {
    unsigned before = llvm::count_if(graphs_, [&](mlir::Attribute graph) {
      return llvm::cast<kt::GraphAttr>(graph).getDevice() == device;
    });
    std::string name = (entry_.getSymName() + "." + device).str();
    if (before != 0) name += "#" + std::to_string(before + 1);
    graphs_.push_back(kt::GraphAttr::get(entry_.getContext(), name, device));
    steps_.push_back(0);
    return graphs_.size() - 1;
  }

  kt::EntryOp entry_;
  llvm::DenseMap<llvm::StringRef, unsigned> open_;  // by device: the graph that its next step joins
  llvm::SmallVector<mlir::Attribute> graphs_;
  llvm::SmallVector<unsigned> steps_;  // parallel to graphs_
};

struct FormCudaGraphs : impl::FormCudaGraphsBase<FormCudaGraphs> {
  using FormCudaGraphsBase::FormCudaGraphsBase;

  void runOnOperation() override {
    unsigned graphs = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      if (entry.getKind() != kt::EntryKind::extend && !entry.getGraphsAttr()) graphs += EntryGraphs(entry).run();
    }
    remarkCounts(getOperation(), kName, {{"graphs", graphs}});
  }
};

}  // namespace
}  // namespace ktc::compiler
