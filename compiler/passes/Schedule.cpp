// kt-schedule
#include <cmath>

#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/analysis/EntrySchedule.h"
#include "placement/target.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_SCHEDULE
#include "compiler/passes/Passes.h.inc"

namespace {

constexpr llvm::StringLiteral kName = "kt-schedule";

struct Schedule : impl::ScheduleBase<Schedule> {
  using ScheduleBase::ScheduleBase;
  Schedule(const placement::Target& target, bool byRow) : targetObject(&target) { rowScales = byRow; }

  void runOnOperation() override {
    placement::Target read;
    if (!targetObject) {
      auto loaded = target.empty() ? Expected<placement::Target>(placement::host_target()) : placement::read_target(target.getValue());
      if (!loaded.ok()) {
        mlir::emitError(mlir::UnknownLoc::get(&getContext())) << loaded.status().message();
        return signalPassFailure();
      }
      read = *loaded;
    }
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
        if (step.getPlaceAttr()) continue;
        step->emitOpError("has no place; run kt-place first");
        return signalPassFailure();
      }
    }
    const StepTimes times(getOperation(), targetObject ? *targetObject : read, rowScales);
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

  static uint64_t microseconds(double us) { return static_cast<uint64_t>(std::llround(std::min(us, 1e15))); }

  const placement::Target* targetObject = nullptr;
};

}  // namespace

std::unique_ptr<mlir::Pass> createSchedule(const placement::Target& target, std::uint32_t granule) {
  return std::make_unique<Schedule>(target, granule == 0);
}

}  // namespace ktc::compiler
