#include "models/module_schema.h"

#include <fmt/format.h>

namespace ktc::models {
namespace {

using enum AttributeType;

const std::vector<ModuleSchema>& schemas() {
  static const std::vector<ModuleSchema> table = {
      {ModuleClass::Embedding, "", {}, {{"weight"}}},
      {ModuleClass::Norm, "rms", {{"eps", number}}, {{"weight"}}},
      {ModuleClass::Attention,
       "gqa",
       {{"heads", integer}, {"kv_heads", integer}, {"head_dim", integer}, {"norm_eps", number, false}},
       {{"q"},
        {"k"},
        {"v"},
        {"o"},
        {"q_bias", false},
        {"k_bias", false},
        {"v_bias", false},
        {"o_bias", false},
        {"q_norm", false},
        {"k_norm", false}},
       true},
      {ModuleClass::Attention,
       "mla",
       {{"heads", integer},
        {"q_rank", integer},
        {"kv_rank", integer},
        {"nope_dim", integer},
        {"rope_dim", integer},
        {"v_dim", integer},
        {"latent_eps", number}},
       {{"q", false}, {"q_a", false}, {"q_a_norm", false}, {"q_b", false}, {"kv_a"}, {"kv_a_norm"}, {"kv_b"}, {"o"}},
       true},
      {ModuleClass::Router,
       "softmax_topk",
       {{"experts", integer}, {"top_k", integer}, {"normalise", boolean}, {"scale", number, false}},
       {{"weight"}}},
      {ModuleClass::Router,
       "sigmoid_group",
       {{"experts", integer},
        {"top_k", integer},
        {"groups", integer},
        {"topk_groups", integer},
        {"normalise", boolean},
        {"scale", number}},
       {{"weight"}, {"bias", false}}},
      {ModuleClass::RoutedExperts,
       "swiglu",
       {{"experts", integer}, {"intermediate", integer}},
       {{"gate_up"}, {"down"}}},
      {ModuleClass::SharedExperts, "swiglu", {{"intermediate", integer}}, {{"gate_up"}, {"down"}}},
      {ModuleClass::DenseMlp, "swiglu", {{"intermediate", integer}}, {{"gate_up"}, {"down"}}},
      {ModuleClass::Head, "", {}, {{"weight"}}},
  };
  return table;
}

std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

SlotShape matrix(std::uint64_t rows, std::uint64_t columns) {
  return {1, rows, columns};
}
SlotShape vector(std::uint64_t columns) {
  return {1, 1, columns};
}

struct ShapeOf {
  std::string_view role;
  std::uint64_t hidden, vocab;

  SlotShape operator()(const EmbeddingDesc&) const { return matrix(vocab, hidden); }
  SlotShape operator()(const HeadDesc&) const { return matrix(vocab, hidden); }
  SlotShape operator()(const NormDesc&) const { return vector(hidden); }
  SlotShape operator()(const GqaDesc& a) const {
    const std::uint64_t q = multiply(a.heads, a.head_dim), kv = multiply(a.kv_heads, a.head_dim);
    if (role == "q") return matrix(q, hidden);
    if (role == "k" || role == "v") return matrix(kv, hidden);
    if (role == "o") return matrix(hidden, q);
    if (role == "q_bias") return vector(q);
    if (role == "k_bias" || role == "v_bias") return vector(kv);
    if (role == "o_bias") return vector(hidden);
    if (role == "q_norm" || role == "k_norm") return vector(a.head_dim);
    return {};
  }
  SlotShape operator()(const MlaDesc& a) const {
    const std::uint64_t q = multiply(a.heads, std::uint64_t{a.nope_dim} + a.rope_dim);
    if (role == "q") return matrix(q, hidden);
    if (role == "q_a") return matrix(a.q_rank, hidden);
    if (role == "q_a_norm") return vector(a.q_rank);
    if (role == "q_b") return matrix(q, a.q_rank);
    if (role == "kv_a") return matrix(std::uint64_t{a.kv_rank} + a.rope_dim, hidden);
    if (role == "kv_a_norm") return vector(a.kv_rank);
    if (role == "kv_b") return matrix(multiply(a.heads, std::uint64_t{a.nope_dim} + a.v_dim), a.kv_rank);
    if (role == "o") return matrix(hidden, multiply(a.heads, a.v_dim));
    return {};
  }
  SlotShape operator()(const RouterDesc& a) const {
    return role == "weight" ? matrix(a.experts, hidden) : vector(a.experts);
  }
  SlotShape operator()(const ExpertsDesc& a) const {
    if (role == "gate_up") return {a.experts, 2 * std::uint64_t{a.intermediate}, hidden};
    return {a.experts, hidden, a.intermediate};
  }
  SlotShape operator()(const MlpDesc& a) const {
    return role == "gate_up" ? matrix(2 * std::uint64_t{a.intermediate}, hidden) : matrix(hidden, a.intermediate);
  }
};

}  // namespace

const ModuleSchema* find_module_schema(ModuleClass cls, std::string_view kind) {
  for (const ModuleSchema& schema : schemas())
    if (schema.cls == cls && schema.kind == kind) return &schema;
  return nullptr;
}

std::vector<std::string> module_kinds(ModuleClass cls) {
  std::vector<std::string> kinds;
  for (const ModuleSchema& schema : schemas())
    if (schema.cls == cls) kinds.emplace_back(schema.kind);
  return kinds;
}

SlotShape slot_shape(const ModuleAttributes& attributes, std::string_view role, std::uint64_t hidden,
                     std::uint64_t vocab) {
  return std::visit(ShapeOf{role, hidden, vocab}, attributes);
}

std::string to_string(const SlotShape& shape) {
  if (shape.batch != 1) return fmt::format("[{}, {}, {}]", shape.batch, shape.rows, shape.columns);
  if (shape.rows != 1) return fmt::format("[{}, {}]", shape.rows, shape.columns);
  return fmt::format("[{}]", shape.columns);
}

}  // namespace ktc::models
