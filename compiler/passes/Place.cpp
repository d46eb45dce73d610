// kt-place
#include "placement/place.h"

#include "compiler/import/Import.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/Remarks.h"
#include "compiler/passes/Symbols.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/MapVector.h"
#include "placement/device_formats.h"
#include "placement/streaming.h"
#include "placement/for_target.h"

namespace ktc::compiler {

#define GEN_PASS_DEF_PLACE
#include "compiler/passes/Passes.h.inc"

namespace {

using mlir::FlatSymbolRefAttr;
using placement::ModulePlacement;
using placement::Policy;
using placement::Target;

// What a policy may ask for that no pass does, or that this model cannot have.
Status checkServed(const models::ModelDesc& model, const Policy& policy, const placement::Placement& placement) {
  for (const models::Module& module : model.modules) {
    const auto* router = std::get_if<models::RouterDesc>(&module.attributes);
    if (!router || policy.defer.max_per_token <= router->top_k) continue;
    return make_error(StatusCode::invalid_argument,
                      {.place = placement::to_string(policy.defer.position),
                       .what = "more late experts than a token has",
                       .found = "max_per_token: " + std::to_string(policy.defer.max_per_token),
                       .expected = "at most " + std::to_string(router->top_k) + ", as '" + module.name + "' chooses"});
  }
  return {};
}

std::string formatText(Format format, std::uint32_t group) {
  return std::string(to_string(format)) + (placement::has_scales(format) ? ", group " + (group == 0 ? "row" : std::to_string(group)) : "");
}

// An expert that moves must stay what it is.
Status checkMoving(const models::ModelDesc& model, const Policy& policy, const placement::Placement& placement) {
  if (policy.experts.update_every_tokens == 0) return {};
  for (const placement::HotExperts& hot : placement.hot) {
    const ModulePlacement& cold = placement.modules[hot.module];
    if (cold.weights == hot.weights && (!placement::has_scales(hot.weights) || cold.group == hot.group)) continue;
    return make_error(StatusCode::invalid_argument,
                      {.place = placement::to_string(policy.experts.position),
                       .what = "experts that move at run time need one format, but those of '" + model.modules[hot.module].name + "' have two",
                       .found = formatText(hot.weights, hot.group) + " on " + hot.device,
                       .expected = formatText(cold.weights, cold.group) + " as on " + cold.device,
                       .remedy = "give experts.gpu the weights and group of the rule, or remove update"});
  }
  return {};
}

class Placer {
 public:
  Placer(mlir::ModuleOp module, const models::ModelDesc& model, const Policy& policy,
         const placement::Placement& placement)
      : module_(module), model_(model), policy_(policy), placement_(placement), symbols_(module) {}

  // Error: an entry has a module that the first entry, from which the model was read, does not have.
  Status run() {
    for (std::size_t i = 0; i < model_.modules.size(); ++i) places_[model_.modules[i].name] = &placement_.modules[i];
    Status status;
    forEachStep(module_, [&](kt::StepOpInterface step) {
      auto found = places_.find(step.getModule().getName().str());
      if (found != places_.end()) return place(step, *found->second);
      if (!status.ok()) return;
      status = make_error(StatusCode::invalid_argument, {.place = kt::locationText(step.getLoc()),
                                                         .what = "the entries are not of one model",
                                                         .found = "module '" + step.getModule().getName().str() + "'",
                                                         .expected = "a module of the first entry",
                                                         .remedy = "start from the checkpoint"});
    });
    if (!status.ok()) return status;
    for (const placement::HotExperts& hot : placement_.hot) markHot(hot);
    // a layer whose experts are all on the GPU has none to move
    const bool moves = llvm::any_of(placement_.hot, [&](const placement::HotExperts& hot) {
      const auto* experts = std::get_if<models::ExpertsDesc>(&model_.modules[hot.module].attributes);
      return experts && hot.ids.size() < experts->experts;
    });
    if (moves && policy_.experts.update_every_tokens != 0)
      module_->setAttr(kt::kUpdate, mlir::Builder(module_.getContext()).getI64IntegerAttr(policy_.experts.update_every_tokens));
    if (const placement::DeferPolicy& defer = policy_.defer; defer.max_per_token != 0) {
      module_->setAttr(kt::kDefer, kt::DeferAttr::get(module_.getContext(), defer.max_per_token, defer.decode, defer.extend,
                                                      defer.scope == placement::DeferScope::all,
                                                      placement::to_string(defer.position)));
    }
    if (const placement::StreamChoice& stream = placement_.stream; stream.from != 0 || !stream.points.empty()) writeStream(stream);
    for (auto cache : llvm::make_early_inc_range(module_.getOps<kt::CacheOp>())) placeCache(cache);
    return {};
  }

  unsigned copies() const { return copies_; }

 private:
  // What kt-stream-experts will do: from how many tokens on, with the figures that say why, and on the banks what the CPU shares.
  void writeStream(const placement::StreamChoice& stream) {
    const std::string why = placement::describe(stream);
    module_->setAttr(kt::kStream, kt::StreamAttr::get(module_.getContext(), stream.from, why, placement::to_string(policy_.batch.position)));
    forEachStep(module_, [&](kt::StepOpInterface step) {
      auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (!experts) return;
      for (const auto& [module, s] : stream.shares) {
        if (step.getModule().getName() != model_.modules[module].name) continue;
        auto bank = symbols_.lookup<kt::ExpertBankOp>(experts.getBank());
        bank.setShareAttr(kt::ShareAttr::get(module_.getContext(), s.ahead_ns, s.ahead_row_ns, s.copy_ns, s.gpu_ns, s.gpu_row_ns,
                                             s.cpu_ns, s.cpu_row_ns, s.values_ns, s.values_row_ns));
      }
    });
  }

  // Each device has the layers of its attention, in a cache of its own; all have the pages of one table.
  void placeCache(kt::CacheOp cache) {
    struct Part {
      kt::CacheOp cache;
      std::map<int64_t, int64_t> layers;  // old to new
    };
    llvm::MapVector<llvm::StringRef, Part> parts;  // by device, in the order of the layers
    const auto forEachUse = [&](auto visit) {
      forEachStep(module_, [&](kt::StepOpInterface step) {
        const auto use = [&](auto attention) {
          if (attention && attention.getCache() == cache.getSymName()) visit(attention);
        };
        use(llvm::dyn_cast<kt::GqaOp>(step.getOperation()));
        use(llvm::dyn_cast<kt::MlaOp>(step.getOperation()));
      });
    };
    forEachUse([&](auto attention) { parts[attention.getPlaceAttr().getDevice()].layers[attention.getCacheLayer()] = 0; });
    mlir::Operation* behind = cache;
    for (auto& [device, part] : parts) {
      int64_t layers = 0;
      for (auto& [before, now] : part.layers) now = layers++;
      part.cache = cache;
      if (&part != &parts.front().second) {
        part.cache = llvm::cast<kt::CacheOp>(cache->clone());
        part.cache.setSymName((cache.getSymName() + "-" + device).str());
        symbols_.insert(part.cache, std::next(behind->getIterator()));
        behind = part.cache;
      }
    }
    mlir::Builder builder(module_.getContext());
    llvm::SmallVector<std::pair<mlir::Operation*, std::pair<mlir::StringAttr, int64_t>>> moved;
    forEachUse([&](auto attention) {
      Part& part = parts[attention.getPlaceAttr().getDevice()];
      moved.push_back({attention, {part.cache.getSymNameAttr(), part.layers[attention.getCacheLayer()]}});
    });
    for (auto& [op, to] : moved) {
      op->setAttr("cache", mlir::FlatSymbolRefAttr::get(to.first));
      op->setAttr("cache_layer", builder.getI64IntegerAttr(to.second));
    }
    for (auto& [device, part] : parts) {
      part.cache.setLayers(static_cast<int64_t>(part.layers.size()));
      part.cache.setDevice(device);
      part.cache.setFormat(to_string(policy_.kv_cache.dtype));
    }
    if (!parts.empty()) return;
    cache.setDevice(placement_.kv_device);  // nothing uses it
    cache.setFormat(to_string(policy_.kv_cache.dtype));
  }

  // What kt-split-experts will do, written on the banks of the layer's experts.
  void markHot(const placement::HotExperts& hot) {
    llvm::SmallVector<int32_t> ids(hot.ids.begin(), hot.ids.end());
    mlir::Builder builder(module_.getContext());
    auto attr = kt::HotAttr::get(module_.getContext(), hot.device, to_string(hot.weights), to_string(hot.activations),
                                 hot.group, builder.getDenseI32ArrayAttr(ids),
                                 placement::to_string(policy_.experts.on_gpu_position));
    forEachStep(module_, [&](kt::StepOpInterface step) {
      auto experts = llvm::dyn_cast<kt::ExpertsOp>(step.getOperation());
      if (!experts || step.getModule().getName() != model_.modules[hot.module].name) return;
      auto bank = symbols_.lookup<kt::ExpertBankOp>(experts.getBank());
      llvm::SmallVector<mlir::Attribute> all;  // by device; entries share the bank
      if (bank.getHotAttr()) all.append(bank.getHotAttr().begin(), bank.getHotAttr().end());
      if (!llvm::is_contained(all, attr)) all.push_back(attr);
      bank.setHotAttr(builder.getArrayAttr(all));
    });
  }

  // The residual stays where it is: only the result of the experts is moved to it. True: this step is placed.
  static bool placeSum(kt::StepOpInterface step, const ModulePlacement& module) {
    auto add = llvm::dyn_cast<kt::AddOp>(step.getOperation());
    if (!add || step.getModule().getCls() != kt::ModuleClass::RoutedExperts) return false;
    auto residual = add.getTerms().front().getDefiningOp<kt::StepOpInterface>();
    if (!residual || residual.getPlaceAttr().getDevice() == module.device) return false;
    step.setPlaceAttr(residual.getPlaceAttr());
    return true;
  }

  void place(kt::StepOpInterface step, const ModulePlacement& module) {
    if (placeSum(step, module)) return;
    const ModulePlacement placed = forStep(step, module);
    mlir::MLIRContext* context = module_.getContext();
    step.setPlaceAttr(
        kt::PlaceAttr::get(context, placed.device, to_string(placed.weights), to_string(placed.activations)));
    addRule(step, placed);
    // one pass over the op's attributes, so that exchanging two names does not exchange them twice
    llvm::DenseMap<mlir::Attribute, FlatSymbolRefAttr> renamed;
    for (FlatSymbolRefAttr ref : step.getWeights()) {
      FlatSymbolRefAttr other = placeWeight(ref, placed);
      if (other != ref) renamed[ref] = other;
    }
    if (renamed.empty()) return;
    mlir::AttrTypeReplacer replacer;
    replacer.addReplacement([&](FlatSymbolRefAttr ref) -> mlir::Attribute {
      auto found = renamed.find(ref);
      return found == renamed.end() ? ref : found->second;
    });
    replacer.replaceElementsIn(step, /*replaceAttrs=*/true, /*replaceLocs=*/false, /*replaceTypes=*/false);
  }

  // Weights with scales are for products with a matrix, as is whatever a CPU has in panels. What else a module does takes f32: norms,
  // rope, scores. The per-head matrices of latent attention are multiplied in that arithmetic, so they are not rounded
  // (docs/policy.md).
  static ModulePlacement forStep(kt::StepOpInterface step, ModulePlacement placed) {
    if (llvm::isa<kt::LinearOp, kt::LmHeadOp, kt::MlpOp, kt::ExpertsOp>(step.getOperation())) return placed;
    const bool scales = placement::has_scales(placed.weights);
    if (scales) placed.weights = placed.unrounded;
    if (scales || placed.device == "cpu") placed.activations = Format::f32;
    if (scales) placed.group = 0;
    return placed;
  }

  // The weight in the module's place: itself, or a copy where another module has it elsewhere already.
  FlatSymbolRefAttr placeWeight(FlatSymbolRefAttr ref, const ModulePlacement& placed) {
    mlir::Operation* op = symbols_.lookup(ref.getValue());
    if (auto bank = llvm::dyn_cast_or_null<kt::ExpertBankOp>(op)) {
      if (!bank.getDeviceAttr()) setPlace(bank, placed, placed.weights);
      return ref;
    }
    auto weight = llvm::cast<kt::WeightOp>(op);
    const Format format = weight.isVector() ? Format::f32 : placed.weights;
    const std::string word(to_string(format));
    const Packing packing = packingOf(placed, format);
    const std::string packed(to_string(packing));
    if (!weight.getDeviceAttr()) setPlace(weight, placed, format);
    if (*weight.getDevice() == placed.device && *weight.getFormat() == word && *weight.getPacking() == packed &&
        weight.getGroup().value_or(0) == groupOf(placed, format)) {
      return ref;
    }

    std::string name = ref.getValue().str() + "-";
    if (*weight.getDevice() != placed.device) name += placed.device + "-";
    name += word;
    if (groupOf(placed, format) != 0) name += "-" + std::to_string(placed.group);
    if (packing == Packing::panel && !placement::has_scales(format)) name += "-panel";
    if (!symbols_.lookup(name)) {
      auto copy = llvm::cast<kt::WeightOp>(weight->clone());
      copy.setSymName(name);
      setPlace(copy, placed, format);
      symbols_.insert(copy, std::next(weight->getIterator()));
      ++copies_;
    }
    return FlatSymbolRefAttr::get(module_.getContext(), name);
  }

  template <typename Op>
  void setPlace(Op op, const ModulePlacement& placed, Format format) {
    op.setDevice(placed.device);
    op.setFormat(to_string(format));
    op.setPacking(to_string(packingOf(placed, format)));
    mlir::IntegerType number = mlir::IntegerType::get(op.getContext(), 64);
    if (const std::uint32_t group = groupOf(placed, format)) {
      op.setGroupAttr(mlir::IntegerAttr::get(number, group));
    } else {
      op.removeGroupAttr();
    }
    addRule(op, placed);
  }

  // kt-tile-cpu makes some panels paired ones.
  static Packing packingOf(const ModulePlacement& placed, Format format) {
    if (placed.device != "cpu") return placement::has_scales(format) ? Packing::gpu_rows : Packing::row_major;
    return placement::has_panels(format, placed.activations) ? Packing::panel : Packing::row_major;
  }

  static std::uint32_t groupOf(const ModulePlacement& placed, Format format) {
    return format == placed.weights ? placed.group : 0;
  }

  void addRule(mlir::Operation* op, const ModulePlacement& placed) {
    if (placed.rule < 0) return;
    const placement::Position& rule = policy_.rules[placed.rule].position;
    op->setLoc(kt::withRule(op->getLoc(), rule.file, rule.line, rule.column));
  }

  mlir::ModuleOp module_;
  const models::ModelDesc& model_;
  const Policy& policy_;
  const placement::Placement& placement_;
  mlir::SymbolTable symbols_;
  std::map<std::string, const ModulePlacement*> places_;  // by module
  unsigned copies_ = 0;
};

struct Place : impl::PlaceBase<Place> {
  using PlaceBase::PlaceBase;
  Place(const Policy& policy, const Target& target, Status& status, PlacedModel already)
      : policyObject(&policy), targetObject(&target), placed(already), statusSink(&status) {}

  void runOnOperation() override {
    Status status = run();
    if (status.ok()) return;
    // the message begins with its place, a line of the policy in most cases
    mlir::emitError(mlir::UnknownLoc::get(&getContext())) << status.message();
    if (statusSink) *statusSink = status;
    signalPassFailure();
  }

  Status run() {
    Policy readPolicy;
    Target readTarget;
    if (!policyObject) {
      if (policy.empty()) {
        return make_error(StatusCode::invalid_argument,
                          {.place = "kt-place", .what = "no policy", .remedy = "give policy=FILE"});
      }
      KTC_ASSIGN_OR_RETURN(readPolicy, placement::read_policy(policy.getValue()));
      if (target.empty()) {
        readTarget = placement::host_target();
      } else {
        KTC_ASSIGN_OR_RETURN(readTarget, placement::read_target(target.getValue()));
      }
      readPolicy = placement::for_target(std::move(readPolicy), readTarget);
    }
    const Policy& with = policyObject ? *policyObject : readPolicy;
    const Target& on = targetObject ? *targetObject : readTarget;
    if (placed.placement) return write(*placed.model, with, *placed.placement);
    KTC_ASSIGN_OR_RETURN(models::ModelDesc model, modelFromIr(getOperation()));
    KTC_ASSIGN_OR_RETURN(placement::Placement placement, placement::place(model, with, on));
    return write(model, with, placement);
  }

  Status write(const models::ModelDesc& model, const Policy& with, const placement::Placement& placement) {
    KTC_RETURN_IF_ERROR(checkServed(model, with, placement));
    KTC_RETURN_IF_ERROR(checkMoving(model, with, placement));
    Placer placer(getOperation(), model, with, placement);
    KTC_RETURN_IF_ERROR(placer.run());
    remarkCounts(getOperation(), "kt-place", {{"copies", placer.copies()}});
    return {};
  }

  const Policy* policyObject = nullptr;
  const Target* targetObject = nullptr;
  PlacedModel placed;
  Status* statusSink = nullptr;
};

}  // namespace

std::unique_ptr<mlir::Pass> createPlace(const Policy& policy, const Target& target, Status& status, PlacedModel placed) {
  return std::make_unique<Place>(policy, target, status, placed);
}

}  // namespace ktc::compiler
