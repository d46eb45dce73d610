// kt-split-experts
#include <set>

#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "placement/device_formats.h"
#include "runtime/formats/formats.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_SPLITEXPERTS
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-split-experts";

class Splitter {
 public:
  explicit Splitter(mlir::ModuleOp module)
      : context_(module.getContext()), symbols_(module), users_(usersOfWeights(module)), moving_(module->hasAttr(kt::kUpdate)) {}

  mlir::LogicalResult split(kt::ExpertBankOp bank) {
    kt::HotAttr hot = bank.getHotAttr();
    bank.removeHotAttr();
    llvm::SmallVector<kt::ExpertsOp> ops;
    for (kt::StepOpInterface step : users_.lookup(bank.getSymName())) {
      auto op = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (op && !op.getSlotsAttr() && !op.getLateAttr()) {
        ops.push_back(op);
        continue;
      }
      return step->emitOpError() << "uses @" << bank.getSymName()
                                 << ", which is to be split; expected kt.experts over all of it, as import makes it";
    }
    const std::size_t all = bank.getExperts(), count = hot.getExperts().size();
    if (count == all) {
      place(bank, hot);
      for (kt::ExpertsOp op : ops) place(op, hot);
    } else {
      auto [hotBank, hotSlots, coldSlots] = divide(bank, hot);
      for (kt::ExpertsOp op : ops) divide(op, hotBank, hot, hotSlots, coldSlots);
    }
    layers_ += 1;
    experts_ += count;
    mlir::remark::passed(kt::withRule(bank.getLoc(), hot.getLine()), remark(kName, "Hot"))
        << (bank.getSymName() + ": on " + hot.getDevice() + " as " + hot.getWeights()).str()
        << mlir::remark::metric("hot", count) << mlir::remark::metric("of", all);
    return mlir::success();
  }

  unsigned layers() const { return layers_; }
  uint64_t experts() const { return experts_; }

 private:
  void place(kt::ExpertBankOp bank, kt::HotAttr hot) {
    bank.setDevice(hot.getDevice());
    bank.setFormat(hot.getWeights());
    auto format = parse_format(hot.getWeights().str());
    bank.setPacking(to_string(format && placement::has_scales(*format) ? Packing::gpu_rows : Packing::row_major));
    if (hot.getGroup() != 0) {
      bank.setGroupAttr(mlir::Builder(context_).getI64IntegerAttr(hot.getGroup()));
    } else {
      bank.removeGroupAttr();
    }
    bank->setLoc(kt::withRule(bank.getLoc(), hot.getLine()));
  }
  void place(kt::ExpertsOp op, kt::HotAttr hot) {
    op.setPlaceAttr(kt::PlaceAttr::get(context_, hot.getDevice(), hot.getWeights(), hot.getActivations()));
    op->setLoc(kt::withRule(op.getLoc(), hot.getLine()));
  }

  // The hot matrices leave the bank for one of their own, or are there a second time where experts move; slots say for every expert where it went.
  std::tuple<kt::ExpertBankOp, mlir::DenseI32ArrayAttr, mlir::DenseI32ArrayAttr> divide(kt::ExpertBankOp bank,
                                                                                       kt::HotAttr hot) {
    std::set<int32_t> hotIds(hot.getExperts().asArrayRef().begin(), hot.getExperts().asArrayRef().end());
    llvm::SmallVector<int32_t> cold, hotSlots, coldSlots;
    for (int32_t expert = 0, next = 0; expert < int32_t(bank.getExperts()); ++expert) {
      const bool isHot = hotIds.count(expert) != 0;
      hotSlots.push_back(isHot ? next++ : -1);
      coldSlots.push_back(isHot ? -1 : moving_ ? expert : int32_t(cold.size()));
      if (!isHot) cold.push_back(expert);
    }
    mlir::Builder builder(context_);
    auto hotBank = llvm::cast<kt::ExpertBankOp>(bank->clone());
    hotBank.setSymName((bank.getSymName() + ".hot").str());
    hotBank.setExpertsAttr(builder.getI64IntegerAttr(hotIds.size()));
    hotBank.setIdsAttr(hot.getExperts());
    place(hotBank, hot);
    symbols_.insert(hotBank, std::next(bank->getIterator()));
    if (!moving_) {  // otherwise any of them may come back
      bank.setExpertsAttr(builder.getI64IntegerAttr(cold.size()));
      bank.setIdsAttr(builder.getDenseI32ArrayAttr(cold));
    }
    return {hotBank, builder.getDenseI32ArrayAttr(hotSlots), builder.getDenseI32ArrayAttr(coldSlots)};
  }

  void divide(kt::ExpertsOp op, kt::ExpertBankOp hotBank, kt::HotAttr hot, mlir::DenseI32ArrayAttr hotSlots,
              mlir::DenseI32ArrayAttr coldSlots) {
    mlir::OpBuilder builder(op->getBlock(), std::next(op->getIterator()));
    auto hotOp = llvm::cast<kt::ExpertsOp>(builder.clone(*op));
    hotOp.setBank(hotBank.getSymName());
    hotOp.setSlotsAttr(hotSlots);
    place(hotOp, hot);
    op.setSlotsAttr(coldSlots);
    // the sum of the layer takes one term more; whatever else uses the experts gets a sum of its own
    auto sum = op->hasOneUse() ? llvm::dyn_cast<kt::AddOp>(*op->user_begin()) : kt::AddOp();
    if (sum) {
      llvm::SmallVector<mlir::Value> terms(sum.getTerms());
      terms.insert(std::next(llvm::find(terms, op.getOut())), hotOp.getOut());
      sum.getTermsMutable().assign(terms);
      return;
    }
    auto both = kt::AddOp::create(builder, op.getLoc(), op.getOut().getType(),
                                  mlir::ValueRange{op.getOut(), hotOp.getOut()}, op.getModule(),
                                  kt::PlaceAttr::get(context_, hot.getDevice(), "f32", "f32"), {}, {}, {}, {}, {});
    op.getOut().replaceAllUsesExcept(both.getOut(), both);
  }

  mlir::MLIRContext* context_;
  mlir::SymbolTable symbols_;
  llvm::StringMap<Steps> users_;
  const bool moving_;  // experts change sides at run time
  unsigned layers_ = 0;
  uint64_t experts_ = 0;
};

struct SplitExperts : impl::SplitExpertsBase<SplitExperts> {
  using SplitExpertsBase::SplitExpertsBase;

  void runOnOperation() override {
    Splitter splitter(getOperation());
    for (auto bank : llvm::make_early_inc_range(getOperation().getOps<kt::ExpertBankOp>())) {
      if (!bank.getHotAttr()) continue;
      if (!enable) {
        bank.removeHotAttr();  // all of them stay where the cold ones are
      } else if (mlir::failed(splitter.split(bank))) {
        return signalPassFailure();
      }
    }
    remarkCounts(getOperation(), kName, {{"layers", splitter.layers()}, {"hot experts", splitter.experts()}});
  }
};

}  // namespace
}  // namespace ktc::compiler
