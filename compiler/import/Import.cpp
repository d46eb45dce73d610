#include "compiler/import/Import.h"

#include <set>

#include "dialects/kt/KtWalk.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Verifier.h"

namespace ktc::compiler {
namespace {

using mlir::FlatSymbolRefAttr;
using mlir::Value;
using models::kNoModule;
using models::kNoSlot;
using models::Module;
using models::WeightSlot;

class Importer {
 public:
  Importer(mlir::MLIRContext& context, const models::ModelDesc& model, const placement::Policy& policy)
      : context_(context), model_(model), policy_(policy), builder_(&context), f32_(builder_.getF32Type()) {}

  mlir::OwningOpRef<mlir::ModuleOp> run(const placement::Target& target) {
    mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(locate({model_.family + ".yaml", 1}));
    module_ = *module;
    addFacts(target);
    // symbols in front, the entry behind them
    auto entry = kt::EntryOp::create(builder_, module_.getLoc(), "model", kt::EntryKind::generic, kt::BoundsAttr(),
                                     mlir::ArrayAttr(), mlir::ArrayAttr(), mlir::IntegerAttr(), mlir::StringAttr());
    module_.getBody()->push_back(entry);
    symbols_ = entry;
    addBody(entry);
    return module;
  }

 private:
  // -------------------------------------------------------------------------------------------------- facts and small
  // parts

  mlir::Location locate(const models::SourceLine& line) {
    return mlir::FileLineColLoc::get(&context_, line.file, line.line, 0);
  }

  mlir::FloatAttr f32(float value) { return builder_.getF32FloatAttr(value); }

  mlir::IntegerAttr i64(int64_t value) { return builder_.getI64IntegerAttr(value); }
  kt::ActivationAttr swiglu() { return kt::ActivationAttr::get(&context_, kt::Activation::swiglu); }

  mlir::Type typeOf(models::TensorType type) {
    switch (type) {
      case models::TensorType::f32: return builder_.getF32Type();
      case models::TensorType::bf16: return builder_.getBF16Type();
      case models::TensorType::f16: return builder_.getF16Type();
      case models::TensorType::f8_e4m3: return mlir::Float8E4M3FNType::get(&context_);
      case models::TensorType::other: break;  // in skipped tensors only
    }
    return {};
  }

  void addFacts(const placement::Target& target) {
    llvm::SmallVector<mlir::NamedAttribute> sampling;
    auto state = [&](llvm::StringRef name, std::optional<float> value) {
      if (value) sampling.push_back(builder_.getNamedAttr(name, f32(*value)));
    };
    const models::SamplingDefaults& defaults = model_.sampling;
    state("min_p", defaults.min_p);
    state("repetition_penalty", defaults.repetition_penalty);
    state("temperature", defaults.temperature);
    state("top_p", defaults.top_p);
    if (defaults.top_k) sampling.push_back(builder_.getNamedAttr("top_k", builder_.getI32IntegerAttr(*defaults.top_k)));
    module_->setAttr(kt::kModel, kt::ModelAttr::get(
                                     &context_, model_.name, model_.family, model_.architecture, model_.hidden,
                                     model_.vocab, model_.layers.size(), model_.max_positions, model_.bos_token,
                                     model_.stop_tokens.empty() ? mlir::DenseI32ArrayAttr()
                                                                : builder_.getDenseI32ArrayAttr(model_.stop_tokens),
                                     sampling.empty() ? mlir::DictionaryAttr() : builder_.getDictionaryAttr(sampling)));
    module_->setAttr(kt::kPolicy, builder_.getStringAttr(policyText(policy_)));
    module_->setAttr(kt::kTarget, builder_.getStringAttr(target.name));
  }

  kt::ModuleAttr describe(const Module& module) {
    auto cls = kt::symbolizeModuleClass(models::to_string(module.cls));
    return kt::ModuleAttr::get(&context_, *cls, module.name, module.layer);
  }

  kt::RopeAttr ropeOf(const models::RopeDesc& rope) {
    auto style = rope.style == models::RopeStyle::half ? kt::RopeStyle::half : kt::RopeStyle::interleaved;
    return kt::RopeAttr::get(&context_, style, f32(rope.factor), builder_.getDenseF32ArrayAttr(rope.inv_freq));
  }

  mlir::RankedTensorType tokens(std::uint64_t columns, mlir::Type element) {
    return kt::valueType(kt::Dim::tokens, static_cast<int64_t>(columns), element);
  }
  mlir::RankedTensorType tokens(std::uint64_t columns) { return tokens(columns, f32_); }

  // -------------------------------------------------------------------------------------------------------------
  // symbols

  // The whole slot, row by row.
  mlir::ArrayAttr wholeSlot(const WeightSlot& slot) {
    return builder_.getArrayAttr({kt::PieceAttr::get(&context_, slot.name, slot.rows, 0, 1, false, 0, 0, 1, 0, 0, 0)});
  }

  // The symbol of a slot, made on first use; null for an absent one. Two modules may name one slot (tied embeddings).
  FlatSymbolRefAttr weight(std::uint32_t index) {
    if (index == kNoSlot) return {};
    const WeightSlot& slot = model_.slots[index];
    if (weights_.insert(index).second) {
      mlir::OpBuilder::InsertionGuard guard(builder_);
      builder_.setInsertionPoint(symbols_);
      int64_t shape[] = {int64_t(slot.batch), int64_t(slot.rows), int64_t(slot.columns)};
      kt::WeightOp::create(builder_, locate(slot.line), slot.name, shape, typeOf(slot.type), wholeSlot(slot),
                           mlir::StringAttr(), mlir::StringAttr(), mlir::StringAttr(), mlir::IntegerAttr(), mlir::StringAttr());
    }
    return FlatSymbolRefAttr::get(&context_, slot.name);
  }

  FlatSymbolRefAttr bank(const Module& module, const models::ExpertsDesc& experts) {
    const WeightSlot& gateUp = model_.slots[experts.gate_up];
    const WeightSlot& down = model_.slots[experts.down];
    mlir::OpBuilder::InsertionGuard guard(builder_);
    builder_.setInsertionPoint(symbols_);
    kt::ExpertBankOp::create(builder_, locate(module.line), builder_.getStringAttr(module.name), i64(experts.experts),
                             mlir::DenseI32ArrayAttr(), i64(model_.hidden), i64(experts.intermediate),
                             mlir::TypeAttr::get(typeOf(gateUp.type)), wholeSlot(gateUp), wholeSlot(down),
                             mlir::StringAttr(), mlir::StringAttr(), mlir::StringAttr(), mlir::IntegerAttr(),
                             mlir::ArrayAttr(), kt::ShareAttr(), mlir::StringAttr());
    return FlatSymbolRefAttr::get(&context_, module.name);
  }

  // The cache for what attention stores of a token; layers that store alike share one. Returns it with the next free
  // layer.
  std::pair<FlatSymbolRefAttr, int64_t> cacheFor(llvm::ArrayRef<kt::PartAttr> parts, mlir::Location location) {
    llvm::SmallVector<mlir::Attribute> list(parts.begin(), parts.end());
    mlir::ArrayAttr key = builder_.getArrayAttr(list);
    auto found = caches_.find(key);
    if (found == caches_.end()) {
      const placement::KvCachePolicy& kv = policy_.kv_cache;
      std::string name = caches_.empty() ? "kv" : "kv." + std::to_string(caches_.size());
      mlir::OpBuilder::InsertionGuard guard(builder_);
      builder_.setInsertionPoint(symbols_);
      int64_t shape[] = {kv.sequences, (int64_t{kv.tokens} + kv.page - 1) / kv.page};
      auto table =
          kt::TableOp::create(builder_, location, name + ".pages", kt::TableKind::pages, shape, mlir::StringAttr());
      auto cache = kt::CacheOp::create(builder_, location, name, key, /*layers=*/1, kv.page, kv.tokens, kv.sequences,
                                       table.getSymName(), mlir::StringAttr(), mlir::StringAttr(), mlir::StringAttr());
      found = caches_.insert({key, cache}).first;
      return {FlatSymbolRefAttr::get(cache), 0};
    }
    kt::CacheOp cache = found->second;
    int64_t layer = cache.getLayers();
    cache.setLayers(layer + 1);
    return {FlatSymbolRefAttr::get(cache), layer};
  }

  // ----------------------------------------------------------------------------------------------------------------
  // body

  Value linear(const Module& module, Value x, std::uint32_t slot, std::uint32_t bias = kNoSlot) {
    return linear(module, x, slot, {model_.slots[slot].rows}, bias)[0];
  }
  mlir::ResultRange linear(const Module& module, Value x, std::uint32_t slot, llvm::ArrayRef<std::uint64_t> columns,
                           std::uint32_t bias = kNoSlot) {
    llvm::SmallVector<mlir::Type> types;
    for (std::uint64_t count : columns) types.push_back(tokens(count));
    return kt::LinearOp::create(builder_, locate(module.line), types, x, weight(slot), weight(bias), describe(module), {}, {},
                                {}, {}, {}, {}, {})
        .getResults();
  }

  Value norm(const Module& module, Value x, std::uint32_t slot, float eps) {
    return kt::NormOp::create(builder_, locate(module.line), x.getType(),
                              kt::NormKindAttr::get(&context_, kt::NormKind::rms), x, weight(slot), f32(eps),
                              describe(module), {}, {}, {}, {}, {}, {});
  }
  Value norm(std::uint32_t index, Value x) {
    const Module& module = model_.modules[index];
    const auto& desc = std::get<models::NormDesc>(module.attributes);
    return norm(module, x, desc.weight, desc.eps);
  }

  Value attend(const Module& module, const models::GqaDesc& d, Value x, Value positions) {
    Value q = linear(module, x, d.q, d.q_bias);
    Value k = linear(module, x, d.k, d.k_bias);
    Value v = linear(module, x, d.v, d.v_bias);
    mlir::Location at = locate(module.line);
    auto [cache, layer] = cacheFor({kt::PartAttr::get(&context_, "k", d.kv_heads, d.head_dim),
                                    kt::PartAttr::get(&context_, "v", d.kv_heads, d.head_dim)},
                                   at);
    Value out = kt::GqaOp::create(builder_, at, tokens(std::uint64_t{d.heads} * d.head_dim), q, k, v, positions, cache,
                                  i64(layer), i64(order_++), weight(d.q_norm), weight(d.k_norm), i64(d.heads),
                                  i64(d.kv_heads), i64(d.head_dim), f32(d.scale), f32(d.norm_eps), ropeOf(d.rope),
                                  describe(module), {}, {}, {}, {}, {}, {});
    return linear(module, out, d.o, d.o_bias);
  }

  Value attend(const Module& module, const models::MlaDesc& d, Value x, Value positions) {
    Value q = x;
    if (d.q_rank != 0) {
      q = norm(module, linear(module, x, d.q_a), d.q_a_norm, d.latent_eps);
      q = linear(module, q, d.q_b);
    } else {
      q = linear(module, x, d.q);
    }
    mlir::ResultRange kv = linear(module, x, d.kv_a, {d.kv_rank, d.rope_dim});
    Value latent = norm(module, kv[0], d.kv_a_norm, d.latent_eps);
    mlir::Location at = locate(module.line);
    auto [cache, layer] = cacheFor(
        {kt::PartAttr::get(&context_, "latent", 1, d.kv_rank), kt::PartAttr::get(&context_, "rope", 1, d.rope_dim)},
        at);
    Value out = kt::MlaOp::create(builder_, at, tokens(std::uint64_t{d.heads} * d.v_dim), q, latent, kv[1], positions,
                                  cache, i64(layer), i64(order_++), weight(d.kv_b), FlatSymbolRefAttr(),
                                  FlatSymbolRefAttr(), i64(d.heads), i64(d.nope_dim), i64(d.rope_dim), i64(d.v_dim),
                                  i64(d.kv_rank), f32(d.scale), ropeOf(d.rope), describe(module), {}, {}, {}, {}, {}, {});
    return linear(module, out, d.o);
  }

  Value mlp(const Module& module, Value x) {
    const auto& d = std::get<models::MlpDesc>(module.attributes);
    return kt::MlpOp::create(builder_, locate(module.line), x.getType(), swiglu(), x, weight(d.gate_up),
                             weight(d.down), describe(module), {}, {}, {}, {}, {}, {}, {});
  }

  // ids and weights of the chosen experts
  std::pair<Value, Value> route(const Module& module, Value x) {
    const auto& d = std::get<models::RouterDesc>(module.attributes);
    auto kind =
        d.kind == models::RouterKind::softmax_topk ? kt::RouterKind::softmax_topk : kt::RouterKind::sigmoid_group;
    auto op = kt::RouteOp::create(builder_, locate(module.line), tokens(d.top_k, builder_.getI32Type()),
                                  tokens(d.top_k), kt::RouterKindAttr::get(&context_, kind), x, weight(d.weight),
                                  weight(d.bias), i64(d.experts), i64(d.top_k), builder_.getBoolAttr(d.normalise),
                                  f32(d.scale), i64(d.groups), i64(d.topk_groups), describe(module), {}, {}, {}, {}, {}, {});
    return {op.getIds(), op.getScores()};
  }

  Value experts(const Module& module, Value x, std::pair<Value, Value> routed) {
    const auto& d = std::get<models::ExpertsDesc>(module.attributes);
    return kt::ExpertsOp::create(builder_, locate(module.line), x.getType(), swiglu(), x, routed.first,
                                 routed.second, Value(), bank(module, d), mlir::DenseI32ArrayAttr(), kt::LateAttr(),
                                 mlir::UnitAttr(), kt::ShareAttr(), describe(module), {}, {}, {}, {}, {}, {}, {});
  }

  // The sum belongs to the module whose output it adds.
  Value add(const Module& module, llvm::ArrayRef<Value> terms) {
    return kt::AddOp::create(builder_, locate(module.line), terms[0].getType(), terms, describe(module), {}, {}, {},
                             {}, {}, {});
  }

  Value layer(const models::Layer& layer, Value h, Value positions) {
    const Module& attention = model_.modules[layer.attention];
    Value x = norm(layer.attention_norm, h);
    Value y = std::holds_alternative<models::GqaDesc>(attention.attributes)
                  ? attend(attention, std::get<models::GqaDesc>(attention.attributes), x, positions)
                  : attend(attention, std::get<models::MlaDesc>(attention.attributes), x, positions);
    h = add(attention, {h, y});
    x = norm(layer.ffn_norm, h);
    if (!layer.is_moe()) return add(model_.modules[layer.mlp], {h, mlp(model_.modules[layer.mlp], x)});
    const Module& routed = model_.modules[layer.experts];
    llvm::SmallVector<Value> terms{h, experts(routed, x, route(model_.modules[layer.router], x))};
    if (layer.shared != kNoModule) terms.push_back(mlp(model_.modules[layer.shared], x));
    return add(routed, terms);
  }

  void addBody(kt::EntryOp entry) {
    mlir::Block& block = entry.getBody().emplaceBlock();
    mlir::Type index = tokens(1, builder_.getI32Type());
    Value ids = block.addArgument(index, entry.getLoc());
    Value positions = block.addArgument(index, entry.getLoc());
    builder_.setInsertionPointToEnd(&block);

    const Module& embedding = model_.modules[model_.embedding];
    const Module& head = model_.modules[model_.head];
    Value h = kt::EmbedOp::create(builder_, locate(embedding.line), tokens(model_.hidden), ids,
                                  weight(std::get<models::EmbeddingDesc>(embedding.attributes).weight),
                                  describe(embedding), {}, {}, {}, {}, {}, {});
    for (const models::Layer& l : model_.layers) h = layer(l, h, positions);
    h = norm(model_.final_norm, h);
    mlir::Location at = locate(head.line);
    Value logits = kt::LmHeadOp::create(builder_, at, tokens(model_.vocab), h,
                                        weight(std::get<models::HeadDesc>(head.attributes).weight), describe(head), {}, {},
                                        {}, {}, {}, {}, {});
    Value next = kt::SampleOp::create(builder_, at, index, logits, describe(head), {}, {}, {}, {}, {}, {});
    kt::ReturnOp::create(builder_, at, next);
  }

  mlir::MLIRContext& context_;
  const models::ModelDesc& model_;
  const placement::Policy& policy_;
  mlir::OpBuilder builder_;
  mlir::Type f32_;
  mlir::ModuleOp module_;
  mlir::Operation* symbols_ = nullptr;  // symbols go in front of it
  std::set<std::uint32_t> weights_;     // slots that have a symbol
  llvm::DenseMap<mlir::Attribute, kt::CacheOp> caches_;
  int64_t order_ = 0;  // rank of the next access to a cache
};

}  // namespace

Expected<mlir::OwningOpRef<mlir::ModuleOp>> importModel(mlir::MLIRContext& context, const models::ModelDesc& model,
                                                        const placement::Policy& policy,
                                                        const placement::Target& target) {
  context.loadDialect<kt::KtDialect>();
  std::string diagnostic;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic& d) {
    if (diagnostic.empty()) diagnostic = kt::locationText(d.getLocation()) + ": " + d.str();
    return mlir::success();
  });
  mlir::OwningOpRef<mlir::ModuleOp> module = Importer(context, model, policy).run(target);
  if (mlir::succeeded(mlir::verify(*module))) return module;
  return make_error(StatusCode::internal, {.place = diagnostic,
                                           .what = "import made IR that does not verify",
                                           .remedy = "please report this with config.json"});
}

}  // namespace ktc::compiler
