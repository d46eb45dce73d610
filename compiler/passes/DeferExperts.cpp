// kt-defer-experts
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/MapVector.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_DEFEREXPERTS
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-defer-experts";

// The experts of one MoE layer: ops that share a router's choice, and the sum that takes their results.
struct Layer {
  llvm::SmallVector<kt::ExpertsOp> ops;
  kt::AddOp sum;
};

class EntryDeferral {
 public:
  EntryDeferral(kt::EntryOp entry, kt::DeferAttr defer) : entry_(entry), defer_(defer) {}

  mlir::LogicalResult run() {
    if (mlir::failed(findLayers())) return mlir::failure();
    for (std::size_t l = 0; l + 1 < layers_.size(); ++l) {
      for (kt::ExpertsOp op : layers_[l].ops) {
        if (defer_.getAll() || op.getPlaceAttr().getDevice() == "cpu") defer(op, layers_[l + 1]);
      }
    }
    return mlir::success();
  }
  unsigned deferred() const { return deferred_; }

 private:
  mlir::LogicalResult findLayers() {
    llvm::MapVector<mlir::Value, Layer> byChoice;
    for (auto op : entry_.getBody().getOps<kt::ExpertsOp>()) {
      if (!op.getPlaceAttr()) return op.emitOpError("has no place; run kt-place first");
      Layer& layer = byChoice[op.getIds()];
      auto sum = op->hasOneUse() ? llvm::dyn_cast<kt::AddOp>(*op->user_begin()) : kt::AddOp();
      if (!sum || (layer.sum && layer.sum != sum)) {
        return op.emitOpError("is not one term of its layer's sum, so that late experts have no place to come to; "
                              "expected kt.add of all experts of a layer");
      }
      layer.sum = sum;
      layer.ops.push_back(op);
    }
    for (auto& [ids, layer] : byChoice) layers_.push_back(layer);
    return mlir::success();
  }

  // One op becomes two; the late one's result is a part of what the next layer gets on the same device.
  void defer(kt::ExpertsOp op, Layer& next) {
    mlir::OpBuilder builder(op->getBlock(), std::next(op->getIterator()));
    auto late = llvm::cast<kt::ExpertsOp>(builder.clone(*op));
    setPart(op, kt::ExpertsPart::in_time);
    setPart(late, kt::ExpertsPart::late);
    ++deferred_;
    llvm::StringRef device = op.getPlaceAttr().getDevice();
    auto same = llvm::find_if(next.ops, [&](kt::ExpertsOp other) { return other.getPlaceAttr().getDevice() == device; });
    if (same == next.ops.end()) {
      llvm::SmallVector<mlir::Value> terms(next.sum.getTerms());
      terms.push_back(late.getOut());
      next.sum.getTermsMutable().assign(terms);
    } else {
      builder.setInsertionPointAfter(*same);
      auto both = kt::AddOp::create(builder, same->getLoc(), late.getOut().getType(),
                                    mlir::ValueRange{same->getOut(), late.getOut()}, same->getModule(),
                                    kt::PlaceAttr::get(op.getContext(), device, "f32", "f32"), {}, {}, {}, {}, {});
      same->getOut().replaceAllUsesExcept(both.getOut(), both);
    }
    mlir::remark::passed(kt::withRule(op.getLoc(), defer_.getLine()), remark(kName, "Deferred"))
        << (entry_.getSymName() + ": " + kt::stepName(late) + " on " + device).str()
        << mlir::remark::metric("late", defer_.getMaxPerToken()) << mlir::remark::metric("of", kt::columnsOf(op.getIds()));
  }

  void setPart(kt::ExpertsOp op, kt::ExpertsPart part) {
    op.getDeferredMutable().assign(flags());
    op.setLateAttr(kt::LateAttr::get(op.getContext(), defer_.getMaxPerToken(), part, defer_.getAll()));
  }

  // The argument that says of every token whether its late experts are.
  mlir::Value flags() {
    mlir::Block& block = entry_.getBody().front();
    if (!flags_) {
      flags_ = block.addArgument(kt::valueType(kt::Dim::tokens, 1, mlir::IntegerType::get(entry_.getContext(), 32)),
                                 entry_.getLoc());
    }
    return flags_;
  }

  kt::EntryOp entry_;
  kt::DeferAttr defer_;
  std::vector<Layer> layers_;
  mlir::Value flags_;
  unsigned deferred_ = 0;
};

struct DeferExperts : impl::DeferExpertsBase<DeferExperts> {
  using DeferExpertsBase::DeferExpertsBase;

  void runOnOperation() override {
    auto defer = getOperation()->getAttrOfType<kt::DeferAttr>(kt::kDefer);
    if (!defer || defer.getMaxPerToken() == 0) return;
    if (!enable) {
      getOperation()->removeAttr(kt::kDefer);
      return;
    }
    unsigned deferred = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      if (entry.getKind() != kt::EntryKind::extend && entry.getKind() != kt::EntryKind::decode) continue;
      bool before = llvm::any_of(entry.getBody().getOps<kt::ExpertsOp>(),
                                 [](kt::ExpertsOp op) { return op.getLateAttr() != nullptr; });
      if (before) continue;  // twice is as once
      EntryDeferral deferral(entry, defer);
      if (mlir::failed(deferral.run())) return signalPassFailure();
      deferred += deferral.deferred();
    }
    remarkCounts(getOperation(), kName, {{"deferred", deferred}});
  }
};

}  // namespace
}  // namespace ktc::compiler
