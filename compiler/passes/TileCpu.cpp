// kt-tile-cpu
#include "compiler/passes/Passes.h"
#include "compiler/passes/Prerequisites.h"
#include "compiler/passes/Symbols.h"
#include "compiler/passes/analysis/Workspace.h"
#include "placement/tiles.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_TILECPU
#include "compiler/passes/Passes.h.inc"

namespace {

using placement::Target;

struct TileCpu : impl::TileCpuBase<TileCpu> {
  using TileCpuBase::TileCpuBase;
  TileCpu(const Target& target, bool chooseThresholds, uint32_t granule) : targetObject(&target) {
    thresholds = chooseThresholds;
    xGranule = hGranule = granule;
  }

  void runOnOperation() override {
    const mlir::FailureOr<Target> machine = targetOfPass(getContext(), targetObject, target);
    if (mlir::failed(machine)) return signalPassFailure();
    const placement::CpuTarget& cpu = machine->cpu;
    forEachStep(getOperation(), [&](kt::StepOpInterface step) {
      if (hasPanels(step)) tile(step, cpu);
    });
  }

  void tile(kt::StepOpInterface step, const placement::CpuTarget& cpu) {
    mlir::Operation* op = step;
    uint32_t h = 0, rows = UINT32_MAX;
    for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
      mlir::Operation* symbol = mlir::SymbolTable::lookupNearestSymbolFrom(op, ref);
      if (auto bank = llvm::dyn_cast<kt::ExpertBankOp>(symbol)) {
        bank.setPacking(to_string(Packing::panel_paired));
        rows = std::min(rows, threshold(cpu, bank));
        h = hGranule;
      } else if (auto weight = llvm::cast<kt::WeightOp>(symbol); !weight.isVector()) {
        auto mlp = llvm::dyn_cast<kt::MlpOp>(op);
        if (mlp) h = hGranule;
        weight.setPacking(to_string(mlp && mlp.getGateUpAttr() == ref ? Packing::panel_paired : Packing::panel));
        rows = std::min(rows, threshold(cpu, weight));
      }
    }
    const bool scaled = step.getPlaceAttr().getActivations() == "int8";  // bf16 has no scales
    op->setAttr("tile", kt::TileAttr::get(&getContext(), scaled ? uint32_t(xGranule) : 0, scaled ? h : 0, thresholds ? rows : 0));
  }

  template <typename Op>
  static uint32_t threshold(const placement::CpuTarget& cpu, Op op) {
    auto format = parse_format(op.getFormat()->str());
    return format ? placement::tile_rows(cpu, *format, static_cast<uint32_t>(op.getGroup().value_or(0))) : 0;
  }

  const Target* targetObject = nullptr;
};

}  // namespace

std::unique_ptr<mlir::Pass> createTileCpu(const Target& target, bool thresholds, std::uint32_t granule) {
  return std::make_unique<TileCpu>(target, thresholds, granule);
}

}  // namespace ktc::compiler
