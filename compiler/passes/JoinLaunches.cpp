// kt-join-launches
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/analysis/LaunchGroups.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_JOINLAUNCHES
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-join-launches";

class EntryGroups {
 public:
  explicit EntryGroups(kt::EntryOp entry) : entry_(entry) {}

  bool marked() {
    return llvm::any_of(entry_.getBody().getOps<kt::StepOpInterface>(),
                        [](kt::StepOpInterface step) { return bool(step.getLaunchGroupAttr()); });
  }

  void run() {
    for (const StepsOfGpu& steps : stepsOfGpus(entry_)) {
      for (std::size_t first = 0; first < steps.size();) {
        const LaunchSequence* row = longest(llvm::ArrayRef(steps).drop_front(first));
        if (row == nullptr) {
          ++first;
          continue;
        }
        found_.push_back({steps[first], row});
        for (kt::StepOpInterface step : llvm::ArrayRef(steps).slice(first, row->count))
          members_[step] = found_.size() - 1;
        first += row->count;
      }
      sayMissed(steps);
    }
    number();
    sayJoined();
  }

  unsigned groups() const { return found_.size(); }
  unsigned saved() const {
    unsigned launches = 0;
    for (const Group& group : found_) launches += group.row->count - 1;
    return launches;
  }

 private:
  struct Group {
    kt::StepOpInterface first;
    const LaunchSequence* row;
  };

  // The longest sequence that these steps begin with.
  static const LaunchSequence* longest(llvm::ArrayRef<kt::StepOpInterface> steps) {
    const LaunchSequence* best = nullptr;
    for (const LaunchSequence& row : kLaunchSequences) {
      if (row.count > steps.size() || (best != nullptr && best->count >= row.count)) continue;
      if (sequenceOf(steps.take_front(row.count)) == &row) best = &row;
    }
    return best;
  }

  // Numbers ascend in the order of the entry, whatever devices there are.
  void number() {
    llvm::DenseMap<unsigned, unsigned> numbers;
    mlir::Builder builder(entry_.getContext());
    for (auto step : entry_.getBody().getOps<kt::StepOpInterface>()) {
      auto member = members_.find(step);
      if (member == members_.end()) continue;
      const unsigned number = numbers.try_emplace(member->second, numbers.size()).first->second;
      step.setLaunchGroupAttr(builder.getI64IntegerAttr(number));
    }
  }

  // Per entry and sequence, not per layer: "decode[1]: await, add_norm in one launch, groups=48".
  void sayJoined() {
    for (const LaunchSequence& row : kLaunchSequences) {
      llvm::SmallVector<mlir::Location> at;
      for (const Group& group : found_)
        if (group.row == &row) at.push_back(group.first->getLoc());
      if (at.empty()) continue;
      mlir::remark::passed(at.front(), remark(kName, "Joined"))
          << (entry_.getSymName() + ": " + namesOf(row.all()) + " in one launch").str()
          << mlir::remark::metric("groups", at.size());
    }
  }

  // Two steps that one launch could do if nothing lay between them.
  void sayMissed(const StepsOfGpu& steps) {
    for (std::size_t at = 0; at + 1 < steps.size(); ++at) {
      kt::StepOpInterface step = steps[at], next = steps[at + 1];
      llvm::SmallPtrSet<mlir::Operation*, 4> users(step->user_begin(), step->user_end());
      for (mlir::Operation* user : users) {
        auto other = llvm::dyn_cast<kt::StepOpInterface>(user);
        if (!other || other == next || (members_.contains(step) && members_.contains(other))) continue;
        if (sequenceOf({step, other}) == nullptr) continue;
        mlir::remark::missed(step->getLoc(), remark(kName, "Apart"))
            << (entry_.getSymName() + ": " + kt::stepName(next) + " lies between " + kt::stepName(step) + " and " +
                kt::stepName(other))
                   .str();
      }
    }
  }

  kt::EntryOp entry_;
  std::vector<Group> found_;
  llvm::DenseMap<mlir::Operation*, unsigned> members_;  // index in found_
};

struct JoinLaunches : impl::JoinLaunchesBase<JoinLaunches> {
  using JoinLaunchesBase::JoinLaunchesBase;

  void runOnOperation() override {
    unsigned groups = 0, saved = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      EntryGroups found(entry);
      if (entry.getKind() != kt::EntryKind::decode || found.marked()) continue;
      found.run();
      groups += found.groups();
      saved += found.saved();
    }
    remarkCounts(getOperation(), kName, {{"groups", groups}, {"launches saved", saved}});
  }
};

}  // namespace
}  // namespace ktc::compiler
