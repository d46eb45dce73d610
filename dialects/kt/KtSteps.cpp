// Verifiers and effects of the steps. Messages have one form: "WHAT: found X, expected Y = WHY; REMEDY".
#include "dialects/kt/Kt.h"

namespace ktc::kt {
namespace {

// Columns of an operand or result against what the attributes say.
mlir::LogicalResult checkColumns(mlir::Operation* op, llvm::StringRef what, mlir::Value value, int64_t expected,
                                 llvm::StringRef why) {
  if (columnsOf(value) == expected) return mlir::success();
  return op->emitOpError() << "columns of " << what << ": found " << columnsOf(value) << ", expected " << expected
                           << " = " << why;
}

template <typename T>
mlir::LogicalResult checkEqual(mlir::Operation* op, llvm::StringRef what, T found, T expected, llvm::StringRef why) {
  if (found == expected) return mlir::success();
  return op->emitOpError() << what << ": found " << found << ", expected " << expected << " = " << why;
}

// The weight behind `ref` exists and has the shape that the op multiplies by. An absent reference is fine.
mlir::LogicalResult checkWeight(mlir::Operation* op, mlir::SymbolTableCollection& symbols, mlir::FlatSymbolRefAttr ref,
                                int64_t batch, int64_t rows, int64_t columns) {
  if (!ref) return mlir::success();
  auto weight = symbols.lookupNearestSymbolFrom<WeightOp>(op, ref);
  if (!weight) return op->emitOpError() << ref << " is no kt.weight of this module; declare it";
  llvm::ArrayRef<int64_t> shape = weight.getShape();
  if (shape[0] == batch && shape[1] == rows && shape[2] == columns) return mlir::success();
  mlir::InFlightDiagnostic diagnostic = op->emitOpError();
  diagnostic << ref << ": found [" << shape[0] << ", " << shape[1] << ", " << shape[2] << "], expected [" << batch
             << ", " << rows << ", " << columns << "] from the operands and attributes";
  diagnostic.attachNote(weight.getLoc()) << "declared here";
  return diagnostic;
}

mlir::LogicalResult checkPart(mlir::Operation* op, CacheOp cache, unsigned index, llvm::StringRef name, uint64_t heads,
                              uint64_t width) {
  auto part = llvm::dyn_cast_if_present<PartAttr>(index < cache.getParts().size() ? cache.getParts()[index]
                                                                                  : mlir::Attribute());
  if (part && part.getName() == name && part.getHeads() == heads && part.getWidth() == width) return mlir::success();
  mlir::InFlightDiagnostic diagnostic = op->emitOpError();
  diagnostic << "part " << index << " of cache @" << cache.getSymName() << ": ";
  if (part) {
    diagnostic << "found " << part;
  } else {
    diagnostic << "found none";
  }
  diagnostic << ", expected " << PartAttr::get(op->getContext(), name, heads, width);
  return diagnostic;
}

struct ExpectedPart {
  llvm::StringRef name;
  uint64_t heads, width;
};

mlir::LogicalResult checkCache(mlir::Operation* op, mlir::SymbolTableCollection& symbols, mlir::FlatSymbolRefAttr ref,
                               uint64_t layer, llvm::ArrayRef<ExpectedPart> parts) {
  auto cache = symbols.lookupNearestSymbolFrom<CacheOp>(op, ref);
  if (!cache) return op->emitOpError() << ref << " is no kt.cache of this module; declare it";
  if (layer >= cache.getLayers()) {
    return op->emitOpError() << "cache layer: found " << layer << ", expected below " << cache.getLayers()
                             << ", the layers of " << ref;
  }
  for (unsigned i = 0; i < parts.size(); ++i) {
    if (mlir::failed(checkPart(op, cache, i, parts[i].name, parts[i].heads, parts[i].width))) return mlir::failure();
  }
  return checkEqual<uint64_t>(op, "parts of the cache", cache.getParts().size(), parts.size(), "what the op stores");
}

// One matrix for every expert that has a slot, and every matrix for one expert.
mlir::LogicalResult checkSlots(mlir::Operation* op, mlir::DenseI32ArrayAttr slots, ExpertBankOp bank) {
  llvm::DenseSet<int32_t> seen;
  for (auto [expert, slot] : llvm::enumerate(slots.asArrayRef())) {
    if (slot == -1) continue;
    if (slot < 0 || slot >= int64_t(bank.getExperts()) || !seen.insert(slot).second) {
      return op->emitOpError() << "slots: expert " << expert << " has matrix " << slot << ", expected -1 or one of the "
                               << bank.getExperts() << " of @" << bank.getSymName() << " that no other expert has";
    }
  }
  // where experts move, the CPU keeps a matrix of every one
  auto module = op->getParentOfType<mlir::ModuleOp>();
  if (seen.size() == bank.getExperts() || (module && module->hasAttr("kt.update"))) return mlir::success();
  return op->emitOpError() << "slots: found " << seen.size() << " experts with a matrix, expected " << bank.getExperts()
                           << " as @" << bank.getSymName() << " has matrices";
}

// The same facts for MLIR: an attention op both writes and reads its cache, so nothing removes, merges or hoists it.
void cacheEffects(mlir::FlatSymbolRefAttr cache,
                  llvm::SmallVectorImpl<mlir::SideEffects::EffectInstance<mlir::MemoryEffects::Effect>>& effects) {
  effects.emplace_back(mlir::MemoryEffects::Read::get(), cache, mlir::SideEffects::DefaultResource::get());
  effects.emplace_back(mlir::MemoryEffects::Write::get(), cache, mlir::SideEffects::DefaultResource::get());
}

// The cache is appended to and read; its page table is read.
llvm::SmallVector<SymbolEffect> cacheAccesses(mlir::Operation* op, mlir::FlatSymbolRefAttr ref) {
  llvm::SmallVector<SymbolEffect> effects{{ref, /*write=*/true}};
  if (auto cache = mlir::SymbolTable::lookupNearestSymbolFrom<CacheOp>(op, ref)) {
    effects.push_back({cache.getPagesAttr(), /*write=*/false});
  }
  return effects;
}

}  // namespace

mlir::LogicalResult verifyStep(StepOpInterface step) {
  mlir::Operation* op = step;
  // kt.select_rows is the one place where rows change their meaning; kt.transfer moves values of any kind
  if (!llvm::isa<SelectRowsOp, TransferOp>(op)) {
    std::optional<Dim> dim;
    auto check = [&](mlir::Value value) {
      if (!dim) dim = dimOf(value);
      return *dim == dimOf(value);
    };
    if (!llvm::all_of(op->getOperands(), check) || !llvm::all_of(op->getResults(), check)) {
      return op->emitOpError(
          "mixes rows of different symbols; expected one #kt.dim for all operands and results, use "
          "kt.select_rows to change it");
    }
  }
  auto checkViews = [&](llvm::StringRef name, mlir::ArrayAttr views, auto values) -> mlir::LogicalResult {
    if (!views) return mlir::success();
    if (views.size() != values.size()) {
      return op->emitOpError() << name << ": found " << views.size() << " views, expected " << values.size();
    }
    for (auto [view, value] : llvm::zip(views.template getAsRange<ViewAttr>(), values)) {
      if (int64_t(view.getColumns()) != columnsOf(value)) {
        return op->emitOpError() << name << ": found a view of " << view.getColumns() << " columns, expected "
                                 << columnsOf(value) << " as the value has";
      }
    }
    return mlir::success();
  };
  if (mlir::failed(checkViews("in_views", step.getInViewsAttr(), op->getOperands()))) return mlir::failure();
  return checkViews("out_views", step.getOutViewsAttr(), op->getResults());
}

// ------------------------------------------------------------------------------------------------------- embed, norm,
// linear

mlir::LogicalResult EmbedOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  return checkColumns(*this, "ids", getIds(), 1, "one id per row");
}

mlir::LogicalResult EmbedOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  auto weight = symbols.lookupNearestSymbolFrom<WeightOp>(*this, getWeightAttr());
  int64_t vocab = weight ? weight.getShape()[1] : 0;
  return checkWeight(*this, symbols, getWeightAttr(), 1, vocab, columnsOf(getOut()));
}

mlir::LogicalResult NormOp::verify() {
  return verifyStep(*this);
}

mlir::LogicalResult NormOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  return checkWeight(*this, symbols, getWeightAttr(), 1, 1, columnsOf(getX()));
}

mlir::LogicalResult LinearOp::verify() {
  if (getOuts().empty()) return emitOpError("has no results; expected one per column range of the product");
  return verifyStep(*this);
}

mlir::LogicalResult LinearOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  int64_t rows = 0;
  for (mlir::Value out : getOuts()) rows += columnsOf(out);
  if (mlir::failed(checkWeight(*this, symbols, getWeightAttr(), 1, rows, columnsOf(getX())))) return mlir::failure();
  return checkWeight(*this, symbols, getBiasAttr(), 1, 1, rows);
}

// -----------------------------------------------------------------------------------------------------------------
// attention

mlir::LogicalResult GqaOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  int64_t heads = getHeads(), kv = getKvHeads(), dim = getHeadDim();
  if (heads % kv != 0) {
    return emitOpError() << "heads: found " << heads << ", expected a multiple of kv_heads = " << kv;
  }
  if (mlir::failed(checkEqual<int64_t>(*this, "rope turns", getRope().getDim(), dim, "head_dim")) ||
      mlir::failed(checkColumns(*this, "q", getQ(), heads * dim, "heads * head_dim")) ||
      mlir::failed(checkColumns(*this, "k", getK(), kv * dim, "kv_heads * head_dim")) ||
      mlir::failed(checkColumns(*this, "v", getV(), kv * dim, "kv_heads * head_dim")) ||
      mlir::failed(checkColumns(*this, "positions", getPositions(), 1, "one position per row"))) {
    return mlir::failure();
  }
  return checkColumns(*this, "the result", getOut(), heads * dim, "heads * head_dim");
}

mlir::LogicalResult GqaOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  uint64_t kv = getKvHeads(), dim = getHeadDim();
  if (mlir::failed(checkWeight(*this, symbols, getQNormAttr(), 1, 1, dim)) ||
      mlir::failed(checkWeight(*this, symbols, getKNormAttr(), 1, 1, dim))) {
    return mlir::failure();
  }
  return checkCache(*this, symbols, getCacheAttr(), getCacheLayer(), {{"k", kv, dim}, {"v", kv, dim}});
}

void GqaOp::getEffects(llvm::SmallVectorImpl<mlir::SideEffects::EffectInstance<mlir::MemoryEffects::Effect>>& effects) {
  cacheEffects(getCacheAttr(), effects);
}
llvm::SmallVector<SymbolEffect> GqaOp::getSymbolEffects() {
  return cacheAccesses(*this, getCacheAttr());
}
int64_t GqaOp::getEffectOrder() {
  return getOrder();
}

mlir::LogicalResult MlaOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  int64_t heads = getHeads(), nope = getNopeDim(), rope = getRopeDim(), v = getVDim(), latent = getLatentDim();
  if ((getKvBAttr() != nullptr) == (getWUkAttr() != nullptr)) {
    return emitOpError(
        "holds kv_b and its split, or neither; expected kv_b as imported, or w_uk and w_uv after kt-fold-weights");
  }
  if (mlir::failed(checkEqual<int64_t>(*this, "rope turns", getRope().getDim(), rope, "rope_dim")) ||
      mlir::failed(checkColumns(*this, "q", getQ(), heads * (nope + rope), "heads * (nope_dim + rope_dim)")) ||
      mlir::failed(checkColumns(*this, "latent", getLatent(), latent, "latent_dim")) ||
      mlir::failed(checkColumns(*this, "k_rope", getKRope(), rope, "rope_dim")) ||
      mlir::failed(checkColumns(*this, "positions", getPositions(), 1, "one position per row"))) {
    return mlir::failure();
  }
  return checkColumns(*this, "the result", getOut(), heads * v, "heads * v_dim");
}

mlir::LogicalResult MlaOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  uint64_t heads = getHeads(), nope = getNopeDim(), rope = getRopeDim(), v = getVDim(), latent = getLatentDim();
  if (mlir::failed(checkWeight(*this, symbols, getKvBAttr(), 1, heads * (nope + v), latent)) ||
      mlir::failed(checkWeight(*this, symbols, getWUkAttr(), heads, latent, nope)) ||
      mlir::failed(checkWeight(*this, symbols, getWUvAttr(), heads, v, latent))) {
    return mlir::failure();
  }
  return checkCache(*this, symbols, getCacheAttr(), getCacheLayer(), {{"latent", 1, latent}, {"rope", 1, rope}});
}

void MlaOp::getEffects(llvm::SmallVectorImpl<mlir::SideEffects::EffectInstance<mlir::MemoryEffects::Effect>>& effects) {
  cacheEffects(getCacheAttr(), effects);
}
llvm::SmallVector<SymbolEffect> MlaOp::getSymbolEffects() {
  return cacheAccesses(*this, getCacheAttr());
}
int64_t MlaOp::getEffectOrder() {
  return getOrder();
}

// ------------------------------------------------------------------------------------------------------- routing and
// experts

mlir::LogicalResult RouteOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  int64_t experts = getExperts(), groups = getGroups(), topkGroups = getTopkGroups(), topk = getTopK();
  if (experts % groups != 0) {
    return emitOpError() << "experts: found " << experts << ", expected a multiple of groups = " << groups;
  }
  if (topkGroups > groups || topk > topkGroups * (experts / groups)) {
    return emitOpError() << "found top_k = " << topk << " of " << experts << " experts in " << topkGroups << " of "
                         << groups
                         << " groups, expected topk_groups at most groups and top_k at most the experts in them";
  }
  if (getKind() == RouterKind::softmax_topk && (groups != 1 || getBiasAttr())) {
    return emitOpError("of kind softmax_topk has groups or a bias; expected neither, or kind sigmoid_group");
  }
  if (mlir::failed(checkColumns(*this, "ids", getIds(), topk, "top_k"))) return mlir::failure();
  return checkColumns(*this, "the scores", getScores(), topk, "top_k");
}

mlir::LogicalResult RouteOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  if (mlir::failed(checkWeight(*this, symbols, getWeightAttr(), 1, getExperts(), columnsOf(getX()))))
    return mlir::failure();
  return checkWeight(*this, symbols, getBiasAttr(), 1, 1, getExperts());
}

mlir::LogicalResult ExpertsOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  if (mlir::failed(checkColumns(*this, "ids", getIds(), columnsOf(getScores()), "columns of the scores"))) {
    return mlir::failure();
  }
  if ((getDeferred() != nullptr) != (getLateAttr() != nullptr)) {
    return emitOpError("has late experts or the flags that say whose, and not both; expected both or neither");
  }
  if (!getLateAttr()) return mlir::success();
  if (int64_t(getLateAttr().getCount()) > columnsOf(getIds())) {
    return emitOpError() << "late: found " << getLateAttr().getCount() << ", expected at most the "
                         << columnsOf(getIds()) << " experts of a token";
  }
  return checkColumns(*this, "the flags", getDeferred(), 1, "one flag per row");
}

mlir::LogicalResult ExpertsOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  auto bank = symbols.lookupNearestSymbolFrom<ExpertBankOp>(*this, getBankAttr());
  if (!bank) return emitOpError() << getBankAttr() << " is no kt.expert_bank of this module; declare it";
  if (int64_t(bank.getHidden()) != columnsOf(getX())) {
    return emitOpError() << getBankAttr() << ": found hidden " << bank.getHidden() << ", expected " << columnsOf(getX())
                         << " as x has columns";
  }
  if (getSlotsAttr()) return checkSlots(*this, getSlotsAttr(), bank);
  if (columnsOf(getIds()) <= int64_t(bank.getExperts())) return mlir::success();
  return emitOpError() << "ids: found " << columnsOf(getIds()) << " per row, expected at most the " << bank.getExperts()
                       << " experts of " << getBankAttr();
}

mlir::LogicalResult MlpOp::verify() {
  return verifyStep(*this);
}

mlir::LogicalResult MlpOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  auto down = symbols.lookupNearestSymbolFrom<WeightOp>(*this, getDownAttr());
  int64_t intermediate = down ? down.getShape()[2] : 0;
  if (mlir::failed(checkWeight(*this, symbols, getDownAttr(), 1, columnsOf(getX()), intermediate)))
    return mlir::failure();
  return checkWeight(*this, symbols, getGateUpAttr(), 1, 2 * intermediate, columnsOf(getX()));
}

// ----------------------------------------------------------------------------------------------------------------------
// rest

namespace {
mlir::LogicalResult checkTerms(mlir::Operation* op, mlir::ValueRange terms, mlir::Type sum) {
  if (terms.size() < 2) return op->emitOpError() << "operands: found " << terms.size() << ", expected two or more";
  for (mlir::Value term : terms) {
    if (term.getType() != sum) {
      return op->emitOpError() << "adds " << term.getType() << " into " << sum << "; expected one type";
    }
  }
  return mlir::success();
}

// Values keep their types on the way from one device to another.
mlir::LogicalResult checkMoved(mlir::Operation* op) {
  if (op->getNumOperands() == 0 || op->getOperandTypes() != op->getResultTypes()) {
    return op->emitOpError("changes the values that it moves; expected as many results as operands, of the same types");
  }
  return mlir::success();
}

mlir::LogicalResult checkHandOff(mlir::Operation* op, llvm::StringRef format, PlaceAttr place) {
  if (place && place.getDevice() == "cpu") return op->emitOpError("is placed on the CPU; expected the GPU of the hand-off");
  if (format == "f32" || format == "bf16") return mlir::success();
  return op->emitOpError() << "format: found \"" << format << "\", expected f32 or bf16";
}
}  // namespace

mlir::LogicalResult AddOp::verify() {
  if (mlir::failed(checkTerms(*this, getTerms(), getOut().getType()))) return mlir::failure();
  return verifyStep(*this);
}

mlir::LogicalResult AddNormOp::verify() {
  if (mlir::failed(checkTerms(*this, getTerms(), getSum().getType()))) return mlir::failure();
  return verifyStep(*this);
}

mlir::LogicalResult AddNormOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  return checkWeight(*this, symbols, getWeightAttr(), 1, 1, columnsOf(getSum()));
}

mlir::LogicalResult TransferOp::verify() {
  if (mlir::failed(checkMoved(*this))) return mlir::failure();
  if (getFrom() == getTo()) {
    return emitOpError() << "goes from " << getFrom() << " to " << getTo() << "; expected two devices";
  }
  if (PlaceAttr place = getPlaceAttr();
      place && (place.getDevice() == "cpu" || (place.getDevice() != getFrom() && place.getDevice() != getTo()))) {
    return emitOpError() << "is placed on " << place.getDevice() << "; expected the GPU that it copies from or to";
  }
  return verifyStep(*this);
}

mlir::LogicalResult SubmitOp::verify() {
  if (mlir::failed(checkHandOff(*this, getFormat(), getPlaceAttr()))) return mlir::failure();
  if (mlir::failed(checkColumns(*this, "ids", getIds(), columnsOf(getScores()), "columns of the scores"))) {
    return mlir::failure();
  }
  return verifyStep(*this);
}

mlir::LogicalResult AwaitOp::verify() {
  if (mlir::failed(checkHandOff(*this, getFormat(), getPlaceAttr()))) return mlir::failure();
  return verifyStep(*this);
}

mlir::LogicalResult SelectRowsOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  const Dim from = getSecond() ? Dim::first_half : Dim::tokens;
  if (dimOf(getX()) != from || dimOf(getRows()) != Dim::rows || dimOf(getOut()) != Dim::rows) {
    return emitOpError("goes from tokens to rows: expected x in #kt.dim<")
           << stringifyDim(from) << ">, the indices and the result in #kt.dim<rows>";
  }
  if (getSecond() && (dimOf(getSecond()) != Dim::second_half || columnsOf(getSecond()) != columnsOf(getX()) ||
                      elementOf(getSecond().getType()) != elementOf(getX().getType()))) {
    return emitOpError() << "the second half: found " << getSecond().getType() << ", expected x's in #kt.dim<second_half>";
  }
  if (elementOf(getX().getType()) != elementOf(getOut().getType())) {
    return emitOpError() << "elements of the result: found " << elementOf(getOut().getType()) << ", expected "
                         << elementOf(getX().getType()) << " as x has";
  }
  if (mlir::failed(checkColumns(*this, "the indices", getRows(), 1, "one index per row"))) return mlir::failure();
  return checkColumns(*this, "the result", getOut(), columnsOf(getX()), "columns of x");
}

mlir::LogicalResult LmHeadOp::verify() {
  return verifyStep(*this);
}

mlir::LogicalResult LmHeadOp::verifySymbolUses(mlir::SymbolTableCollection& symbols) {
  return checkWeight(*this, symbols, getWeightAttr(), 1, columnsOf(getOut()), columnsOf(getX()));
}

mlir::LogicalResult SampleOp::verify() {
  if (mlir::failed(verifyStep(*this))) return mlir::failure();
  return checkColumns(*this, "the result", getIds(), 1, "one id per row");
}

}  // namespace ktc::kt

#include "dialects/kt/KtInterfaces.cpp.inc"

#define GET_OP_CLASSES
#include "dialects/kt/KtOps.cpp.inc"
