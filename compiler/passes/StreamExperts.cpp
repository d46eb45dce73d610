// kt-stream-experts
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_STREAMEXPERTS
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-stream-experts";

class EntryStreams {
 public:
  explicit EntryStreams(kt::EntryOp entry) : entry_(entry) {}

  unsigned run() {
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) {
      if (auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation())) stream(experts);
      if (auto sum = llvm::dyn_cast<kt::AddOp>(step.getOperation())) follow(sum);
    }
    return streamed_;
  }

 private:
  static llvm::StringRef deviceOf(mlir::Value value) {
    auto maker = value.getDefiningOp<kt::StepOpInterface>();
    return maker && maker.getPlaceAttr() ? maker.resultDevice() : llvm::StringRef();
  }

  void stream(kt::ExpertsOp op) {
    kt::PlaceAttr place = op.getPlaceAttr();
    llvm::StringRef gpu = deviceOf(op.getIds());
    if (!place || place.getDevice() != "cpu" || gpu.empty() || gpu == "cpu" || gpu != deviceOf(op.getX())) return;
    llvm::StringRef activations = place.getActivations() == "f32" ? "f32" : "bf16";
    op.setPlaceAttr(kt::PlaceAttr::get(op.getContext(), gpu, place.getWeights(), activations));
    op.setStream(true);
    moved_.insert(op);
    ++streamed_;
    mlir::remark::passed(op.getLoc(), remark(kName, "Streamed"))
        << (entry_.getSymName() + ": " + kt::stepName(op) + " through " + gpu + " as " + place.getWeights()).str();
  }

  // A sum of what was the CPU's alone.
  void follow(kt::AddOp sum) {
    kt::PlaceAttr place = sum.getPlaceAttr();
    if (!place || place.getDevice() != "cpu") return;
    if (!llvm::all_of(sum.getTerms(), [&](mlir::Value term) { return moved_.contains(term.getDefiningOp()); })) return;
    sum.setPlaceAttr(kt::PlaceAttr::get(sum.getContext(), deviceOf(sum.getTerms().front()), place.getWeights(), place.getActivations()));
    moved_.insert(sum);
  }

  kt::EntryOp entry_;
  llvm::SmallPtrSet<mlir::Operation*, 16> moved_;
  unsigned streamed_ = 0;
};

struct StreamExperts : impl::StreamExpertsBase<StreamExperts> {
  using StreamExpertsBase::StreamExpertsBase;

  void runOnOperation() override {
    if (chunk == 0) return;
    unsigned streamed = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      const bool isLong = entry.getBounds() && entry.getBounds()->getTokens() >= chunk;
      if (entry.getKind() == kt::EntryKind::extend && isLong) streamed += EntryStreams(entry).run();
    }
    remarkCounts(getOperation(), kName, {{"streamed", streamed}});
  }
};

}  // namespace
}  // namespace ktc::compiler
