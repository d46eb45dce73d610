#include "test/placement/model_builder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ktc::test {
namespace {

using namespace models;

struct Builder {
  ModelShape shape;
  ModelDesc model;

  std::uint32_t slot(std::string name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns) {
    WeightSlot slot;
    slot.name = std::move(name);
    slot.batch = batch;
    slot.rows = rows;
    slot.columns = columns;
    slot.type = shape.type;
    model.slots.push_back(std::move(slot));
    return static_cast<std::uint32_t>(model.slots.size() - 1);
  }

  std::uint32_t add(ModuleClass cls, std::string name, int layer, ModuleAttributes attributes) {
    model.modules.push_back({cls, std::move(name), layer, std::move(attributes), {}});
    return static_cast<std::uint32_t>(model.modules.size() - 1);
  }

  std::uint32_t norm(const std::string& name, int layer) {
    NormDesc desc;
    desc.weight = slot(name, 1, 1, shape.hidden);
    return add(ModuleClass::Norm, name, layer, desc);
  }

  GqaDesc gqa(const std::string& name) {
    GqaDesc d;
    d.heads = shape.heads, d.kv_heads = shape.kv_heads, d.head_dim = shape.head_dim;
    d.q = slot(name + ".q_proj", 1, std::uint64_t{d.heads} * d.head_dim, shape.hidden);
    d.k = slot(name + ".k_proj", 1, std::uint64_t{d.kv_heads} * d.head_dim, shape.hidden);
    d.v = slot(name + ".v_proj", 1, std::uint64_t{d.kv_heads} * d.head_dim, shape.hidden);
    d.o = slot(name + ".o_proj", 1, shape.hidden, std::uint64_t{d.heads} * d.head_dim);
    d.q_norm = slot(name + ".q_norm", 1, 1, d.head_dim);
    d.k_norm = slot(name + ".k_norm", 1, 1, d.head_dim);
    return d;
  }

  MlaDesc mla(const std::string& name) {
    MlaDesc d;
    d.heads = shape.heads, d.q_rank = 40, d.kv_rank = 48, d.nope_dim = 32, d.rope_dim = 16, d.v_dim = 24;
    d.q_a = slot(name + ".q_a_proj", 1, d.q_rank, shape.hidden);
    d.q_a_norm = slot(name + ".q_a_layernorm", 1, 1, d.q_rank);
    d.q_b = slot(name + ".q_b_proj", 1, std::uint64_t{d.heads} * (d.nope_dim + d.rope_dim), d.q_rank);
    d.kv_a = slot(name + ".kv_a_proj", 1, d.kv_rank + d.rope_dim, shape.hidden);
    d.kv_a_norm = slot(name + ".kv_a_layernorm", 1, 1, d.kv_rank);
    d.kv_b = slot(name + ".kv_b_proj", 1, std::uint64_t{d.heads} * (d.nope_dim + d.v_dim), d.kv_rank);
    d.o = slot(name + ".o_proj", 1, shape.hidden, std::uint64_t{d.heads} * d.v_dim);
    return d;
  }

  MlpDesc mlp(const std::string& name, std::uint32_t intermediate) {
    MlpDesc d;
    d.intermediate = intermediate;
    d.gate_up = slot(name + ".gate_up", 1, 2 * std::uint64_t{intermediate}, shape.hidden);
    d.down = slot(name + ".down_proj", 1, shape.hidden, intermediate);
    return d;
  }

  void layer(int index) {
    const std::string name = fmt::format("model.layers.{}", index);
    Layer layer;
    layer.attention_norm = norm(name + ".input_layernorm", index);
    ModuleAttributes attention;
    if (shape.mla)
      attention = mla(name + ".self_attn");
    else
      attention = gqa(name + ".self_attn");
    layer.attention = add(ModuleClass::Attention, name + ".self_attn", index, attention);
    layer.ffn_norm = norm(name + ".post_attention_layernorm", index);
    if (index < static_cast<int>(shape.dense_layers)) {
      layer.mlp = add(ModuleClass::DenseMlp, name + ".mlp", index, mlp(name + ".mlp", 4 * shape.intermediate));
    } else {
      RouterDesc router;
      router.experts = shape.experts, router.top_k = shape.top_k;
      router.weight = slot(name + ".mlp.gate", 1, shape.experts, shape.hidden);
      model.slots.back().type = shape.router_type;
      if (shape.router_bias) router.bias = slot(name + ".mlp.gate.bias", 1, 1, shape.experts);
      layer.router = add(ModuleClass::Router, name + ".mlp.gate", index, router);
      ExpertsDesc experts;
      experts.experts = shape.experts, experts.intermediate = shape.intermediate;
      experts.gate_up =
          slot(name + ".mlp.experts.gate_up", shape.experts, 2 * std::uint64_t{shape.intermediate}, shape.hidden);
      experts.down = slot(name + ".mlp.experts.down", shape.experts, shape.hidden, shape.intermediate);
      layer.experts = add(ModuleClass::RoutedExperts, name + ".mlp.experts", index, experts);
      if (shape.shared_expert)
        layer.shared = add(ModuleClass::SharedExperts, name + ".mlp.shared_experts", index,
                           mlp(name + ".mlp.shared_experts", shape.intermediate));
    }
    model.layers.push_back(layer);
  }

  ModelDesc build() {
    model.name = "tiny";
    model.family = "test";
    model.hidden = shape.hidden, model.vocab = shape.vocab, model.max_positions = shape.max_positions;
    EmbeddingDesc embedding;
    embedding.weight = slot("model.embed_tokens", 1, shape.vocab, shape.hidden);
    model.embedding = add(ModuleClass::Embedding, "model.embed_tokens", -1, embedding);
    for (std::uint32_t i = 0; i < shape.layers; ++i) layer(static_cast<int>(i));
    model.final_norm = norm("model.norm", -1);
    HeadDesc head;
    head.weight = shape.tied ? embedding.weight : slot("lm_head", 1, shape.vocab, shape.hidden);
    model.tied_head = shape.tied;
    model.head = add(ModuleClass::Head, "lm_head", -1, head);
    return std::move(model);
  }
};

}  // namespace

models::ModelDesc build_model(const ModelShape& shape) {
  return Builder{shape, {}}.build();
}

std::uint32_t module_named(const models::ModelDesc& model, const std::string& name) {
  for (std::uint32_t i = 0; i < model.modules.size(); ++i)
    if (model.modules[i].name == name) return i;
  ADD_FAILURE() << "no module " << name;
  return 0;
}

}  // namespace ktc::test
