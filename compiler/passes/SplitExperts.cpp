// kt-split-experts
#include <numeric>

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
    llvm::SmallVector<Part> parts;
    for (auto hot : bank.getHotAttr().getAsRange<kt::HotAttr>()) parts.push_back({hot, {}, {}});
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
    const std::size_t all = bank.getExperts();
    std::size_t count = 0;
    for (Part& part : parts) count += part.hot.getExperts().size();
    if (count == all && parts.size() == 1) {
      place(bank, parts[0].hot);
      for (kt::ExpertsOp op : ops) place(op, parts[0].hot);
    } else {
      mlir::DenseI32ArrayAttr rest = divide(bank, parts, count == all);
      for (kt::ExpertsOp op : ops) divide(op, parts, rest);
    }
    layers_ += 1;
    experts_ += count;
    for (Part& part : parts) {
      mlir::remark::passed(kt::withRule(bank.getLoc(), part.hot.getLine()), remark(kName, "Hot"))
          << (bank.getSymName() + ": on " + part.hot.getDevice() + " as " + part.hot.getWeights()).str()
          << mlir::remark::metric("hot", part.hot.getExperts().size()) << mlir::remark::metric("of", all);
    }
    return mlir::success();
  }

  unsigned layers() const { return layers_; }
  uint64_t experts() const { return experts_; }

 private:
  // The hot experts of one device.
  struct Part {
    kt::HotAttr hot;
    kt::ExpertBankOp bank;          // of its own
    mlir::DenseI32ArrayAttr slots;  // of every expert of the layer
  };

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

  // The hot matrices leave the bank for banks of their own, or are there a second time where experts move; slots say for every expert
  // where it went. Returns the slots of what stays in the bank: the cold ones, or where none are left the hot ones of the first device.
  mlir::DenseI32ArrayAttr divide(kt::ExpertBankOp bank, llvm::MutableArrayRef<Part> parts, bool allHot) {
    mlir::Builder builder(context_);
    const std::size_t all = bank.getExperts();
    llvm::SmallVector<int32_t> cold(all);
    std::iota(cold.begin(), cold.end(), 0);
    for (Part& part : parts) {
      llvm::ArrayRef<int32_t> ids = part.hot.getExperts().asArrayRef();
      llvm::erase_if(cold, [&](int32_t expert) { return llvm::is_contained(ids, expert); });
      part.slots = slotsOf(ids, all);
    }
    mlir::Operation* behind = bank;
    for (Part& part : parts.drop_front(allHot)) {
      part.bank = llvm::cast<kt::ExpertBankOp>(bank->clone());
      // one GPU needs no telling apart
      part.bank.setSymName((bank.getSymName() + ".hot" + (parts.size() == 1 ? "" : "-" + part.hot.getDevice())).str());
      keep(part.bank, part.hot.getExperts());
      place(part.bank, part.hot);
      symbols_.insert(part.bank, std::next(behind->getIterator()));
      behind = part.bank;
    }
    if (allHot) {
      keep(bank, parts[0].hot.getExperts());
      place(bank, parts[0].hot);
      return parts[0].slots;
    }
    if (moving_) {  // any of them may come back
      llvm::SmallVector<int32_t> slots(all, -1);
      for (int32_t expert : cold) slots[expert] = expert;
      return builder.getDenseI32ArrayAttr(slots);
    }
    keep(bank, builder.getDenseI32ArrayAttr(cold));
    return slotsOf(cold, all);
  }

  mlir::DenseI32ArrayAttr slotsOf(llvm::ArrayRef<int32_t> ids, std::size_t all) {
    llvm::SmallVector<int32_t> slots(all, -1);
    for (auto [slot, expert] : llvm::enumerate(ids)) slots[expert] = static_cast<int32_t>(slot);
    return mlir::Builder(context_).getDenseI32ArrayAttr(slots);
  }

  void keep(kt::ExpertBankOp bank, mlir::DenseI32ArrayAttr ids) {
    bank.setExpertsAttr(mlir::Builder(context_).getI64IntegerAttr(ids.size()));
    bank.setIdsAttr(ids);
  }

  // One op for each bank. `rest`: slots of the one that is there.
  void divide(kt::ExpertsOp op, llvm::MutableArrayRef<Part> parts, mlir::DenseI32ArrayAttr rest) {
    mlir::OpBuilder builder(op->getBlock(), std::next(op->getIterator()));
    llvm::SmallVector<mlir::Value> outs{op.getOut()};
    for (Part& part : parts) {
      if (!part.bank) continue;
      auto hotOp = llvm::cast<kt::ExpertsOp>(builder.clone(*op));
      hotOp.setBank(part.bank.getSymName());
      hotOp.setSlotsAttr(part.slots);
      place(hotOp, part.hot);
      outs.push_back(hotOp.getOut());
    }
    op.setSlotsAttr(rest);
    if (!parts.front().bank) place(op, parts.front().hot);
    // the sum of the layer takes terms more; whatever else uses the experts gets a sum of its own
    auto sum = op->hasOneUse() ? llvm::dyn_cast<kt::AddOp>(*op->user_begin()) : kt::AddOp();
    if (sum) {
      llvm::SmallVector<mlir::Value> terms(sum.getTerms());
      terms.insert(std::next(llvm::find(terms, op.getOut())), outs.begin() + 1, outs.end());
      sum.getTermsMutable().assign(terms);
      return;
    }
    auto all = kt::AddOp::create(builder, op.getLoc(), op.getOut().getType(), mlir::ValueRange(outs), op.getModule(),
                                 kt::PlaceAttr::get(context_, parts.front().hot.getDevice(), "f32", "f32"), {}, {}, {}, {}, {});
    op.getOut().replaceAllUsesExcept(all.getOut(), all);
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
