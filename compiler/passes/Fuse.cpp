// kt-fuse
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "dialects/kt/KtWalk.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/WalkPatternRewriteDriver.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_FUSE
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-fuse";
constexpr std::size_t kMostTerms = 8;  // of AddNormArgs (runtime/kernels/cuda/gpu_kernels.h)

// norm(add(terms)) to add_norm(terms), whose first result is the sum for everybody else. (A pattern of mlir-tblgen replaces the
// results of its root alone; here those of the sum, which is not the root, are replaced as well.)
struct AddIntoNorm : mlir::OpRewritePattern<kt::NormOp> {
  AddIntoNorm(mlir::MLIRContext* context, bool onCpu, unsigned& count)
      : OpRewritePattern(context), onCpu_(onCpu), count_(count) {}

  mlir::LogicalResult matchAndRewrite(kt::NormOp norm, mlir::PatternRewriter& rewriter) const override {
    auto add = norm.getX().getDefiningOp<kt::AddOp>();
    if (!add) return rewriter.notifyMatchFailure(norm, "x is no sum");
    kt::PlaceAttr place = norm.getPlaceAttr();
    if (!place || !add.getPlaceAttr() || place.getDevice() != add.getPlaceAttr().getDevice() ||
        add->getBlock() != norm->getBlock()) {
      return rewriter.notifyMatchFailure(norm, "sum and norm are in different places");
    }
    if ((place.getDevice() == "cpu" && !onCpu_) || add.getTerms().size() > kMostTerms) {
      return rewriter.notifyMatchFailure(norm, "no kernel takes it");
    }
    rewriter.setInsertionPoint(add);
    auto fused = kt::AddNormOp::create(rewriter, rewriter.getFusedLoc({norm.getLoc(), add.getLoc()}), norm.getOut().getType(),
                                       norm.getOut().getType(), norm.getKindAttr(), add.getTerms(), norm.getWeightAttr(),
                                       norm.getEpsAttr(), norm.getModule(), place, {}, {}, {}, {}, {});
    rewriter.replaceOp(norm, fused.getOut());
    rewriter.replaceOp(add, fused.getSum());
    ++count_;
    mlir::remark::passed(fused.getLoc(), remark(kName, "AddNorm"))
        << (kt::stepName(fused) + " takes the sum in front of it") << mlir::remark::metric("terms", fused.getTerms().size());
    return mlir::success();
  }

 private:
  bool onCpu_;
  unsigned& count_;
};

struct Fuse : impl::FuseBase<Fuse> {
  using FuseBase::FuseBase;

  void runOnOperation() override {
    unsigned addNorms = 0;
    mlir::RewritePatternSet patterns(&getContext());
    patterns.add<AddIntoNorm>(&getContext(), cpu, addNorms);
    const mlir::FrozenRewritePatternSet frozen(std::move(patterns));
    for (auto entry : getOperation().getOps<kt::EntryOp>()) mlir::walkAndApplyPatterns(entry, frozen);
    remarkCounts(getOperation(), kName, {{"add and norm", addNorms}});
  }
};

}  // namespace
}  // namespace ktc::compiler
