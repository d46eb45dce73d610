// kt-schedule
#include "compiler/passes/Passes.h"
#include "compiler/passes/Prerequisites.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/analysis/EntrySchedule.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_SCHEDULE
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-schedule";

struct Schedule : impl::ScheduleBase<Schedule> {
  using ScheduleBase::ScheduleBase;
  Schedule(const placement::Target& target, bool byRow) : targetObject(&target) { rowScales = byRow; }

  void runOnOperation() override {
    const mlir::FailureOr<placement::Target> machine = targetOfPass(getContext(), targetObject, target);
    if (mlir::failed(machine)) return signalPassFailure();
    for (auto entry : getOperation().getOps<kt::EntryOp>())
      if (mlir::failed(requirePlaces(entry))) return signalPassFailure();
    const StepTimes times(getOperation(), *machine, rowScales);
    unsigned moved = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      EntrySchedule schedule(entry, times);
      if (entry.getBody().getOps<kt::StepOpInterface>().empty() || schedule.onOneDevice()) continue;
      const Order given = schedule.given(), best = schedule.best();
      const unsigned here = schedule.apply(best);
      moved += here;
      auto remark = mlir::remark::passed(entry.getLoc(), compiler::remark(kName, "Scheduled"));
      remark << (entry.getSymName() + ": by critical path, CPU and GPU beside each other").str()
             << mlir::remark::metric("moved", here) << mlir::remark::metric("us", microseconds(best.us))
             << mlir::remark::metric("us as given", microseconds(given.us));
    }
    remarkCounts(getOperation(), kName, {{"moved", moved}});
  }

  const placement::Target* targetObject = nullptr;
};

}  // namespace

std::unique_ptr<mlir::Pass> createSchedule(const placement::Target& target, std::uint32_t granule) {
  return std::make_unique<Schedule>(target, granule == 0);
}

}  // namespace ktc::compiler
