#include "models/build_model.h"

#include <fmt/format.h>

#include <cmath>

#include "models/account.h"

namespace ktc::models {
namespace {

std::string replace(std::string text, std::string_view pattern, const std::string& value) {
  for (std::size_t at = text.find(pattern); at != std::string::npos; at = text.find(pattern, at + value.size()))
    text.replace(at, pattern.size(), value);
  return text;
}

// One module's attributes, evaluated.
class Attributes {
 public:
  Attributes(const ModuleSpec& spec, const ModelConfig& config) : spec_(spec), config_(config) {}

  Status get(std::string_view name, std::uint32_t* target) const {
    const Expression* e = find(name);
    if (!e) return Status();
    KTC_ASSIGN_OR_RETURN(std::int64_t value, e->evaluate_integer(config_));
    if (value < 0 || value > INT32_MAX)
      return make_error(
          StatusCode::invalid_argument,
          {yaml::to_string(e->position()), std::string(name), std::to_string(value), "0 to 2^31 - 1", {}});
    *target = static_cast<std::uint32_t>(value);
    return Status();
  }
  Status get(std::string_view name, bool* target) const {
    if (const Expression* e = find(name)) {
      KTC_ASSIGN_OR_RETURN(*target, e->evaluate_boolean(config_));
    }
    return Status();
  }
  Status get(std::string_view name, float* target) const {
    if (const Expression* e = find(name)) {
      KTC_ASSIGN_OR_RETURN(double value, e->evaluate_number(config_));
      *target = static_cast<float>(value);
      if (!std::isfinite(*target))
        return make_error(
            StatusCode::invalid_argument,
            {yaml::to_string(e->position()), std::string(name), fmt::format("{}", value), "a float32 number", {}});
    }
    return Status();
  }

 private:
  const Expression* find(std::string_view name) const {
    const auto it = spec_.attributes.find(std::string(name));
    return it == spec_.attributes.end() ? nullptr : &it->second;
  }
  const ModuleSpec& spec_;
  const ModelConfig& config_;
};

// Where the evaluated slots of a module go.
struct SlotTarget {
  std::string_view role;
  std::uint32_t* index;
};

std::vector<SlotTarget> slot_targets(ModuleAttributes* attributes) {
  struct Visitor {
    std::vector<SlotTarget> operator()(EmbeddingDesc& d) const { return {{"weight", &d.weight}}; }
    std::vector<SlotTarget> operator()(NormDesc& d) const { return {{"weight", &d.weight}}; }
    std::vector<SlotTarget> operator()(HeadDesc& d) const { return {{"weight", &d.weight}}; }
    std::vector<SlotTarget> operator()(RouterDesc& d) const { return {{"weight", &d.weight}, {"bias", &d.bias}}; }
    std::vector<SlotTarget> operator()(ExpertsDesc& d) const { return {{"gate_up", &d.gate_up}, {"down", &d.down}}; }
    std::vector<SlotTarget> operator()(MlpDesc& d) const { return {{"gate_up", &d.gate_up}, {"down", &d.down}}; }
    std::vector<SlotTarget> operator()(GqaDesc& d) const {
      return {{"q", &d.q},           {"k", &d.k},           {"v", &d.v},           {"o", &d.o},
              {"q_bias", &d.q_bias}, {"k_bias", &d.k_bias}, {"v_bias", &d.v_bias}, {"o_bias", &d.o_bias},
              {"q_norm", &d.q_norm}, {"k_norm", &d.k_norm}};
    }
    std::vector<SlotTarget> operator()(MlaDesc& d) const {
      return {{"q", &d.q},       {"q_a", &d.q_a},   {"q_a_norm", &d.q_a_norm},
              {"q_b", &d.q_b},   {"kv_a", &d.kv_a}, {"kv_a_norm", &d.kv_a_norm},
              {"kv_b", &d.kv_b}, {"o", &d.o}};
    }
  };
  return std::visit(Visitor{}, *attributes);
}

class ModelBuilder {
 public:
  ModelBuilder(const Checkpoint& checkpoint, ModelConfig* config, ModelDesc* model)
      : checkpoint_(checkpoint), config_(*config), model_(*model), account_(checkpoint, *config) {}

  Status build() {
    const Family& family = config_.family();
    model_.hidden = static_cast<std::uint32_t>(config_.integer("hidden"));
    model_.vocab = static_cast<std::uint32_t>(config_.integer("vocab"));
    model_.max_positions = static_cast<std::uint32_t>(config_.integer("max_positions"));
    for (const ModuleSpec& spec : family.before_layers) KTC_RETURN_IF_ERROR(add_module(spec, spec.name, -1));
    const std::int64_t layers = config_.integer("layers");
    for (std::int64_t layer = 0; layer < layers && !account_.hopeless(); ++layer) {
      KTC_RETURN_IF_ERROR(config_.enter_layer(layer));
      const std::string prefix = replace(family.layer_prefix, "{layer}", std::to_string(layer));
      model_.layers.emplace_back();
      for (const ModuleSpec& spec : family.layer_modules)
        KTC_RETURN_IF_ERROR(add_module(spec, prefix + "." + spec.name, static_cast<int>(layer)));
      KTC_RETURN_IF_ERROR(check_layer(static_cast<int>(layer)));
    }
    config_.leave_layer();
    if (!account_.hopeless())
      for (const ModuleSpec& spec : family.after_layers) KTC_RETURN_IF_ERROR(add_module(spec, spec.name, -1));
    KTC_RETURN_IF_ERROR(account_.finish(&model_.skipped, &model_.warnings));
    if (model_.embedding == kNoModule || model_.final_norm == kNoModule || model_.head == kNoModule)
      return family_error({family.file, 0, 0},
                          "a model needs an Embedding before its layers and a Norm and a Head after them");
    return Status();
  }

 private:
  static Status family_error(const yaml::Position& position, std::string what) {
    return make_error(StatusCode::invalid_argument, {yaml::to_string(position), std::move(what), {}, {}, {}});
  }

  Status add_module(const ModuleSpec& spec, const std::string& name, int layer) {
    if (spec.when) {
      KTC_ASSIGN_OR_RETURN(bool present, spec.when->evaluate_boolean(config_));
      if (!present) return Status();
    }
    Module module{spec.schema->cls, name, layer, {}, {spec.position.file, spec.position.line}};
    KTC_RETURN_IF_ERROR(read_attributes(spec, &module.attributes));
    for (const SlotSpec& slot : spec.slots) KTC_RETURN_IF_ERROR(add_slot(spec, slot, &module));
    const auto index = static_cast<std::uint32_t>(model_.modules.size());
    model_.modules.push_back(std::move(module));
    return place_module(spec, index, layer);
  }

  Status read_attributes(const ModuleSpec& spec, ModuleAttributes* out) {
    const Attributes a(spec, config_);
    switch (spec.schema->cls) {
      case ModuleClass::Embedding: *out = EmbeddingDesc{}; return Status();
      case ModuleClass::Head: *out = HeadDesc{}; return Status();
      case ModuleClass::Norm: {
        NormDesc d;
        KTC_RETURN_IF_ERROR(a.get("eps", &d.eps));
        *out = d;
        return Status();
      }
      case ModuleClass::Router: {
        RouterDesc d;
        d.kind = spec.schema->kind == "softmax_topk" ? RouterKind::softmax_topk : RouterKind::sigmoid_group;
        KTC_RETURN_IF_ERROR(a.get("experts", &d.experts));
        KTC_RETURN_IF_ERROR(a.get("top_k", &d.top_k));
        KTC_RETURN_IF_ERROR(a.get("groups", &d.groups));
        KTC_RETURN_IF_ERROR(a.get("topk_groups", &d.topk_groups));
        KTC_RETURN_IF_ERROR(a.get("normalise", &d.normalise));
        KTC_RETURN_IF_ERROR(a.get("scale", &d.scale));
        *out = d;
        return Status();
      }
      case ModuleClass::RoutedExperts: {
        ExpertsDesc d;
        KTC_RETURN_IF_ERROR(a.get("experts", &d.experts));
        KTC_RETURN_IF_ERROR(a.get("intermediate", &d.intermediate));
        *out = d;
        return Status();
      }
      case ModuleClass::DenseMlp:
      case ModuleClass::SharedExperts: {
        MlpDesc d;
        KTC_RETURN_IF_ERROR(a.get("intermediate", &d.intermediate));
        *out = d;
        return Status();
      }
      default: return spec.schema->kind == "gqa" ? read_gqa(spec, a, out) : read_mla(spec, a, out);
    }
  }

  Status read_gqa(const ModuleSpec& spec, const Attributes& a, ModuleAttributes* out) {
    GqaDesc d;
    KTC_RETURN_IF_ERROR(a.get("heads", &d.heads));
    KTC_RETURN_IF_ERROR(a.get("kv_heads", &d.kv_heads));
    KTC_RETURN_IF_ERROR(a.get("head_dim", &d.head_dim));
    KTC_RETURN_IF_ERROR(a.get("norm_eps", &d.norm_eps));
    KTC_RETURN_IF_ERROR(read_rope(spec, d.head_dim, &d.rope));
    d.scale = softmax_scale(d.head_dim, d.rope);
    *out = std::move(d);
    return Status();
  }

  Status read_mla(const ModuleSpec& spec, const Attributes& a, ModuleAttributes* out) {
    MlaDesc d;
    KTC_RETURN_IF_ERROR(a.get("heads", &d.heads));
    KTC_RETURN_IF_ERROR(a.get("q_rank", &d.q_rank));
    KTC_RETURN_IF_ERROR(a.get("kv_rank", &d.kv_rank));
    KTC_RETURN_IF_ERROR(a.get("nope_dim", &d.nope_dim));
    KTC_RETURN_IF_ERROR(a.get("rope_dim", &d.rope_dim));
    KTC_RETURN_IF_ERROR(a.get("v_dim", &d.v_dim));
    KTC_RETURN_IF_ERROR(a.get("latent_eps", &d.latent_eps));
    KTC_RETURN_IF_ERROR(read_rope(spec, d.rope_dim, &d.rope));
    d.scale = softmax_scale(std::uint64_t{d.nope_dim} + d.rope_dim, d.rope);
    *out = std::move(d);
    return Status();
  }

  static float softmax_scale(std::uint64_t dim, const RopeDesc& rope) {
    return static_cast<float>(static_cast<double>(rope.softmax_factor) / std::sqrt(static_cast<double>(dim)));
  }

  Status read_rope(const ModuleSpec& spec, std::uint32_t head_dim, RopeDesc* rope) {
    constexpr std::int64_t kMost = 65536;  // no head is wider; bounds the table against a hostile config
    KTC_ASSIGN_OR_RETURN(std::int64_t dim, spec.rope->dim.evaluate_integer(config_));
    if (dim < 2 || dim % 2 != 0 || dim > head_dim || dim > kMost)
      return make_error(StatusCode::invalid_argument,
                        {yaml::to_string(spec.rope->dim.position()),
                         "rotary dimension",
                         std::to_string(dim),
                         fmt::format("an even number from 2 to {}", std::min<std::int64_t>(head_dim, kMost)),
                         {}});
    *rope = resolve_rope(config_.rope(), spec.rope->style, static_cast<std::uint32_t>(dim),
                         spec.rope->temperature_in_softmax);
    return Status();
  }

  Status add_slot(const ModuleSpec& spec, const SlotSpec& slot, Module* module) {
    if (slot.when) {
      KTC_ASSIGN_OR_RETURN(bool present, slot.when->evaluate_boolean(config_));
      if (!present) return Status();
    }
    std::uint32_t* target = nullptr;
    for (const SlotTarget& t : slot_targets(&module->attributes))
      if (t.role == slot.role) target = t.index;
    if (spec.tied && slot.role == "weight") {
      KTC_ASSIGN_OR_RETURN(bool tied, tie_head(spec, slot, module->name, target));
      if (tied) return Status();
    }
    WeightSlot weight;
    weight.name = module->name + "." + slot.role;
    weight.line = {slot.position.file, slot.position.line};
    const SlotShape shape = slot_shape(module->attributes, slot.role, model_.hidden, model_.vocab);
    weight.batch = shape.batch, weight.rows = shape.rows, weight.columns = shape.columns;
    std::vector<std::vector<WantedTensor>> alternatives;
    for (const StorageSpec& storage : slot.storages) {
      KTC_ASSIGN_OR_RETURN(auto wanted, want(storage, shape, weight.name, module->name));
      alternatives.push_back(std::move(wanted));
    }
    account_.fill(&weight, alternatives);
    *target = static_cast<std::uint32_t>(model_.slots.size());
    model_.slots.push_back(std::move(weight));
    return Status();
  }

  // The tensors of one storage with their places; their shapes must add up to the slot's.
  Expected<std::vector<WantedTensor>> want(const StorageSpec& storage, const SlotShape& slot,
                                           const std::string& slot_name, const std::string& module_name) {
    constexpr std::int64_t kMostBatch = 16384;  // bounds the names made for a hostile config
    std::int64_t batch = 1;
    if (storage.batch) {
      KTC_ASSIGN_OR_RETURN(batch, storage.batch->evaluate_integer(config_));
      if (batch < 1 || batch > kMostBatch)
        return make_error(StatusCode::invalid_argument, {yaml::to_string(storage.batch->position()),
                                                         "batch",
                                                         std::to_string(batch),
                                                         fmt::format("1 to {}", kMostBatch),
                                                         {}});
    }
    std::vector<WantedTensor> one;  // of a single batch entry
    SlotShape sum{static_cast<std::uint64_t>(batch), 0, 0};
    for (const TensorSpec& tensor : storage.stacked) {
      WantedTensor wanted;
      wanted.name = module_name + "." + tensor.name;
      for (const Expression& size : tensor.shape) {
        KTC_ASSIGN_OR_RETURN(std::int64_t value, size.evaluate_integer(config_));
        if (value < 1)
          return make_error(StatusCode::invalid_argument, {yaml::to_string(size.position()),
                                                           "size '" + size.text() + "'",
                                                           std::to_string(value),
                                                           "a positive size",
                                                           {}});
        wanted.shape.push_back(static_cast<std::uint64_t>(value));
      }
      const std::size_t rank = wanted.shape.size();
      wanted.row_begin = sum.rows;
      sum.rows += rank >= 2 ? wanted.shape[rank - 2] : 1;
      if (rank == 3) sum.batch = wanted.shape[0];
      sum.columns = sum.columns == 0 || sum.columns == wanted.shape.back() ? wanted.shape.back() : UINT64_MAX;
      one.push_back(std::move(wanted));
    }
    if (sum != slot)
      return family_error(storage.stacked.front().position,
                          fmt::format("tensors of slot {}: found {}, expected {} from the module's attributes",
                                      slot_name, to_string(sum), to_string(slot)));
    if (!storage.batch) return one;
    std::vector<WantedTensor> all;
    for (std::int64_t expert = 0; expert < batch; ++expert)
      for (const WantedTensor& wanted : one) {
        all.push_back(wanted);
        all.back().name = replace(wanted.name, "{expert}", std::to_string(expert));
        all.back().batch_begin = static_cast<std::uint64_t>(expert);
      }
    return all;
  }

  // Whether the head uses the embedding's slot. The flag decides where both are possible; absence of the tensor decides
  // where the config is silent.
  Expected<bool> tie_head(const ModuleSpec& spec, const SlotSpec& slot, const std::string& name,
                          std::uint32_t* target) {
    const std::optional<bool> flag = config_.boolean(spec.tied->flag);
    const std::string key = config_.key_of(spec.tied->flag);
    const std::string tensor_name = name + "." + slot.storages.front().stacked.front().name;
    const std::uint32_t tensor = account_.find(tensor_name);
    std::uint32_t embedding = kNoSlot;
    for (const Module& module : model_.modules)
      if (module.name == spec.tied->module) embedding = std::get<EmbeddingDesc>(module.attributes).weight;
    if (checkpoint_.assumed) {
      if (flag != true) return false;
    } else if (tensor == kNoTensor) {
      if (flag == false) {
        account_.add_problem(
            fmt::format("missing '{}' although {} is false: set {} to true if the head shares the embedding, or "
                        "fetch the tensor again",
                        tensor_name, key, key));
        return true;
      }
    } else if (flag != true) {
      return false;
    } else {
      KTC_RETURN_IF_ERROR(skip_redundant_head(tensor, key, embedding));
    }
    *target = embedding;
    model_.tied_head = true;
    return true;
  }

  // The flag says tied, yet there is a head tensor: the embedding is used, as in transformers; a difference is
  // reported.
  Status skip_redundant_head(std::uint32_t tensor, const std::string& key, std::uint32_t embedding) {
    account_.skip(tensor, "output head, tied to the embedding");
    const Tensor& head = checkpoint_.tensors[tensor];
    const auto& pieces = model_.slots[embedding].pieces;
    if (pieces.size() != 1) return Status();  // a problem of the embedding that finish() reports
    const Tensor& source = checkpoint_.tensors[pieces.front().tensor];
    bool same = source.type == head.type && source.shape == head.shape;
    if (same) {
      KTC_ASSIGN_OR_RETURN(same, same_bytes(checkpoint_, source, head));
    }
    model_.warnings.push_back(same
                                  ? fmt::format("{}: {} is true and '{}' repeats the embedding: the tensor is not used",
                                                config_.file(), key, head.name)
                                  : fmt::format("{}: {} is true, but '{}' differs from the embedding: the embedding is "
                                                "used; set {} to false to use the tensor",
                                                config_.file(), key, head.name, key));
    return Status();
  }

  // Gives the module its role in the model or in its layer.
  Status place_module(const ModuleSpec& spec, std::uint32_t index, int layer) {
    const ModuleClass cls = spec.schema->cls;
    std::uint32_t* role = nullptr;
    if (layer >= 0) {
      Layer& at = model_.layers.back();
      switch (cls) {
        case ModuleClass::Norm: role = at.attention == kNoModule ? &at.attention_norm : &at.ffn_norm; break;
        case ModuleClass::Attention: role = &at.attention; break;
        case ModuleClass::DenseMlp: role = &at.mlp; break;
        case ModuleClass::Router: role = &at.router; break;
        case ModuleClass::RoutedExperts: role = &at.experts; break;
        case ModuleClass::SharedExperts: role = &at.shared; break;
        default: break;
      }
    } else if (cls == ModuleClass::Embedding) {
      role = &model_.embedding;
    } else if (cls == ModuleClass::Norm) {
      role = &model_.final_norm;
    } else if (cls == ModuleClass::Head) {
      role = &model_.head;
    }
    if (!role)
      return family_error(spec.position, fmt::format("a module of class {} has no place here", to_string(cls)));
    if (*role != kNoModule)
      return family_error(spec.position,
                          fmt::format("a second module of class {} where one is expected", to_string(cls)));
    *role = index;
    return Status();
  }

  Status check_layer(int number) {
    const Layer& layer = model_.layers.back();
    auto fail = [&](std::string what) {
      return family_error(config_.family().layer_modules.front().position, fmt::format("layer {}: {}", number, what));
    };
    const bool frame = layer.attention_norm != kNoModule && layer.attention != kNoModule && layer.ffn_norm != kNoModule;
    if (!frame) return fail("expected a Norm, an Attention and a Norm");
    const bool dense = layer.mlp != kNoModule;
    if (dense == layer.is_moe() || (layer.router != kNoModule) != layer.is_moe() ||
        (dense && layer.shared != kNoModule))
      return fail("expected either a DenseMlp, or a Router and RoutedExperts");
    const std::uint32_t first_ffn = dense ? layer.mlp : layer.router;
    if (!(layer.attention_norm < layer.attention && layer.attention < layer.ffn_norm && layer.ffn_norm < first_ffn &&
          (dense || layer.router < layer.experts)))
      return fail("expected the order of execution: Norm, Attention, Norm, then DenseMlp or Router and RoutedExperts");
    if (layer.is_moe() && std::get<RouterDesc>(model_.modules[layer.router].attributes).experts !=
                              std::get<ExpertsDesc>(model_.modules[layer.experts].attributes).experts)
      return fail("expected a Router and RoutedExperts with equal numbers of experts");
    return Status();
  }

  const Checkpoint& checkpoint_;
  ModelConfig& config_;
  ModelDesc& model_;
  Account account_;
};

}  // namespace

Status build_model(const Checkpoint& checkpoint, ModelConfig* config, ModelDesc* model) {
  return ModelBuilder(checkpoint, config, model).build();
}

}  // namespace ktc::models
