// kt-verify-transferred
#include "compiler/passes/Passes.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "placement/target.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_VERIFYTRANSFERRED
#include "compiler/passes/Passes.h.inc"

namespace {

llvm::StringRef deviceOf(mlir::Operation* symbol) {
  if (auto weight = llvm::dyn_cast<kt::WeightOp>(symbol)) return weight.getDevice().value_or("");
  if (auto bank = llvm::dyn_cast<kt::ExpertBankOp>(symbol)) return bank.getDevice().value_or("");
  return llvm::cast<kt::CacheOp>(symbol).getDevice().value_or("");
}

mlir::LogicalResult checkStep(kt::StepOpInterface step) {
  if (!step.getPlaceAttr()) return step->emitOpError("has no place; run kt-place");
  llvm::StringRef device = step.operandDevice();
  for (llvm::StringRef name : {device, step.resultDevice()}) {
    if (placement::is_device_name(name)) continue;
    return step->emitOpError() << "device: found \"" << name << "\", expected cpu, cuda:0, cuda:1, ...";
  }
  for (mlir::Value operand : step->getOperands()) {
    auto maker = operand.getDefiningOp<kt::StepOpInterface>();  // arguments are written where they are read
    if (!maker || !maker.getPlaceAttr() || maker.resultDevice() == device) continue;
    mlir::InFlightDiagnostic diagnostic = step->emitOpError();
    diagnostic << "takes its operands on " << device << ", but one is made on " << maker.resultDevice()
               << "; run kt-insert-transfers";
    diagnostic.attachNote(maker.getLoc()) << "made here";
    return diagnostic;
  }
  auto checkSymbol = [&](mlir::FlatSymbolRefAttr ref) -> mlir::LogicalResult {
    llvm::StringRef found = deviceOf(mlir::SymbolTable::lookupNearestSymbolFrom(step, ref));
    if (found == device) return mlir::success();
    return step->emitOpError() << "runs on " << device << ", but " << ref << " lives on " << found;
  };
  if (auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation()); experts && experts.getStream()) {
    llvm::StringRef found = deviceOf(mlir::SymbolTable::lookupNearestSymbolFrom(step, experts.getBankAttr()));
    if (found == "cpu" && device != "cpu") return mlir::success();
    return step->emitOpError() << "streams a bank of " << found << " to " << device << "; expected one of the cpu to a GPU";
  }
  for (mlir::FlatSymbolRefAttr ref : step.getWeights()) {
    if (mlir::failed(checkSymbol(ref))) return mlir::failure();
  }
  if (auto gqa = llvm::dyn_cast<kt::GqaOp>(step.getOperation())) return checkSymbol(gqa.getCacheAttr());
  if (auto mla = llvm::dyn_cast<kt::MlaOp>(step.getOperation())) return checkSymbol(mla.getCacheAttr());
  return mlir::success();
}

// Each record has one submit and, behind it, one await.
mlir::LogicalResult checkRecords(kt::EntryOp entry) {
  llvm::DenseMap<int64_t, kt::SubmitOp> open;
  llvm::DenseSet<int64_t> closed;
  for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) {
    if (!llvm::isa<kt::SubmitOp, kt::AwaitOp>(step.getOperation())) continue;
    if (entry.getKind() != kt::EntryKind::decode) {
      return step->emitOpError() << "in an entry of kind " << kt::stringifyEntryKind(entry.getKind())
                                 << "; expected records in decode entries alone";
    }
    if (auto submit = llvm::dyn_cast<kt::SubmitOp>(step.getOperation())) {
      if (!closed.contains(submit.getRecord()) && open.try_emplace(submit.getRecord(), submit).second) continue;
      return submit.emitOpError() << "record " << submit.getRecord() << " has another submit; expected one";
    }
    auto await = llvm::cast<kt::AwaitOp>(step.getOperation());
    auto submit = open.find(await.getRecord());
    if (submit == open.end()) {
      return await.emitOpError() << "record " << await.getRecord()
                                 << (closed.contains(await.getRecord()) ? " has another await" : " has no submit before it")
                                 << "; expected one of each";
    }
    if (submit->second.getPlaceAttr().getDevice() != await.getPlaceAttr().getDevice()) {
      return await.emitOpError() << "record " << await.getRecord() << " was submitted on "
                                 << submit->second.getPlaceAttr().getDevice() << "; expected one device";
    }
    open.erase(submit);
    closed.insert(await.getRecord());
  }
  for (auto submit : entry.getBody().getOps<kt::SubmitOp>()) {
    if (!open.contains(submit.getRecord())) continue;
    return submit.emitOpError() << "record " << submit.getRecord() << " has no await; expected one behind it";
  }
  return mlir::success();
}

// What the router chose, before values moved.
mlir::Value origin(mlir::Value value) {
  for (;;) {
    auto step = value.getDefiningOp<kt::StepOpInterface>();
    if (!step || !llvm::isa<kt::TransferOp, kt::SubmitOp, kt::AwaitOp>(step.getOperation())) return value;
    value = step->getOperand(llvm::cast<mlir::OpResult>(value).getResultNumber());
  }
}

// A bank that is shared has two ops over the same values, one that streams it and one of the CPU.
mlir::LogicalResult checkShares(kt::EntryOp entry) {
  for (auto op : entry.getBody().getOps<kt::ExpertsOp>()) {
    if (!op.getShareAttr()) continue;
    if (op.getLateAttr() || entry.getKind() != kt::EntryKind::extend)
      return op.emitOpError("shares experts; expected an entry of kind extend, and nothing late");
    unsigned others = 0;
    for (auto b : entry.getBody().getOps<kt::ExpertsOp>()) {
      others += b != op && b.getShareAttr() == op.getShareAttr() && b.getStream() != op.getStream() && b.getBankAttr() == op.getBankAttr() &&
                b.getSlotsAttr() == op.getSlotsAttr() && origin(b.getX()) == origin(op.getX()) && origin(b.getIds()) == origin(op.getIds()) &&
                origin(b.getScores()) == origin(op.getScores());
    }
    if (others != 1) {
      return op.emitOpError() << "shares experts with " << others << " ops over the same values, expected one that "
                              << (op.getStream() ? "takes a share on the cpu" : "streams the bank");
    }
  }
  return mlir::success();
}

// Every routed pair arrives once: in time, or with the next MoE layer.
class LateCheck {
 public:
  explicit LateCheck(kt::EntryOp entry) {
    for (auto op : entry.getBody().getOps<kt::ExpertsOp>()) {
      ops_.push_back(op);
      layers_.try_emplace(choice(op), layers_.size());
    }
  }

  mlir::LogicalResult run() {
    for (kt::ExpertsOp op : ops_) {
      if (!op.getLateAttr()) continue;
      kt::ExpertsPart other = op.getLateAttr().getPart() == kt::ExpertsPart::late ? kt::ExpertsPart::in_time : kt::ExpertsPart::late;
      unsigned partners = llvm::count_if(ops_, [&](kt::ExpertsOp b) {
        return b.getLateAttr() && b.getLateAttr().getPart() == other && complete(op, b);
      });
      if (partners != 1) {
        return op.emitOpError() << "has " << partners << " ops for the part " << kt::stringifyExpertsPart(other)
                                << " over the same operands, expected 1: deferral would " << (partners ? "repeat" : "lose")
                                << " experts";
      }
      if (other == kt::ExpertsPart::in_time && mlir::failed(checkDelivery(op))) return mlir::failure();
    }
    return mlir::success();
  }

 private:
  static mlir::Value choice(kt::ExpertsOp op) { return origin(op.getIds()); }

  static bool complete(kt::ExpertsOp a, kt::ExpertsOp b) {
    return a->getOperands() == b->getOperands() && a.getBankAttr() == b.getBankAttr() && a.getSlotsAttr() == b.getSlotsAttr() &&
           a.getPlaceAttr() == b.getPlaceAttr() && a.getLateAttr().getCount() == b.getLateAttr().getCount() &&
           a.getLateAttr().getAmongAll() == b.getLateAttr().getAmongAll();
  }

  // The late result is used once, along with experts of the next layer, up to that layer's sum.
  mlir::LogicalResult checkDelivery(kt::ExpertsOp late) {
    mlir::Value value = late.getOut();
    const unsigned next = layers_.lookup(choice(late)) + 1;
    for (;;) {
      if (!value.hasOneUse()) {
        return late.emitOpError() << "is late and its result is used " << std::distance(value.use_begin(), value.use_end())
                                  << " times, expected once, in the next MoE layer";
      }
      mlir::Operation* user = *value.user_begin();
      if (llvm::isa<kt::TransferOp, kt::AwaitOp>(user)) {
        value = user->getResult(value.use_begin()->getOperandNumber());
        continue;
      }
      llvm::SmallVector<unsigned> beside;
      if (llvm::isa<kt::AddOp, kt::AddNormOp>(user)) {
        for (mlir::Value term : user->getOperands()) llvm::append_range(beside, layersOf(term));
      }
      if (beside.empty() || !llvm::all_of(beside, [&](unsigned layer) { return layer == next; })) {
        return late.emitOpError("is late and its result is not added in the next MoE layer; expected a sum with its experts");
      }
      if (!isPartial(user)) return mlir::success();
      value = user->getResult(0);
    }
  }

  // A sum of experts alone: what one device contributes to a layer.
  static bool isPartial(mlir::Operation* op) {
    return llvm::isa_and_nonnull<kt::AddOp>(op) && llvm::all_of(op->getOperands(), [](mlir::Value term) {
      return origin(term).getDefiningOp<kt::ExpertsOp>() != nullptr;
    });
  }

  // Whose experts, in time or whole, a term of a sum has.
  llvm::SmallVector<unsigned> layersOf(mlir::Value term) {
    mlir::Operation* op = origin(term).getDefiningOp();
    llvm::SmallVector<unsigned> layers;
    auto experts = llvm::dyn_cast_or_null<kt::ExpertsOp>(op);
    if (experts && (!experts.getLateAttr() || experts.getLateAttr().getPart() == kt::ExpertsPart::in_time)) {
      layers.push_back(layers_.lookup(choice(experts)));
    } else if (isPartial(op)) {
      for (mlir::Value inner : op->getOperands()) llvm::append_range(layers, layersOf(inner));
    }
    return layers;
  }

  llvm::SmallVector<kt::ExpertsOp> ops_;
  llvm::DenseMap<mlir::Value, unsigned> layers_;  // by choice, in order
};

struct VerifyTransferred : impl::VerifyTransferredBase<VerifyTransferred> {
  using VerifyTransferredBase::VerifyTransferredBase;

  void runOnOperation() override {
    mlir::LogicalResult result = mlir::success();
    forEachStep(getOperation(), [&](kt::StepOpInterface step) {
      if (mlir::succeeded(result)) result = checkStep(step);
    });
    for (auto entry : getOperation().getOps<kt::EntryOp>()) {
      if (mlir::failed(result)) break;
      result = mlir::failed(checkRecords(entry)) || mlir::failed(checkShares(entry)) ? mlir::failure() : LateCheck(entry).run();
    }
    if (mlir::failed(result)) return signalPassFailure();
    kt::setPhase(getOperation(), kt::Phase::transferred);
  }
};

}  // namespace
}  // namespace ktc::compiler
