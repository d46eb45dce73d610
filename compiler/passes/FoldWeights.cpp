// kt-fold-weights
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_FOLDWEIGHTS
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::FlatSymbolRefAttr;
using mlir::Value;

constexpr llvm::StringLiteral kName = "kt-fold-weights";

// A recipe of one whole slot, as imported; null for anything else.
kt::PieceAttr wholeSlot(kt::WeightOp weight) {
  if (weight.getRecipe().size() != 1) return {};
  auto piece = llvm::cast<kt::PieceAttr>(weight.getRecipe()[0]);
  bool whole = piece.getRows() == weight.getRows() && piece.getRowStep() == 1 && piece.getRepeat() == 1 &&
               !piece.getTranspose() && weight.getBatch() == 1;
  return whole ? piece : kt::PieceAttr();
}

class Folder {
 public:
  explicit Folder(mlir::ModuleOp module) : module_(module), context_(module.getContext()), symbols_(module) {}

  // ----------------------------------------------------------------------------------------------------- kv_b to W_UK,
  // W_UV

  mlir::LogicalResult splitLatent() {
    mlir::LogicalResult result = mlir::success();
    forEachStep(module_, [&](kt::StepOpInterface step) {
      auto op = llvm::dyn_cast<kt::MlaOp>(step.getOperation());
      if (!op || !op.getKvBAttr() || mlir::failed(result)) return;
      auto source = symbols_.lookup<kt::WeightOp>(op.getKvB().value());
      kt::PieceAttr whole = wholeSlot(source);
      if (!whole) {
        result = op.emitOpError() << op.getKvBAttr() << " is not one whole slot; expected kv_b as imported";
        return;
      }
      uint64_t heads = op.getHeads(), nope = op.getNopeDim(), v = op.getVDim(), latent = op.getLatentDim();
      op.setWUkAttr(half(source, "w_uk", {heads, latent, nope}, headRows(whole, 0, nope, nope + v, heads, true)));
      op.setWUvAttr(half(source, "w_uv", {heads, v, latent}, headRows(whole, nope, v, nope + v, heads, false)));
      op.removeKvBAttr();
    });
    return result;
  }

  // ------------------------------------------------------------------------------------------------ interleaved rope
  // to half

  void permuteRopes() {
    // attention ops that share a projection (the same layer in every entry) are permuted together or not at all
    llvm::MapVector<std::pair<mlir::Attribute, mlir::Attribute>, llvm::SmallVector<mlir::Operation*>> groups;
    llvm::StringMap<Steps> users = usersOfWeights(module_);
    auto consider = [&](mlir::Operation* op, kt::RopeAttr rope, Value q, Value k, bool normed) {
      if (rope.getStyle() != kt::RopeStyle::interleaved) return;
      if (normed) return missed(op, "a norm lies between projection and rope");
      auto projectionQ = q.getDefiningOp<kt::LinearOp>(), projectionK = k.getDefiningOp<kt::LinearOp>();
      // of several results, the rope rows are the last ones: kv_a of latent attention
      if (!projectionQ || !projectionK || q != projectionQ.getOuts().back() || k != projectionK.getOuts().back() ||
          projectionQ.getOuts().size() != 1 || (llvm::isa<kt::GqaOp>(op) && projectionK.getOuts().size() != 1)) {
        return missed(op, "q or k is not the whole result of a projection");
      }
      groups[{projectionQ.getWeightAttr(), projectionK.getWeightAttr()}].push_back(op);
    };
    forEachStep(module_, [&](kt::StepOpInterface step) {
      mlir::Operation* op = step;
      if (auto gqa = llvm::dyn_cast<kt::GqaOp>(op)) {
        consider(op, gqa.getRope(), gqa.getQ(), gqa.getK(), gqa.getQNormAttr() || gqa.getKNormAttr());
      } else if (auto mla = llvm::dyn_cast<kt::MlaOp>(op)) {
        consider(op, mla.getRope(), mla.getQ(), mla.getKRope(), false);
      }
    });
    for (auto& [weights, ops] : groups) {
      auto q = symbols_.lookup<kt::WeightOp>(llvm::cast<FlatSymbolRefAttr>(weights.first).getValue());
      auto k = symbols_.lookup<kt::WeightOp>(llvm::cast<FlatSymbolRefAttr>(weights.second).getValue());
      llvm::StringRef why = q == k                           ? "q and k share a projection"
                            : !wholeSlot(q) || !wholeSlot(k) ? "a projection is not one whole slot"
                            : !alike(ops)                    ? "entries disagree on heads or rope"
                            : !exclusive(users, q, ops) || !exclusive(users, k, ops)
                                ? "a projection has a bias, or results that something else uses"
                                : "";
      if (!why.empty()) {
        for (mlir::Operation* op : ops) missed(op, why);
        continue;
      }
      permute(q, k, ops.front());
      for (mlir::Operation* op : ops) setHalf(op);
      permutations_ += 2;
    }
  }

  // --------------------------------------------------------------------------------- projections of one value, side by
  // side

  void concatenate() {
    llvm::StringSet<> others;  // weights that something else than a projection uses
    for (auto& [name, steps] : usersOfWeights(module_)) {
      if (!llvm::all_of(steps, [](kt::StepOpInterface step) { return llvm::isa<kt::LinearOp>(step.getOperation()); })) {
        others.insert(name);
      }
    }
    for (auto entry : module_.getOps<kt::EntryOp>()) {
      llvm::MapVector<Value, llvm::SmallVector<kt::LinearOp>> groups;
      for (auto linear : entry.getBody().getOps<kt::LinearOp>()) groups[linear.getX()].push_back(linear);
      for (auto& [x, linears] : groups) {
        if (linears.size() < 2) continue;
        if (llvm::StringRef why = mismatch(others, linears); !why.empty()) {
          missed(linears.front(), why);
        } else {
          join(linears);
        }
      }
    }
  }

  void removeUnused() {
    llvm::StringMap<Steps> users = usersOfWeights(module_);
    for (kt::WeightOp weight : llvm::make_early_inc_range(module_.getOps<kt::WeightOp>())) {
      if (!users.contains(weight.getSymName())) symbols_.erase(weight);
    }
  }

  unsigned splits() const { return splits_; }
  unsigned permutations() const { return permutations_; }
  unsigned concatenations() const { return concatenations_; }

 private:
  static void missed(mlir::Operation* op, llvm::StringRef why) {
    mlir::remark::missed(op->getLoc(), remark(kName, "NotFolded")) << why;
  }

  kt::PieceAttr piece(llvm::StringRef slot, uint64_t rows, uint64_t srcRow, uint64_t rowStep, uint64_t dstRow,
                      uint64_t repeat = 1, uint64_t perHead = 0) {
    return kt::PieceAttr::get(context_, slot, rows, srcRow, rowStep, /*transpose=*/false, /*dst_batch=*/0, dstRow,
                              repeat, perHead, /*repeat_dst_batch=*/0, perHead);
  }

  // Rows [begin, begin + rows) of every head, one matrix per head.
  kt::PieceAttr headRows(kt::PieceAttr whole, uint64_t begin, uint64_t rows, uint64_t perHead, uint64_t heads,
                         bool transpose) {
    return kt::PieceAttr::get(context_, whole.getSlot(), rows, whole.getSrcRow() + begin, 1, transpose, 0, 0, heads,
                              heads == 1 ? 0 : perHead, heads == 1 ? 0 : 1, 0);
  }

  FlatSymbolRefAttr half(kt::WeightOp source, llvm::StringRef suffix, std::array<uint64_t, 3> shape,
                         kt::PieceAttr piece) {
    std::string name = (source.getSymName() + "." + suffix).str();
    if (!symbols_.lookup(name)) {
      auto copy = llvm::cast<kt::WeightOp>(source->clone());
      copy.setSymName(name);
      copy.setShape({int64_t(shape[0]), int64_t(shape[1]), int64_t(shape[2])});
      copy.setRecipeAttr(mlir::ArrayAttr::get(context_, piece));
      symbols_.insert(copy, source->getIterator());
      splits_ += suffix == "w_uk";
    }
    return FlatSymbolRefAttr::get(context_, name);
  }

  // The same rows are rope rows of the same heads for all of them.
  static bool alike(llvm::ArrayRef<mlir::Operation*> ops) {
    return llvm::all_of(ops, [&](mlir::Operation* op) {
      return op->getName() == ops[0]->getName() && op->getAttr("rope") == ops[0]->getAttr("rope") &&
             op->getAttr("heads") == ops[0]->getAttr("heads");
    });
  }

  // Every use of the weight is a projection without a bias for one of `ops`.
  static bool exclusive(llvm::StringMap<Steps>& users, kt::WeightOp weight, llvm::ArrayRef<mlir::Operation*> ops) {
    return llvm::all_of(users[weight.getSymName()], [&](kt::StepOpInterface step) {
      auto linear = llvm::dyn_cast<kt::LinearOp>(step.getOperation());
      if (!linear || linear.getBiasAttr()) return false;
      // the rope rows are those of the last result; q of any kind and k of GQA have one
      mlir::Value last = linear.getOuts().back();
      return last.hasOneUse() && llvm::is_contained(ops, *last.user_begin());
    });
  }

  void permute(kt::WeightOp q, kt::WeightOp k, mlir::Operation* op) {
    if (auto gqa = llvm::dyn_cast<kt::GqaOp>(op)) {
      ropeRows(q, 0, 0, gqa.getHeadDim(), gqa.getHeads());
      ropeRows(k, 0, 0, gqa.getHeadDim(), gqa.getKvHeads());
    } else {
      auto mla = llvm::cast<kt::MlaOp>(op);
      ropeRows(q, 0, mla.getNopeDim(), mla.getRopeDim(), mla.getHeads());
      ropeRows(k, k.getRows() - mla.getRopeDim(), 0, mla.getRopeDim(), 1);
    }
    mlir::remark::passed(op->getLoc(), remark(kName, "RopePermuted"))
        << "interleaved rope became half by reordering rows";
  }

  // From row `begin` on there are `heads` heads of [nope, rope] rows: the even rope rows of a head move before its odd
  // ones.
  void ropeRows(kt::WeightOp weight, uint64_t begin, uint64_t nope, uint64_t rope, uint64_t heads) {
    kt::PieceAttr whole = wholeSlot(weight);
    llvm::StringRef slot = whole.getSlot();
    uint64_t src = whole.getSrcRow(), perHead = heads == 1 ? 0 : nope + rope;
    llvm::SmallVector<mlir::Attribute> pieces;
    if (begin != 0) pieces.push_back(piece(slot, begin, src, 1, 0));
    if (nope != 0) pieces.push_back(piece(slot, nope, src + begin, 1, begin, heads, perHead));
    pieces.push_back(piece(slot, rope / 2, src + begin + nope, 2, begin + nope, heads, perHead));
    pieces.push_back(piece(slot, rope / 2, src + begin + nope + 1, 2, begin + nope + rope / 2, heads, perHead));
    weight.setRecipeAttr(mlir::ArrayAttr::get(context_, pieces));
  }

  void setHalf(mlir::Operation* op) {
    auto half = [&](kt::RopeAttr rope) {
      return kt::RopeAttr::get(context_, kt::RopeStyle::half, rope.getFactor(), rope.getInvFreq());
    };
    if (auto gqa = llvm::dyn_cast<kt::GqaOp>(op)) gqa.setRopeAttr(half(gqa.getRope()));
    if (auto mla = llvm::dyn_cast<kt::MlaOp>(op)) mla.setRopeAttr(half(mla.getRope()));
  }

  // Why the projections of one value stay apart; empty: they need not.
  llvm::StringRef mismatch(const llvm::StringSet<>& others, llvm::ArrayRef<kt::LinearOp> linears) {
    kt::LinearOp first = linears.front();
    auto of = [&](kt::LinearOp linear) { return symbols_.lookup<kt::WeightOp>(linear.getWeight()); };
    for (kt::LinearOp linear : linears) {
      if (linear.getModule() != first.getModule()) return "the projections belong to different modules";
      if (linear.getBiasAttr()) return "a projection has a bias";
      if (linear.getPlaceAttr() != first.getPlaceAttr()) return "the projections are in different places";
      kt::WeightOp a = of(first), b = of(linear);
      if (a.getSource() != b.getSource() || a.getDeviceAttr() != b.getDeviceAttr() ||
          a.getFormatAttr() != b.getFormatAttr() || a.getPackingAttr() != b.getPackingAttr() ||
          a.getGroupAttr() != b.getGroupAttr()) {
        return "the weights differ in checkpoint type, device, format, group or packing";
      }
      if (others.contains(b.getSymName())) return "something else uses one of the weights";
    }
    return "";
  }

  void join(llvm::ArrayRef<kt::LinearOp> linears) {
    kt::LinearOp first = linears.front();
    llvm::SmallVector<mlir::Type> types;
    llvm::SmallVector<kt::WeightOp> parts;
    for (kt::LinearOp linear : linears) {
      llvm::append_range(types, linear.getOuts().getTypes());
      parts.push_back(symbols_.lookup<kt::WeightOp>(linear.getWeight()));
    }
    mlir::OpBuilder builder(first);
    llvm::SmallVector<mlir::Location> locations;
    for (kt::LinearOp linear : linears) locations.push_back(linear.getLoc());
    auto joined = kt::LinearOp::create(builder, builder.getFusedLoc(locations), types, first.getX(), joinedWeight(parts),
                                       FlatSymbolRefAttr(), first.getModule(), first.getTileAttr(), first.getPlaceAttr(), {},
                                       {}, {}, {}, {});
    unsigned next = 0;
    for (kt::LinearOp linear : linears) {
      for (Value out : linear.getOuts()) out.replaceAllUsesWith(joined.getOuts()[next++]);
      linear.erase();
    }
  }

  // "model.layers.0.self_attn.q.k.v": the common prefix up to a dot, then what differs.
  static std::string joinedName(llvm::ArrayRef<kt::WeightOp> parts) {
    std::string name = kt::WeightOp(parts[0]).getSymName().str();
    std::size_t prefix = name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1;
    for (kt::WeightOp part : parts.drop_front()) {
      llvm::StringRef other = part.getSymName();
      name += "." + (other.starts_with(name.substr(0, prefix)) ? other.substr(prefix) : other).str();
    }
    return name;
  }

  FlatSymbolRefAttr joinedWeight(llvm::ArrayRef<kt::WeightOp> parts) {
    std::string name = joinedName(parts);
    if (!symbols_.lookup(name)) {
      llvm::SmallVector<mlir::Attribute> pieces;
      uint64_t rows = 0;
      for (kt::WeightOp part : parts) {
        for (auto p : part.getRecipe().getAsRange<kt::PieceAttr>()) {
          pieces.push_back(kt::PieceAttr::get(context_, p.getSlot(), p.getRows(), p.getSrcRow(), p.getRowStep(),
                                              p.getTranspose(), p.getDstBatch(), p.getDstRow() + rows, p.getRepeat(),
                                              p.getRepeatSrcRow(), p.getRepeatDstBatch(), p.getRepeatDstRow()));
        }
        rows += part.getRows();
      }
      kt::WeightOp first = parts[0];
      auto copy = llvm::cast<kt::WeightOp>(first->clone());
      copy.setSymName(name);
      copy.setShape({1, int64_t(rows), int64_t(first.getColumns())});
      copy.setRecipeAttr(mlir::ArrayAttr::get(context_, pieces));
      symbols_.insert(copy, first->getIterator());
      ++concatenations_;
      mlir::remark::passed(first.getLoc(), remark(kName, "Concatenated")) << name;
    }
    return FlatSymbolRefAttr::get(context_, name);
  }

  mlir::ModuleOp module_;
  mlir::MLIRContext* context_;
  mlir::SymbolTable symbols_;
  unsigned splits_ = 0, permutations_ = 0, concatenations_ = 0;
};

struct FoldWeights : impl::FoldWeightsBase<FoldWeights> {
  using FoldWeightsBase::FoldWeightsBase;

  void runOnOperation() override {
    Folder folder(getOperation());
    // rows are reordered before they are joined: a permutation is of one slot
    if (mlir::failed(folder.splitLatent())) return signalPassFailure();
    if (enable) {
      folder.permuteRopes();
      folder.concatenate();
    }
    folder.removeUnused();
    remarkCounts(getOperation(), kName,
                 {{"splits", folder.splits()},
                  {"permutations", folder.permutations()},
                  {"concatenations", folder.concatenations()}});
  }
};

}  // namespace
}  // namespace ktc::compiler
