// kt-schedule
#include <set>

#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/SetVector.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_SCHEDULE
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-schedule";

// What comes first of the steps whose operands exist. Steps of one rank keep their order, so a body on one device keeps its.
enum Rank : unsigned {
  toCpu,    // the CPU is idle until it has something to do
  onCpu,    // and then starts at once
  onGpu,    // while the GPU goes on with what needs nothing from it
  fromCpu,  // and waits last
};

Rank rankOf(kt::StepOpInterface step) {
  // a record without pairs hands nothing over: it goes with its await
  if (llvm::isa<kt::SubmitOp>(step.getOperation()) && step->use_empty()) return fromCpu;
  const bool from = step.operandDevice() == "cpu", to = step.resultDevice() == "cpu";
  return from && to ? onCpu : from ? fromCpu : to ? toCpu : onGpu;
}

class EntrySchedule {
 public:
  explicit EntrySchedule(kt::EntryOp entry) : block_(entry.getBody().front()) {
    for (auto step : block_.getOps<kt::StepOpInterface>()) {
      numbers_[step] = steps_.size();
      steps_.push_back(step);
    }
    after_.resize(steps_.size());
    waits_.resize(steps_.size(), 0);
  }

  // Returns how many steps have another predecessor than before.
  unsigned run() {
    for (kt::StepOpInterface step : steps_) addEdges(step);
    addCacheEdges();
    addRecordEdges();
    addLateEdges();
    std::set<std::pair<unsigned, std::size_t>> ready;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (waits_[i] == 0) ready.insert({rankOf(steps_[i]), i});
    }
    unsigned moved = 0;
    std::size_t expected = 0;  // were nothing moved
    mlir::Operation* end = block_.getTerminator();
    while (!ready.empty()) {
      std::size_t next = ready.begin()->second;
      ready.erase(ready.begin());
      moved += next != expected;
      expected = next + 1;
      steps_[next]->moveBefore(end);
      for (std::size_t user : after_[next]) {
        if (--waits_[user] == 0) ready.insert({rankOf(steps_[user]), user});
      }
    }
    return moved;
  }

 private:
  void edge(mlir::Operation* first, mlir::Operation* then) {
    auto a = numbers_.find(first), b = numbers_.find(then);
    if (a == numbers_.end() || b == numbers_.end() || a->second == b->second) return;
    after_[a->second].push_back(b->second);
    ++waits_[b->second];
  }

  void addEdges(kt::StepOpInterface step) {
    for (mlir::Value operand : step->getOperands()) {
      if (mlir::Operation* maker = operand.getDefiningOp()) edge(maker, step);
    }
  }

  // Accesses to one cache keep their order.
  void addCacheEdges() {
    llvm::DenseMap<mlir::Attribute, mlir::Operation*> last;
    for (kt::StepOpInterface step : steps_) {
      auto effects = llvm::dyn_cast<kt::SymbolEffectsOpInterface>(step.getOperation());
      if (!effects) continue;
      for (const kt::SymbolEffect& effect : effects.getSymbolEffects()) {
        if (!effect.write) continue;
        mlir::Operation*& before = last[effect.symbol];
        if (before) edge(before, step);
        before = step;
      }
    }
  }

  void addRecordEdges() {
    llvm::DenseMap<int64_t, mlir::Operation*> submits;
    for (kt::StepOpInterface step : steps_) {
      if (auto submit = llvm::dyn_cast<kt::SubmitOp>(step.getOperation())) submits[submit.getRecord()] = submit;
      auto await = llvm::dyn_cast<kt::AwaitOp>(step.getOperation());
      if (mlir::Operation* submit = await ? submits.lookup(await.getRecord()) : nullptr) edge(submit, await);
    }
  }

  // The CPU's late experts come behind the delivery of what is in time: the GPU waits for that alone.
  void addLateEdges() {
    for (kt::StepOpInterface step : steps_) {
      auto late = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (!late || !late.getLateAttr() || late.getLateAttr().getPart() != kt::ExpertsPart::late ||
          rankOf(step) != onCpu) {
        continue;
      }
      for (mlir::Operation* user : late.getIds().getUsers()) {
        auto inTime = llvm::dyn_cast<kt::ExpertsOp>(user);
        if (!inTime || inTime == late || inTime.getBankAttr() != late.getBankAttr()) continue;
        if (mlir::Operation* delivery = deliveryOf(inTime.getOut())) edge(delivery, late);
      }
    }
  }

  // What takes the value to a GPU, perhaps in a sum; null: nothing does.
  static mlir::Operation* deliveryOf(mlir::Value value) {
    llvm::SetVector<mlir::Operation*> users(value.user_begin(), value.user_end());
    for (std::size_t i = 0; i < users.size(); ++i) {
      auto step = llvm::dyn_cast<kt::StepOpInterface>(users[i]);
      if (step && rankOf(step) == fromCpu) return users[i];
      if (step && llvm::isa<kt::AddOp>(users[i]) && rankOf(step) == onCpu) users.insert(users[i]->user_begin(), users[i]->user_end());
    }
    return nullptr;
  }

  mlir::Block& block_;
  std::vector<kt::StepOpInterface> steps_;
  llvm::DenseMap<mlir::Operation*, std::size_t> numbers_;
  std::vector<llvm::SmallVector<std::size_t, 4>> after_;  // by step
  std::vector<unsigned> waits_;                           // for how many
};

struct Schedule : impl::ScheduleBase<Schedule> {
  using ScheduleBase::ScheduleBase;

  void runOnOperation() override {
    unsigned moved = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
        if (step.getPlaceAttr()) continue;
        step->emitOpError("has no place; run kt-place first");
        return signalPassFailure();
      }
      unsigned here = EntrySchedule(entry).run();
      moved += here;
      if (here == 0) continue;
      mlir::remark::passed(entry.getLoc(), remark(kName, "Scheduled"))
          << (entry.getSymName() + ": the CPU's work as early as it can be, waits for it last").str()
          << mlir::remark::metric("moved", here);
    }
    remarkCounts(getOperation(), kName, {{"moved", moved}});
  }
};

}  // namespace
}  // namespace ktc::compiler
