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

  void run() {
    for (mlir::Operation& op : llvm::make_early_inc_range(entry_.getBody().front())) {
      if (auto experts = llvm::dyn_cast<kt::ExpertsOp>(op)) stream(experts);
      if (auto sum = llvm::dyn_cast<kt::AddOp>(op)) follow(sum);
    }
  }
  unsigned streamed() const { return streamed_; }
  unsigned shared() const { return shared_; }

 private:
  static llvm::StringRef deviceOf(mlir::Value value) {
    auto maker = value.getDefiningOp<kt::StepOpInterface>();
    return maker && maker.getPlaceAttr() ? maker.resultDevice() : llvm::StringRef();
  }

  void stream(kt::ExpertsOp op) {
    kt::PlaceAttr place = op.getPlaceAttr();
    llvm::StringRef gpu = deviceOf(op.getIds());
    if (!place || place.getDevice() != "cpu" || gpu.empty() || gpu == "cpu" || gpu != deviceOf(op.getX()) || op.getShareAttr()) return;
    llvm::StringRef activations = place.getActivations() == "f32" ? "f32" : "bf16";
    auto bank = mlir::SymbolTable::lookupNearestSymbolFrom<kt::ExpertBankOp>(op, op.getBankAttr());
    const bool shares = bank && bank.getShareAttr() && !op.getLateAttr();
    if (shares) share(op, bank.getShareAttr(), gpu);
    op.setPlaceAttr(kt::PlaceAttr::get(op.getContext(), gpu, place.getWeights(), activations));
    op.setStream(true);
    moved_.insert(op);
    ++streamed_;
    mlir::remark::passed(op.getLoc(), remark(kName, "Streamed"))
        << (entry_.getSymName() + ": " + kt::stepName(op) + " through " + gpu + " as " + place.getWeights() +
            (shares ? ", the CPU takes some" : ""))
               .str();
  }

  // The op once more on the CPU; which of them computes an expert is for the step to say.
  void share(kt::ExpertsOp op, kt::ShareAttr rates, llvm::StringRef gpu) {
    op.setShareAttr(rates);
    mlir::OpBuilder builder(op->getBlock(), std::next(op->getIterator()));
    auto onCpu = llvm::cast<kt::ExpertsOp>(builder.clone(*op));
    ++shared_;
    auto sum = op->hasOneUse() ? llvm::dyn_cast<kt::AddOp>(*op->user_begin()) : kt::AddOp();
    if (sum && sum.getPlaceAttr() && sum.getPlaceAttr().getDevice() == gpu) {
      llvm::SmallVector<mlir::Value> terms(sum.getTerms());
      terms.insert(std::next(llvm::find(terms, op.getOut())), onCpu.getOut());
      sum.getTermsMutable().assign(terms);
      return;
    }
    auto both = kt::AddOp::create(builder, op.getLoc(), op.getOut().getType(), mlir::ValueRange{op.getOut(), onCpu.getOut()},
                                  op.getModule(), kt::PlaceAttr::get(op.getContext(), gpu, "f32", "f32"), {}, {}, {}, {}, {});
    op.getOut().replaceAllUsesExcept(both.getOut(), both);
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
  unsigned streamed_ = 0, shared_ = 0;
};

struct StreamExperts : impl::StreamExpertsBase<StreamExperts> {
  using StreamExpertsBase::StreamExpertsBase;

  void runOnOperation() override {
    if (chunk == 0) return;
    auto choice = getOperation()->getAttrOfType<kt::StreamAttr>(kt::kStream);
    mlir::Location at = choice ? kt::withRule(getOperation().getLoc(), choice.getLine()) : getOperation().getLoc();
    if (choice && choice.getFrom() == 0) {
      mlir::remark::missed(at, remark(kName, "TooSlow")) << choice.getWhy().str();
      return;
    }
    unsigned streamed = 0, shared = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      const bool isLong = entry.getBounds() && entry.getBounds()->getTokens() >= chunk;
      if (entry.getKind() != kt::EntryKind::extend || !isLong) continue;
      EntryStreams streams(entry);
      streams.run();
      streamed += streams.streamed();
      shared += streams.shared();
      if (streams.streamed() == 0 || !choice) continue;
      entry.setFrom(choice.getFrom());
      mlir::remark::passed(at, remark(kName, "Threshold")) << (entry.getSymName() + ": " + choice.getWhy()).str();
    }
    remarkCounts(getOperation(), kName, {{"streamed", streamed}, {"shared", shared}, {"from", choice ? choice.getFrom() : 0}});
  }
};

}  // namespace
}  // namespace ktc::compiler
