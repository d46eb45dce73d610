// kt-specialise-entries
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "mlir/IR/IRMapping.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_SPECIALISEENTRIES
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::Value;

constexpr uint64_t kLogitsBytes = uint64_t{64} << 20;

std::string nameOf(kt::EntryKind kind, uint64_t bound) {
  return (kt::stringifyEntryKind(kind) + "[" + llvm::Twine(bound) + "]").str();
}

// The generic body taken apart: steps over all tokens, then those that only rows with logits need, then sampling.
struct Body {
  kt::EntryOp entry;
  llvm::SmallVector<mlir::Operation*> tokens, head;
  Value hidden;  // what the first step of `head` reads
  kt::SampleOp sample;
};

class Specialiser {
 public:
  explicit Specialiser(Body& body) : body_(body), builder_(body.entry) {}

  void extendOrDecode(kt::EntryKind kind, kt::BoundsAttr bounds) {
    mlir::Block& block = create(kind, bounds);
    mlir::Location at = body_.entry.getLoc();
    mlir::IRMapping mapping;
    for (mlir::BlockArgument argument : body_.entry.getBody().getArguments()) {
      mapping.map(argument, block.addArgument(argument.getType(), argument.getLoc()));
    }
    Value rows = block.addArgument(kt::valueType(kt::Dim::rows, 1, builder_.getI32Type()), at);
    for (mlir::Operation* op : body_.tokens) builder_.clone(*op, mapping);

    auto first = llvm::cast<kt::StepOpInterface>(body_.head.front());
    Value hidden = mapping.lookup(body_.hidden);
    mapping.map(body_.hidden, kt::SelectRowsOp::create(builder_, first.getLoc(), onRows(hidden.getType()), hidden, rows,
                                                       mlir::Value(), first.getModule(), {}, {}, {}, {}, {}, {}));
    for (mlir::Operation* op : body_.head) {
      mlir::Operation* clone = builder_.clone(*op, mapping);
      for (Value result : clone->getResults()) result.setType(onRows(result.getType()));
    }
    kt::ReturnOp::create(builder_, at, mapping.lookup(body_.sample.getLogits()));
  }

  void sample(kt::BoundsAttr bounds) {
    mlir::Block& block = create(kt::EntryKind::sample, bounds);
    mlir::IRMapping mapping;
    Value logits = body_.sample.getLogits();
    mapping.map(logits, block.addArgument(onRows(logits.getType()), body_.sample.getLoc()));
    mlir::Operation* clone = builder_.clone(*body_.sample, mapping);
    clone->getResult(0).setType(onRows(clone->getResult(0).getType()));
    kt::ReturnOp::create(builder_, body_.sample.getLoc(), clone->getResult(0));
  }

 private:
  static mlir::Type onRows(mlir::Type type) {
    return kt::valueType(kt::Dim::rows, kt::columnsOf(type), kt::elementOf(type));
  }

  // Leaves the builder at the end of the new block.
  mlir::Block& create(kt::EntryKind kind, kt::BoundsAttr bounds) {
    builder_.setInsertionPointToEnd(body_.entry->getBlock());
    auto entry = kt::EntryOp::create(builder_, body_.entry.getLoc(), nameOf(kind, bounds.getTokens()), kind, bounds,
                                     mlir::ArrayAttr(), mlir::ArrayAttr(), mlir::IntegerAttr(), mlir::StringAttr());
    mlir::Block& block = entry.getBody().emplaceBlock();
    builder_.setInsertionPointToEnd(&block);
    return block;
  }

  Body& body_;
  mlir::OpBuilder builder_;
};

struct SpecialiseEntries : impl::SpecialiseEntriesBase<SpecialiseEntries> {
  using SpecialiseEntriesBase::SpecialiseEntriesBase;

  void runOnOperation() override {
    mlir::ModuleOp module = getOperation();
    kt::EntryOp generic;
    for (auto entry : module.getOps<kt::EntryOp>()) {
      if (entry.getKind() == kt::EntryKind::generic) generic = entry;
    }
    if (!generic) return;  // done before: nothing to specialise
    Body body;
    if (mlir::failed(takeApart(generic, body))) return signalPassFailure();

    std::optional<uint64_t> sequences;
    for (auto cache : module.getOps<kt::CacheOp>()) {
      sequences = std::min(sequences.value_or(UINT64_MAX), cache.getSequences());
    }
    if (!sequences) {
      module.emitError(
          "no kt.cache: found no bound for the sequences of a step; declare the cache of the attention layers");
      return signalPassFailure();
    }
    llvm::SmallVector<uint64_t> chunks{chunk}, buckets(decode.begin(), decode.end());
    if (streamChunk != 0) chunks.push_back(streamChunk);
    if (buckets.empty()) buckets.push_back(1);
    for (auto* list : {&chunks, &buckets}) {
      llvm::sort(*list);
      list->erase(llvm::unique(*list), list->end());
      if (list->front() > 0 && list->back() <= kMaxTokens) continue;
      module.emitError() << "bounds of entries: found " << (list->front() == 0 ? 0 : list->back())
                         << " tokens, expected from 1 to " << kMaxTokens << "; change batch in the policy";
      return signalPassFailure();
    }

    Specialiser specialiser(body);
    uint64_t vocab = kt::columnsOf(body.sample.getLogits());
    for (uint64_t n : chunks) {
      uint64_t most = std::min(*sequences, n);
      uint64_t rows = std::clamp(kLogitsBytes / (vocab * 4), most, n);
      specialiser.extendOrDecode(kt::EntryKind::extend, kt::BoundsAttr::get(&getContext(), n, rows, most));
    }
    for (uint64_t b : buckets) {
      specialiser.extendOrDecode(kt::EntryKind::decode, kt::BoundsAttr::get(&getContext(), b, b, b));
    }
    for (uint64_t b : buckets) specialiser.sample(kt::BoundsAttr::get(&getContext(), b, b, b));
    remarkCounts(module, "kt-specialise-entries", {{"entries", chunks.size() + 2 * buckets.size()}});
    generic.erase();
  }

  static constexpr uint64_t kMaxTokens = uint64_t{1} << 24;

  // ... hidden -> [norm] -> lm_head -> sample -> return
  static mlir::LogicalResult takeApart(kt::EntryOp generic, Body& body) {
    body.entry = generic;
    auto ret = llvm::cast<kt::ReturnOp>(generic.getBody().front().getTerminator());
    body.sample = ret.getValues()[0].getDefiningOp<kt::SampleOp>();
    auto head = body.sample ? body.sample.getLogits().getDefiningOp<kt::LmHeadOp>() : kt::LmHeadOp();
    if (!head) {
      return generic.emitOpError("does not end in kt.lm_head and kt.sample; expected a body as import makes it");
    }
    body.head.push_back(head);
    body.hidden = head.getX();
    // rows are independent in a norm, so it can follow the selection
    if (auto norm = head.getX().getDefiningOp<kt::NormOp>(); norm && norm->hasOneUse()) {
      body.head.insert(body.head.begin(), norm);
      body.hidden = norm.getX();
    }
    for (mlir::Operation& op : generic.getBody().front().without_terminator()) {
      if (&op != body.sample && !llvm::is_contained(body.head, &op)) body.tokens.push_back(&op);
    }
    return mlir::success();
  }
};

}  // namespace
}  // namespace ktc::compiler
