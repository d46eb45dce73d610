// Imported IR back to the part of ModelDesc that placement reads, so that kt-place needs nothing but the IR, a policy
// and a target: a phase can be resumed from text on a machine that does not have the checkpoint.
#include "compiler/import/Import.h"
#include "dialects/kt/KtWalk.h"
#include "llvm/ADT/TypeSwitch.h"

namespace ktc::compiler {
namespace {

using mlir::FlatSymbolRefAttr;
using models::kNoModule;
using models::kNoSlot;

models::SourceLine lineOf(mlir::Location location) {
  std::string text = kt::locationText(location);
  std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {};
  return {text.substr(0, colon), std::atoi(text.c_str() + colon + 1)};
}

models::TensorType typeOf(mlir::Type type) {
  if (type.isF32()) return models::TensorType::f32;
  if (llvm::isa<mlir::Float8E4M3FNType>(type)) return models::TensorType::f8_e4m3;
  return type.isBF16() ? models::TensorType::bf16 : models::TensorType::f16;
}

class Reader {
 public:
  explicit Reader(mlir::ModuleOp module) : module_(module) {}

  Expected<models::ModelDesc> run() {
    kt::ModelAttr facts = kt::modelOf(module_);
    if (!facts) return broken("kt.model", "the module states no facts of the model");
    constexpr std::uint64_t kMaxLayers = 1 << 16;
    if (facts.getLayers() > kMaxLayers) return broken("kt.model", "more than 65536 layers");
    readFacts(facts);
    KTC_RETURN_IF_ERROR(readSlots());
    for (auto entry : module_.getOps<kt::EntryOp>()) {
      if (entry.getKind() == kt::EntryKind::sample) continue;
      for (auto step : entry.getBody().getOps<kt::StepOpInterface>()) KTC_RETURN_IF_ERROR(readStep(step));
      break;
    }
    for (const models::Module& module : model_.modules) {
      if (!isDescribed(module)) {
        return broken("module '" + module.name + "'",
                      "it has no step of its class, " + std::string(to_string(module.cls)));
      }
    }
    KTC_RETURN_IF_ERROR(readLayers());
    if (model_.embedding == kNoModule || model_.head == kNoModule || model_.final_norm == kNoModule) {
      return broken("kt.entry", "the body has no embedding, no norm behind the layers or no head");
    }
    model_.tied_head = std::get<models::EmbeddingDesc>(model_.modules[model_.embedding].attributes).weight ==
                       std::get<models::HeadDesc>(model_.modules[model_.head].attributes).weight;
    return std::move(model_);
  }

 private:
  static Status broken(std::string place, std::string what) {
    return make_error(StatusCode::invalid_argument, {.place = std::move(place),
                                                     .what = std::move(what),
                                                     .expected = "IR in phase imported, as import writes it",
                                                     .remedy = "start from the checkpoint"});
  }

  void readFacts(kt::ModelAttr facts) {
    model_.name = facts.getName().str();
    model_.family = facts.getFamily().str();
    model_.architecture = facts.getArchitecture().str();
    model_.hidden = static_cast<std::uint32_t>(facts.getHidden());
    model_.vocab = static_cast<std::uint32_t>(facts.getVocab());
    model_.max_positions = static_cast<std::uint32_t>(facts.getMaxPositions());
    model_.bos_token = static_cast<std::int32_t>(facts.getBosToken());
    model_.layers.resize(facts.getLayers());
    if (auto stops = facts.getStopTokens()) {
      model_.stop_tokens.assign(stops.asArrayRef().begin(), stops.asArrayRef().end());
    }
    if (mlir::DictionaryAttr stated = facts.getSampling()) readSampling(stated);
  }

  void readSampling(mlir::DictionaryAttr stated) {
    auto value = [&](llvm::StringRef name) -> std::optional<float> {
      auto attr = stated.getAs<mlir::FloatAttr>(name);
      return attr ? std::optional(static_cast<float>(attr.getValueAsDouble())) : std::nullopt;
    };
    model_.sampling.temperature = value("temperature");
    model_.sampling.top_p = value("top_p");
    model_.sampling.min_p = value("min_p");
    model_.sampling.repetition_penalty = value("repetition_penalty");
    if (auto k = stated.getAs<mlir::IntegerAttr>("top_k")) model_.sampling.top_k = static_cast<int>(k.getInt());
  }

  // ---------------------------------------------------------------------------------------------------------------
  // slots

  // Import takes every slot whole; anything else was made by a later pass.
  Status addSlot(mlir::Operation* op, mlir::ArrayAttr recipe, std::uint64_t batch, std::uint64_t rows,
                 std::uint64_t columns, mlir::Type type) {
    auto piece = recipe.size() == 1 ? llvm::cast<kt::PieceAttr>(recipe[0]) : kt::PieceAttr();
    if (!piece || piece.getRows() != rows || piece.getRowStep() != 1 || piece.getTranspose() ||
        piece.getRepeat() != 1) {
      return broken(kt::locationText(op->getLoc()), "a weight is not one whole slot");
    }
    models::WeightSlot slot;
    slot.name = piece.getSlot().str();
    slot.batch = batch;
    slot.rows = rows;
    slot.columns = columns;
    slot.type = typeOf(type);
    slot.line = lineOf(op->getLoc());
    model_.slots.push_back(std::move(slot));
    return {};
  }

  Status readSlots() {
    for (mlir::Operation& op : *module_.getBody()) {
      if (auto weight = llvm::dyn_cast<kt::WeightOp>(op)) {
        KTC_RETURN_IF_ERROR(addSlot(&op, weight.getRecipe(), weight.getBatch(), weight.getRows(), weight.getColumns(),
                                    weight.getSource()));
        symbols_[weight.getSymName()] = static_cast<std::uint32_t>(model_.slots.size() - 1);
      } else if (auto bank = llvm::dyn_cast<kt::ExpertBankOp>(op)) {
        std::uint64_t experts = bank.getExperts(), hidden = bank.getHidden(), inner = bank.getIntermediate();
        banks_[bank.getSymName()] = bank;
        symbols_[bank.getSymName()] = static_cast<std::uint32_t>(model_.slots.size());  // gate_up; down follows
        KTC_RETURN_IF_ERROR(addSlot(&op, bank.getGateUp(), experts, 2 * inner, hidden, bank.getSource()));
        KTC_RETURN_IF_ERROR(addSlot(&op, bank.getDown(), experts, hidden, inner, bank.getSource()));
      }
    }
    return {};
  }

  std::uint32_t slot(FlatSymbolRefAttr ref) {
    if (!ref) return kNoSlot;
    auto found = symbols_.find(ref.getValue());
    return found == symbols_.end() ? kNoSlot : found->second;
  }

  // -------------------------------------------------------------------------------------------------------------
  // modules

  // The module that a step belongs to, made at its first step.
  Expected<models::Module*> module(kt::StepOpInterface step) {
    kt::ModuleAttr attr = step.getModule();
    auto cls = models::parse_module_class(kt::stringifyModuleClass(attr.getCls()).str());
    auto [found, fresh] = modules_.try_emplace(attr.getName(), static_cast<std::uint32_t>(model_.modules.size()));
    if (fresh) {
      model_.modules.push_back(
          {*cls, attr.getName().str(), static_cast<int>(attr.getLayer()), {}, lineOf(step.getLoc())});
    }
    models::Module* module = &model_.modules[found->second];
    if (module->cls != *cls || module->layer != attr.getLayer()) {
      return broken(kt::locationText(step.getLoc()), "module '" + module->name + "' has two classes or layers");
    }
    return module;
  }

  // Modules of this class have steps like this one.
  static bool mayHave(models::ModuleClass cls, mlir::Operation* op) {
    using C = models::ModuleClass;
    return llvm::TypeSwitch<mlir::Operation*, bool>(op)
        .Case([&](kt::EmbedOp) { return cls == C::Embedding; })
        .Case([&](kt::NormOp) { return cls == C::Norm || cls == C::Attention; })
        .Case<kt::LinearOp, kt::GqaOp, kt::MlaOp>([&](auto) { return cls == C::Attention; })
        .Case([&](kt::RouteOp) { return cls == C::Router; })
        .Case([&](kt::ExpertsOp) { return cls == C::RoutedExperts; })
        .Case([&](kt::MlpOp) { return cls == C::DenseMlp || cls == C::SharedExperts; })
        .Case([&](kt::LmHeadOp) { return cls == C::Head; })
        .Default([](mlir::Operation*) { return true; });
  }

  // The module has the step that tells what it is.
  static bool isDescribed(const models::Module& module) {
    const models::ModuleAttributes& a = module.attributes;
    switch (module.cls) {
      case models::ModuleClass::Embedding:
        return std::holds_alternative<models::EmbeddingDesc>(a) && std::get<models::EmbeddingDesc>(a).weight != kNoSlot;
      case models::ModuleClass::Attention:
        return std::holds_alternative<models::GqaDesc>(a) || std::holds_alternative<models::MlaDesc>(a);
      case models::ModuleClass::DenseMlp:
      case models::ModuleClass::SharedExperts: return std::holds_alternative<models::MlpDesc>(a);
      case models::ModuleClass::Router: return std::holds_alternative<models::RouterDesc>(a);
      case models::ModuleClass::RoutedExperts: return std::holds_alternative<models::ExpertsDesc>(a);
      case models::ModuleClass::Norm: return std::holds_alternative<models::NormDesc>(a);
      case models::ModuleClass::Head: return std::holds_alternative<models::HeadDesc>(a);
      case models::ModuleClass::LinearAttention:
      case models::ModuleClass::Indexer: return false;  // no family has them yet
    }
    return false;
  }

  static kt::LinearOp linearOf(mlir::Value value) { return value.getDefiningOp<kt::LinearOp>(); }
  static kt::LinearOp linearAfter(mlir::Value value) {
    return value.hasOneUse() ? llvm::dyn_cast<kt::LinearOp>(*value.user_begin()) : kt::LinearOp();
  }
  static models::RopeDesc ropeOf(kt::RopeAttr rope) {
    models::RopeDesc out;
    out.style = rope.getStyle() == kt::RopeStyle::half ? models::RopeStyle::half : models::RopeStyle::interleaved;
    out.dim = static_cast<std::uint32_t>(rope.getDim());
    out.inv_freq.assign(rope.getInvFreq().asArrayRef().begin(), rope.getInvFreq().asArrayRef().end());
    out.factor = static_cast<float>(rope.getFactor().getValueAsDouble());
    return out;
  }

  Status readGqa(kt::GqaOp op, models::Module& module) {
    kt::LinearOp q = linearOf(op.getQ()), k = linearOf(op.getK()), v = linearOf(op.getV()),
                 o = linearAfter(op.getOut());
    if (!q || !k || !v || !o) return broken(kt::locationText(op.getLoc()), "attention without its four projections");
    models::GqaDesc d;
    d.heads = static_cast<std::uint32_t>(op.getHeads());
    d.kv_heads = static_cast<std::uint32_t>(op.getKvHeads());
    d.head_dim = static_cast<std::uint32_t>(op.getHeadDim());
    d.scale = op.getScale().convertToFloat();
    d.rope = ropeOf(op.getRope());
    d.norm_eps = op.getNormEps().convertToFloat();
    d.q = slot(q.getWeightAttr());
    d.k = slot(k.getWeightAttr());
    d.v = slot(v.getWeightAttr());
    d.o = slot(o.getWeightAttr());
    d.q_bias = slot(q.getBiasAttr());
    d.k_bias = slot(k.getBiasAttr());
    d.v_bias = slot(v.getBiasAttr());
    d.o_bias = slot(o.getBiasAttr());
    d.q_norm = slot(op.getQNormAttr());
    d.k_norm = slot(op.getKNormAttr());
    module.attributes = d;
    return {};
  }

  Status readMla(kt::MlaOp op, models::Module& module) {
    auto latentNorm = op.getLatent().getDefiningOp<kt::NormOp>();
    kt::LinearOp q = linearOf(op.getQ()), kv = linearOf(op.getKRope()), o = linearAfter(op.getOut());
    if (!latentNorm || !q || !kv || !o || !op.getKvBAttr()) {
      return broken(kt::locationText(op.getLoc()), "latent attention without its projections, its norm or kv_b");
    }
    models::MlaDesc d;
    d.heads = static_cast<std::uint32_t>(op.getHeads());
    d.kv_rank = static_cast<std::uint32_t>(op.getLatentDim());
    d.nope_dim = static_cast<std::uint32_t>(op.getNopeDim());
    d.rope_dim = static_cast<std::uint32_t>(op.getRopeDim());
    d.v_dim = static_cast<std::uint32_t>(op.getVDim());
    d.scale = op.getScale().convertToFloat();
    d.rope = ropeOf(op.getRope());
    d.latent_eps = latentNorm.getEps().convertToFloat();
    d.kv_a = slot(kv.getWeightAttr());
    d.kv_a_norm = slot(latentNorm.getWeightAttr());
    d.kv_b = slot(op.getKvBAttr());
    d.o = slot(o.getWeightAttr());
    if (auto norm = q.getX().getDefiningOp<kt::NormOp>(); norm && norm.getModule() == op.getModule()) {
      kt::LinearOp down = linearOf(norm.getX());
      if (!down) return broken(kt::locationText(op.getLoc()), "the norm of q has no projection before it");
      d.q_rank = static_cast<std::uint32_t>(kt::columnsOf(norm.getOut()));
      d.q_a = slot(down.getWeightAttr());
      d.q_a_norm = slot(norm.getWeightAttr());
      d.q_b = slot(q.getWeightAttr());
    } else {
      d.q = slot(q.getWeightAttr());
    }
    module.attributes = d;
    return {};
  }

  Status readExperts(kt::ExpertsOp op, models::Module& module) {
    kt::ExpertBankOp bank = banks_.lookup(op.getBank());
    if (!bank) return broken(kt::locationText(op.getLoc()), "experts without a bank");
    models::ExpertsDesc d;
    d.experts = static_cast<std::uint32_t>(bank.getExperts());
    d.intermediate = static_cast<std::uint32_t>(bank.getIntermediate());
    d.gate_up = slot(op.getBankAttr());
    d.down = d.gate_up + 1;
    module.attributes = d;
    return {};
  }

  static void readRoute(kt::RouteOp op, models::RouterDesc& d) {
    d.kind = op.getKind() == kt::RouterKind::softmax_topk ? models::RouterKind::softmax_topk
                                                          : models::RouterKind::sigmoid_group;
    d.experts = static_cast<std::uint32_t>(op.getExperts());
    d.top_k = static_cast<std::uint32_t>(op.getTopK());
    d.groups = static_cast<std::uint32_t>(op.getGroups());
    d.topk_groups = static_cast<std::uint32_t>(op.getTopkGroups());
    d.normalise = op.getNormalise();
    d.scale = op.getScale().convertToFloat();
  }

  Status readStep(kt::StepOpInterface step) {
    KTC_ASSIGN_OR_RETURN(models::Module * module, this->module(step));
    if (!mayHave(module->cls, step)) {
      return broken(kt::locationText(step.getLoc()), "module '" + module->name + "' of class " +
                                                         std::string(to_string(module->cls)) + " has a " +
                                                         step->getName().getStringRef().str());
    }
    auto index = static_cast<std::uint32_t>(module - model_.modules.data());
    return llvm::TypeSwitch<mlir::Operation*, Status>(step)
        .Case([&](kt::EmbedOp op) {
          module->attributes = models::EmbeddingDesc{slot(op.getWeightAttr())};
          model_.embedding = index;
          return Status();
        })
        .Case([&](kt::NormOp op) {
          if (module->cls != models::ModuleClass::Norm) return Status();  // inside attention
          module->attributes =
              models::NormDesc{models::NormKind::rms, op.getEps().convertToFloat(), slot(op.getWeightAttr())};
          if (module->layer < 0) model_.final_norm = index;
          return Status();
        })
        .Case([&](kt::GqaOp op) { return readGqa(op, *module); })
        .Case([&](kt::MlaOp op) { return readMla(op, *module); })
        .Case([&](kt::RouteOp op) {
          models::RouterDesc d;
          readRoute(op, d);
          d.weight = slot(op.getWeightAttr());
          d.bias = slot(op.getBiasAttr());
          module->attributes = d;
          return Status();
        })
        .Case([&](kt::ExpertsOp op) { return readExperts(op, *module); })
        .Case([&](kt::MlpOp op) {
          models::MlpDesc d;
          d.gate_up = slot(op.getGateUpAttr());
          d.down = slot(op.getDownAttr());
          if (d.gate_up != kNoSlot) d.intermediate = static_cast<std::uint32_t>(model_.slots[d.gate_up].rows / 2);
          module->attributes = d;
          return Status();
        })
        .Case([&](kt::LmHeadOp op) {
          module->attributes = models::HeadDesc{slot(op.getWeightAttr())};
          model_.head = index;
          return Status();
        })
        .Default([](mlir::Operation*) { return Status(); });  // belongs to a module that another step describes
  }

  Status readLayers() {
    for (std::uint32_t i = 0; i < model_.modules.size(); ++i) {
      const models::Module& module = model_.modules[i];
      if (module.layer < 0) continue;
      if (static_cast<std::size_t>(module.layer) >= model_.layers.size()) {
        return broken("module '" + module.name + "'", "its layer is not one of the model's");
      }
      models::Layer& layer = model_.layers[module.layer];
      switch (module.cls) {
        case models::ModuleClass::Norm:
          (layer.attention_norm == kNoModule ? layer.attention_norm : layer.ffn_norm) = i;
          break;
        case models::ModuleClass::Attention: layer.attention = i; break;
        case models::ModuleClass::DenseMlp: layer.mlp = i; break;
        case models::ModuleClass::Router: layer.router = i; break;
        case models::ModuleClass::RoutedExperts: layer.experts = i; break;
        case models::ModuleClass::SharedExperts: layer.shared = i; break;
        default: return broken("module '" + module.name + "'", "its class does not belong in a layer");
      }
    }
    return {};
  }

  mlir::ModuleOp module_;
  models::ModelDesc model_;
  llvm::StringMap<std::uint32_t> symbols_;  // weight or bank -> first slot
  llvm::StringMap<kt::ExpertBankOp> banks_;
  llvm::StringMap<std::uint32_t> modules_;
};

}  // namespace

Expected<models::ModelDesc> modelFromIr(mlir::ModuleOp module) {
  return Reader(module).run();
}

}  // namespace ktc::compiler
