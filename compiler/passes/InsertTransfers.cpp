// kt-insert-transfers
#include "compiler/passes/Passes.h"
#include "compiler/passes/Prerequisites.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_INSERTTRANSFERS
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::Value;

constexpr llvm::StringLiteral kName = "kt-insert-transfers";

// Moves what one entry uses elsewhere than it is made.
class EntryTransfers {
 public:
  explicit EntryTransfers(kt::EntryOp entry)
      : entry_(entry), context_(entry.getContext()), handOff_(entry.getKind() == kt::EntryKind::decode) {}

  void run() {
    for (mlir::Operation& op : llvm::make_early_inc_range(entry_.getBody().front())) {
      if (auto step = llvm::dyn_cast<kt::StepOpInterface>(op)) bring(step);
    }
  }
  unsigned transfers() const { return transfers_; }
  unsigned records() const { return next_; }

 private:
  // Arguments are written by the host on every device that reads them.
  static llvm::StringRef deviceOf(Value value) {
    auto maker = value.getDefiningOp<kt::StepOpInterface>();
    return maker ? maker.resultDevice() : llvm::StringRef();
  }

  void bring(kt::StepOpInterface step) {
    llvm::StringRef to = step.operandDevice();
    if (submit(step, to)) return;
    // what other GPUs give before what the CPU gives: a chain is cut in front of an await, not between it and its sum
    for (bool fromCpu : {false, true}) {
      llvm::MapVector<llvm::StringRef, llvm::SmallVector<Value>> missing;  // by device
      for (Value operand : step->getOperands()) {
        llvm::StringRef from = deviceOf(operand);
        if (from.empty() || from == to || (from == "cpu") != fromCpu || moved_.contains({operand, to})) continue;
        if (to != "cpu" && fromCpu && await(step, operand, to)) continue;
        if (!llvm::is_contained(missing[from], operand)) missing[from].push_back(operand);
      }
      for (auto& [from, values] : missing) transfer(step, from, to, values);
    }
    for (mlir::OpOperand& operand : step->getOpOperands()) {
      if (Value here = moved_.lookup({operand.get(), to})) operand.set(here);
    }
  }

  kt::PlaceAttr placeOf(llvm::StringRef device) { return kt::PlaceAttr::get(context_, device, "f32", "f32"); }

  void transfer(kt::StepOpInterface step, llvm::StringRef from, llvm::StringRef to, llvm::ArrayRef<Value> values) {
    mlir::OpBuilder builder(step);
    llvm::SmallVector<mlir::Type> types;
    for (Value value : values) types.push_back(value.getType());
    auto op = kt::TransferOp::create(builder, step->getLoc(), types, values, builder.getStringAttr(from),
                                     builder.getStringAttr(to), step.getModule(), placeOf(from == "cpu" ? to : from), {},
                                     {}, {}, {}, {});
    for (auto [value, out] : llvm::zip(values, op.getOuts())) moved_[{value, to}] = out;
    ++transfers_;
    mlir::remark::passed(step->getLoc(), remark(kName, "Transfer"))
        << (entry_.getSymName() + ": for " + kt::stepName(step) + " from " + from + " to " + to).str()
        << mlir::remark::metric("values", values.size());
  }

  // ------------------------------------------------------------------------------------------- the hand-off of a decode entry

  // Experts of the CPU whose operands are all on one GPU: a record. Another op over the same operands shares it.
  bool submit(kt::StepOpInterface step, llvm::StringRef to) {
    auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
    if (!handOff_ || !experts || to != "cpu") return false;
    std::array<Value, 3> from{experts.getX(), experts.getIds(), experts.getScores()};
    llvm::StringRef gpu = deviceOf(from[0]);
    if (gpu.empty() || gpu == "cpu" || gpu != deviceOf(from[1]) || gpu != deviceOf(from[2])) return false;
    if (!moved_.contains({from[0], to}) || !moved_.contains({from[1], to}) || !moved_.contains({from[2], to})) {
      llvm::StringRef format = experts.getPlaceAttr().getActivations() == "f32" ? "f32" : "bf16";
      kt::SubmitOp op = createSubmit(step, from, gpu, format, experts.getSlotsAttr());
      for (auto [value, out] : llvm::zip(from, op->getResults())) moved_[{value, to}] = out;
      mlir::remark::passed(step->getLoc(), remark(kName, "HandOff"))
          << (entry_.getSymName() + ": " + kt::stepName(step) + " by a record of " + format).str()
          << mlir::remark::metric("record", op.getRecord());
    }
    for (unsigned i = 0; i < 3; ++i) step->setOperand(i, moved_.lookup({from[i], to}));
    return true;
  }

  kt::SubmitOp createSubmit(kt::StepOpInterface step, llvm::ArrayRef<Value> from, llvm::StringRef gpu,
                            llvm::StringRef format, mlir::DenseI32ArrayAttr slots) {
    mlir::OpBuilder builder(step);
    auto op = kt::SubmitOp::create(builder, step->getLoc(), from[0].getType(), from[1].getType(), from[2].getType(),
                                   from[0], from[1], from[2], builder.getI64IntegerAttr(next_++),
                                   builder.getStringAttr(format), slots, step.getModule(), placeOf(gpu), {}, {}, {}, {}, {});
    awaited_.push_back(false);
    return op;
  }

  // The newest record that the CPU's value depends on; null: it has nothing to do with experts.
  static kt::SubmitOp recordOf(Value value, llvm::StringRef gpu) {
    kt::SubmitOp newest;
    llvm::SetVector<mlir::Operation*> makers;  // sums and experts of the CPU
    auto add = [&](Value from) {
      if (mlir::Operation* maker = from.getDefiningOp(); llvm::isa_and_nonnull<kt::AddOp, kt::ExpertsOp>(maker)) makers.insert(maker);
    };
    add(value);
    for (std::size_t i = 0; i < makers.size(); ++i) {
      auto experts = llvm::dyn_cast<kt::ExpertsOp>(makers[i]);
      if (!experts) {
        for (Value term : makers[i]->getOperands()) add(term);
        continue;
      }
      auto op = experts.getX().getDefiningOp<kt::SubmitOp>();
      if (op && op.getPlaceAttr().getDevice() == gpu && (!newest || op.getRecord() > newest.getRecord())) newest = op;
    }
    return newest;
  }

  bool await(kt::StepOpInterface step, Value value, llvm::StringRef gpu) {
    kt::SubmitOp record = handOff_ ? recordOf(value, gpu) : kt::SubmitOp();
    if (!record) return false;
    if (awaited_[record.getRecord()]) {
      // late experts arrive in a layer without any on the CPU: a record without pairs takes them along
      auto experts = record->getUsers().empty() ? kt::ExpertsOp() : llvm::dyn_cast<kt::ExpertsOp>(*record->user_begin());
      auto bank = experts ? mlir::SymbolTable::lookupNearestSymbolFrom<kt::ExpertBankOp>(experts, experts.getBankAttr())
                          : kt::ExpertBankOp();
      if (!bank) return false;
      std::size_t count = record.getSlotsAttr() ? record.getSlotsAttr().size() : bank.getExperts();
      llvm::SmallVector<int32_t> none(count, -1);
      record = createSubmit(step, {record.getX(), record.getIds(), record.getScores()}, gpu, record.getFormat(),
                            mlir::Builder(context_).getDenseI32ArrayAttr(none));
    }
    mlir::OpBuilder builder(step);
    moved_[{value, gpu}] =
        kt::AwaitOp::create(builder, step->getLoc(), value.getType(), value, record.getRecordAttr(), record.getFormatAttr(),
                            onlyResult(record, value) ? builder.getUnitAttr() : mlir::UnitAttr(), step.getModule(),
                            placeOf(gpu), {}, {}, {}, {}, {});
    awaited_[record.getRecord()] = true;
    return true;
  }

  // Without a pair in the record the value is zero, and nothing else is computed from the record.
  static bool onlyResult(kt::SubmitOp record, Value value) {
    auto experts = value.getDefiningOp<kt::ExpertsOp>();
    return experts && !experts.getLateAttr() && experts.getX() == record.getCpuX() &&
           llvm::all_of(record->getUsers(), [&](mlir::Operation* user) { return user == experts; });
  }

  kt::EntryOp entry_;
  mlir::MLIRContext* context_;
  const bool handOff_;
  llvm::DenseMap<std::pair<Value, llvm::StringRef>, Value> moved_;
  llvm::SmallVector<bool> awaited_;  // by record
  int64_t next_ = 0;
  unsigned transfers_ = 0;
};

struct InsertTransfers : impl::InsertTransfersBase<InsertTransfers> {
  using InsertTransfersBase::InsertTransfersBase;

  void runOnOperation() override {
    unsigned transfers = 0, records = 0;
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      if (mlir::failed(requirePlaces(entry))) return signalPassFailure();
      EntryTransfers moves(entry);
      moves.run();
      transfers += moves.transfers();
      records += moves.records();
    }
    remarkCounts(getOperation(), kName, {{"transfers", transfers}, {"records", records}});
  }
};

}  // namespace
}  // namespace ktc::compiler
