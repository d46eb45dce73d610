// kt-halve-batches
#include "compiler/passes/Passes.h"
#include "compiler/passes/Prerequisites.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/analysis/EntrySchedule.h"
#include "mlir/IR/IRMapping.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_HALVEBATCHES
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::Value;

constexpr llvm::StringLiteral kName = "kt-halve-batches";
constexpr kt::Dim kHalves[] = {kt::Dim::first_half, kt::Dim::second_half};

mlir::Type inHalf(mlir::Type type, kt::Dim half) { return kt::valueType(half, kt::columnsOf(type), kt::elementOf(type)); }

// An entry's body twice, once for each half of the tokens; what works on rows with logits stays once.
class Halver {
 public:
  explicit Halver(kt::EntryOp entry) : entry_(entry), builder_(entry) {}

  // Why the entry stays whole; empty: it can be cut.
  llvm::StringRef obstacle() {
    if (entry_.getKind() != kt::EntryKind::extend || !entry_.getBounds()) return "it is no extend entry";
    if (entry_.isCutInHalves()) return "it is cut already";
    if (entry_.getBounds()->getTokens() < 2) return "it has one token";
    unsigned selections = 0;
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) {
      auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (experts && experts.getStream()) return "experts pass through a GPU";
      if (step->getNumResults() == 0) return "a step has no result";
      const kt::Dim dim = kt::dimOf(step->getResult(0));
      if (dim == kt::Dim::sequences || llvm::any_of(step->getResults(), [&](Value v) { return kt::dimOf(v) != dim; }))
        return "a step has results of several kinds of rows";
      selections += llvm::isa<kt::SelectRowsOp>(step.getOperation());
    }
    return selections == 0 ? "nothing selects the rows with logits" : "";
  }

  // The entry cut in halves, behind the original, which stays as it is.
  kt::EntryOp cut() {
    builder_.setInsertionPointAfter(entry_);
    auto made = llvm::cast<kt::EntryOp>(builder_.insert(entry_->cloneWithoutRegions()));
    mlir::Block& block = made.getBody().emplaceBlock();
    addArguments(block);
    builder_.setInsertionPointToEnd(&block);
    for (mlir::Operation& op : entry_.getBody().front()) add(op);
    return made;
  }

 private:
  void addArguments(mlir::Block& block) {
    for (mlir::BlockArgument argument : entry_.getBody().getArguments()) {
      const bool tokens = kt::dimOf(argument) == kt::Dim::tokens;
      mlir::Type type = tokens ? inHalf(argument.getType(), kHalves[0]) : argument.getType();
      (tokens ? halves_[0] : whole_).map(argument, Value(block.addArgument(type, argument.getLoc())));
    }
    for (mlir::BlockArgument argument : entry_.getBody().getArguments()) {
      if (kt::dimOf(argument) != kt::Dim::tokens) continue;
      halves_[1].map(argument, Value(block.addArgument(inHalf(argument.getType(), kHalves[1]), argument.getLoc())));
    }
  }

  void add(mlir::Operation& op) {
    if (auto select = llvm::dyn_cast<kt::SelectRowsOp>(op)) {
      auto both = llvm::cast<kt::SelectRowsOp>(builder_.clone(op, whole_));
      both.getXMutable().assign(halves_[0].lookup(select.getX()));
      both.getSecondMutable().assign(halves_[1].lookup(select.getX()));
      return;
    }
    if (op.getNumResults() == 0 || kt::dimOf(op.getResult(0)) != kt::Dim::tokens) {
      builder_.clone(op, whole_);
      return;
    }
    for (unsigned half : {0u, 1u}) {
      mlir::Operation* clone = builder_.clone(op, halves_[half]);
      for (Value result : clone->getResults()) result.setType(inHalf(result.getType(), kHalves[half]));
      // the second half of a layer sees what the first one appended
      if (auto order = clone->getAttrOfType<mlir::IntegerAttr>("order"); order && llvm::isa<kt::SymbolEffectsOpInterface>(clone))
        clone->setAttr("order", builder_.getI64IntegerAttr(2 * order.getInt() + half));
    }
  }

  kt::EntryOp entry_;
  mlir::OpBuilder builder_;
  mlir::IRMapping whole_, halves_[2];
};

struct HalveBatches : impl::HalveBatchesBase<HalveBatches> {
  using HalveBatchesBase::HalveBatchesBase;
  HalveBatches(const placement::Target& target, bool byRow, double ratio) : targetObject(&target) {
    rowScales = byRow;
    below = ratio;
  }

  void runOnOperation() override {
    const mlir::FailureOr<placement::Target> machine = targetOfPass(getContext(), targetObject, target);
    if (mlir::failed(machine)) return signalPassFailure();
    for (auto entry : getOperation().getOps<kt::EntryOp>())
      if (mlir::failed(requirePlaces(entry))) return signalPassFailure();
    const StepTimes times(getOperation(), *machine, rowScales);
    unsigned cut = 0;
    for (auto entry : llvm::make_early_inc_range(getOperation().getOps<kt::EntryOp>())) cut += halve(entry, times);
    remarkCounts(getOperation(), kName, {{"cut", cut}});
  }

  // Returns whether the entry was replaced.
  bool halve(kt::EntryOp entry, const StepTimes& times) {
    if (entry.getKind() != kt::EntryKind::extend || entry.getBody().getOps<kt::StepOpInterface>().empty()) return false;
    const EntrySchedule whole(entry, times);
    if (whole.onOneDevice()) return false;
    Halver halver(entry);
    const std::string name = entry.getSymName().str();
    if (llvm::StringRef why = halver.obstacle(); !why.empty()) {
      mlir::remark::missed(entry.getLoc(), compiler::remark(kName, "Whole")) << (name + ": " + why).str();
      return false;
    }
    const double wholeUs = whole.best().us;
    kt::EntryOp cut = halver.cut();
    const double cutUs = EntrySchedule(cut, times).best().us;
    const bool gains = cutUs < below * wholeUs;
    if (gains) {
      mlir::remark::passed(entry.getLoc(), compiler::remark(kName, "Halves"))
          << (name + ": while one device computes a half of the tokens, the other one computes the other; what is read is read twice")
          << mlir::remark::metric("us", microseconds(cutUs)) << mlir::remark::metric("us as a whole", microseconds(wholeUs));
      entry.erase();
    } else {
      mlir::remark::missed(entry.getLoc(), compiler::remark(kName, "NoGain"))
          << (name + ": in halves it is predicted not to be fast enough") << mlir::remark::metric("us", microseconds(wholeUs))
          << mlir::remark::metric("us in halves", microseconds(cutUs));
      cut.erase();
    }
    return gains;
  }

  const placement::Target* targetObject = nullptr;
};

}  // namespace

std::unique_ptr<mlir::Pass> createHalveBatches(const placement::Target& target, std::uint32_t granule, double below) {
  return std::make_unique<HalveBatches>(target, granule == 0, below);
}

}  // namespace ktc::compiler
