#include "test/support/tiny_model.h"

#include <cmath>

#include "runtime/formats/workspace.h"

namespace ktc::test {

using namespace planfb;

namespace {

std::string of_layer(std::uint32_t layer, const char* name) { return "layers." + std::to_string(layer) + "." + name; }

template <typename OpT>
OpT weighted(std::uint32_t w) {
  OpT op;
  op.w = w;
  return op;
}

}  // namespace

TinyModel::TinyModel(const TinyOptions& o) : options(o), builder(o.mla ? "tiny-mla" : "tiny-gqa"), random_(o.seed) {
  ModelT& model = *builder.plan().model;
  model.vocab_size = kVocabulary;
  model.hidden_size = kHidden;
  model.layers = kLayers;
  model.experts = experts();
  model.max_positions = 1000;
  const std::uint32_t rotary = options.mla ? kRope : kHeadDim;
  for (std::uint32_t i = 0; i < rotary / 2; ++i)
    inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(rotary)));
  add_weights();
  if (options.mla) {
    builder.rope(RopeStyle::interleaved, inv_freq, kRopeFactor);
    builder.cache("kv", options.cache, kLayers, {{"latent", 1, kLatent}, {"rope", 1, kRope}}, options.page_tokens,
                  options.tokens_per_sequence, options.sequences);
  } else {
    builder.rope(RopeStyle::half, inv_freq, 1.0f);
    builder.cache("kv", options.cache, kLayers, {{"k", kKvHeads, kHeadDim}, {"v", kKvHeads, kHeadDim}}, options.page_tokens,
                  options.tokens_per_sequence, options.sequences);
  }
  // decode has no bucket for every batch
  add_entry(EntryKind::decode, 1, 1, 1);
  add_entry(EntryKind::decode, 8, 8, 8);
  add_entry(EntryKind::extend, 24, 24, 4);
  add_entry(EntryKind::extend, kMostTokens, kMostRows, 8);
}

std::uint32_t TinyModel::add(const std::string& name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns,
                             float spread, float centre, bool always_f32) {
  std::vector<float>& v = values[name];
  v.resize(batch * rows * columns);
  for (float& value : v) {
    random_ = random_ * 1664525u + 1013904223u;
    value = centre + spread * (static_cast<float>(random_ >> 8) / 8388608.0f - 1.0f);  // uniform in (-spread, spread)
  }
  return indices_[name] = builder.weight(name, always_f32 ? Format::f32 : options.weights, batch, rows, columns, v);
}

void TinyModel::add_weights() {
  const auto vector = [this](const std::string& name, std::uint64_t columns, float spread, float centre) {
    add(name, 1, 1, columns, spread, centre, true);
  };
  add("embed", 1, kVocabulary, kHidden, 1.0f);
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    const auto name = [l](const char* suffix) { return of_layer(l, suffix); };
    vector(name("attention_norm"), kHidden, 0.3f, 1.0f);
    vector(name("mlp_norm"), kHidden, 0.3f, 1.0f);
    if (!options.mla) {
      const std::uint32_t fused = (kHeads + 2 * kKvHeads) * kHeadDim;
      add(name("qkv"), 1, fused, kHidden, 0.3f);
      vector(name("qkv_bias"), fused, 0.2f, 0.0f);
      vector(name("q_norm"), kHeadDim, 0.3f, 1.2f);
      vector(name("k_norm"), kHeadDim, 0.3f, 1.2f);
      add(name("o"), 1, kHidden, kHeads * kHeadDim, 0.2f);
      add(name("router"), 1, kExperts, kHidden, 0.3f);
      add(name("experts.gate_up"), kExperts, 2 * kIntermediate, kHidden, 0.3f);
      add(name("experts.down"), kExperts, kHidden, kIntermediate, 0.3f);
      continue;
    }
    add(name("q_a"), 1, kQueryRank, kHidden, 0.3f);
    vector(name("q_a_norm"), kQueryRank, 0.3f, 1.0f);
    add(name("q_b"), 1, kMlaHeads * (kNope + kRope), kQueryRank, 0.4f);
    add(name("kv_a"), 1, kLatent + kRope, kHidden, 0.3f);
    vector(name("kv_a_norm"), kLatent, 0.3f, 1.0f);
    add(name("w_uk"), kMlaHeads, kLatent, kNope, 0.3f);
    add(name("w_uv"), kMlaHeads, kValue, kLatent, 0.3f);
    add(name("o"), 1, kHidden, kMlaHeads * kValue, 0.2f);
    if (l == 0) {
      add(name("mlp.gate_up"), 1, 2 * kDense, kHidden, 0.3f);
      add(name("mlp.down"), 1, kHidden, kDense, 0.2f);
      continue;
    }
    add(name("router"), 1, kMlaExperts, kHidden, 0.2f, 0.0f, true);
    vector(name("router_bias"), kMlaExperts, 0.2f, 0.0f);
    add(name("experts.gate_up"), kMlaExperts, 2 * kIntermediate, kHidden, 0.3f);
    add(name("experts.down"), kMlaExperts, kHidden, kIntermediate, 0.3f);
    add(name("shared.gate_up"), 1, 2 * kShared, kHidden, 0.3f);
    add(name("shared.down"), 1, kHidden, kShared, 0.2f);
  }
  vector("final_norm", kHidden, 0.3f, 1.0f);
  add("head", 1, kVocabulary, kHidden, 0.3f);
}

void TinyModel::add_entry(EntryKind kind, std::uint32_t tokens, std::uint32_t rows, std::uint32_t sequences) {
  EntryBuilder e = builder.entry(kind, tokens, rows, sequences);
  const std::uint32_t ids = e.buffer("ids", BufferRole::ids, Symbol::tokens, 1, Format::i32);
  const std::uint32_t positions = e.buffer("positions", BufferRole::positions, Symbol::tokens, 1, Format::i32);
  std::uint32_t x = e.buffer("x0", BufferRole::value, Symbol::tokens, kHidden);
  e.step("embed", weighted<EmbedOpT>(index("embed")), {e.view(ids)}, {e.view(x)});
  for (std::uint32_t l = 0; l < kLayers; ++l) x = options.mla ? mla_layer(e, l, x, positions) : gqa_layer(e, l, x, positions);

  if (!options.select_early) x = select(e, x);
  const std::uint32_t normed = e.buffer("normed", BufferRole::value, Symbol::rows, kHidden);
  const std::uint32_t logits = e.buffer("logits", BufferRole::logits, Symbol::rows, kVocabulary);
  NormOpT norm;
  norm.w = index("final_norm");
  norm.eps = kEps;
  e.step("final_norm", norm, {e.view(x)}, {e.view(normed)});
  LinearOpT head = weighted<LinearOpT>(index("head"));
  head.head = true;
  e.step("head", head, {e.view(normed)}, {e.view(logits)});
}

std::uint32_t TinyModel::select(EntryBuilder& e, std::uint32_t x) {
  const std::uint32_t output_rows = e.buffer("output_rows", BufferRole::output_rows, Symbol::rows, 1, Format::i32);
  const std::uint32_t selected = e.buffer("selected", BufferRole::value, Symbol::rows, kHidden);
  e.step("select", SelectRowsOpT(), {e.view(x), e.view(output_rows)}, {e.view(selected)});
  return selected;
}

std::uint32_t TinyModel::gqa_layer(EntryBuilder& e, std::uint32_t l, std::uint32_t x, std::uint32_t positions) {
  std::uint32_t bound = e.entry().max_tokens;
  Symbol symbol = Symbol::tokens;
  const auto name = [l](const char* suffix) { return of_layer(l, suffix); };
  const auto value = [&](const char* suffix, std::uint64_t columns) {
    return e.buffer(name(suffix), BufferRole::value, symbol, columns);
  };
  const std::uint32_t normed = value("normed", kHidden), qkv = value("qkv", (kHeads + 2 * kKvHeads) * kHeadDim);
  const std::uint32_t attended = value("attended", kHeads * kHeadDim), o = value("o", kHidden);
  std::uint32_t x1 = value("x1", kHidden);
  NormOpT norm;
  norm.eps = kEps;
  norm.w = index(name("attention_norm"));
  e.step(name("attention_norm"), norm, {e.view(x)}, {e.view(normed)});
  LinearOpT linear = weighted<LinearOpT>(index(name("qkv")));
  linear.w_bias = index(name("qkv_bias"));
  e.step(name("qkv"), linear, {e.view(normed)}, {e.view(qkv)});
  GqaOpT gqa;
  gqa.heads = kHeads;
  gqa.kv_heads = kKvHeads;
  gqa.head_dim = kHeadDim;
  gqa.scale = kScale;
  gqa.w_q_norm = index(name("q_norm"));
  gqa.w_k_norm = index(name("k_norm"));
  gqa.norm_eps = kEps;
  gqa.cache_layer = l;
  const std::uint32_t query = e.workspace(name("query"), gqa_workspace(bound, kHeads, kHeadDim).total());
  e.step(name("attention"), gqa,
         {e.view(qkv, 0, kHeads * kHeadDim), e.view(qkv, kHeads * kHeadDim, kKvHeads * kHeadDim),
          e.view(qkv, (kHeads + kKvHeads) * kHeadDim, kKvHeads * kHeadDim), e.view(positions)},
         {e.view(attended)}, query);
  e.step(name("o"), weighted<LinearOpT>(index(name("o"))), {e.view(attended)}, {e.view(o)});
  e.step(name("add_attention"), AddOpT(), {e.view(x), e.view(o)}, {e.view(x1)});
  if (options.select_early && l + 1 == kLayers) {
    x1 = select(e, x1);
    symbol = Symbol::rows;
    bound = e.entry().max_rows;
  }

  const std::uint32_t normed2 = value("normed2", kHidden), routed = value("routed", kHidden), x2 = value("x2", kHidden);
  const std::uint32_t ids = e.buffer(name("ids"), BufferRole::value, symbol, kTopK, Format::i32);
  const std::uint32_t weights = value("weights", kTopK);
  norm.w = index(name("mlp_norm"));
  e.step(name("mlp_norm"), norm, {e.view(x1)}, {e.view(normed2)});
  RouteOpT route = weighted<RouteOpT>(index(name("router")));
  route.kind = RouterKind::softmax_topk;
  route.experts = kExperts;
  route.top_k = kTopK;
  route.normalise = true;
  e.step(name("route"), route, {e.view(normed2)}, {e.view(ids), e.view(weights)},
         e.workspace(name("router_logits"), route_workspace(bound, kExperts).total()));
  ExpertsOpT experts;
  experts.w_gate_up = index(name("experts.gate_up"));
  experts.w_down = index(name("experts.down"));
  experts.layer = l;
  e.step(name("experts"), experts, {e.view(normed2), e.view(ids), e.view(weights)}, {e.view(routed)},
         e.workspace(name("hidden"), experts_workspace(bound, kTopK, kIntermediate, kExperts).total()));
  e.step(name("add_mlp"), AddOpT(), {e.view(x1), e.view(routed)}, {e.view(x2)});
  return x2;
}

std::uint32_t TinyModel::mla_layer(EntryBuilder& e, std::uint32_t l, std::uint32_t x, std::uint32_t positions) {
  std::uint32_t bound = e.entry().max_tokens;
  Symbol symbol = Symbol::tokens;
  const auto name = [l](const char* suffix) { return of_layer(l, suffix); };
  const auto value = [&](const char* suffix, std::uint64_t columns) {
    return e.buffer(name(suffix), BufferRole::value, symbol, columns);
  };
  const auto linear = [&](const char* suffix) { return weighted<LinearOpT>(index(name(suffix))); };
  NormOpT norm;
  norm.eps = kEps;
  const std::uint32_t normed = value("normed", kHidden), q_a = value("q_a", kQueryRank);
  const std::uint32_t q = value("q", kMlaHeads * (kNope + kRope)), kv_a = value("kv_a", kLatent + kRope);
  const std::uint32_t latent = value("latent", kLatent), attended = value("attended", kMlaHeads * kValue);
  const std::uint32_t o = value("o", kHidden);
  std::uint32_t x1 = value("x1", kHidden);
  norm.w = index(name("attention_norm"));
  e.step(name("attention_norm"), norm, {e.view(x)}, {e.view(normed)});
  e.step(name("q_a"), linear("q_a"), {e.view(normed)}, {e.view(q_a)});
  norm.w = index(name("q_a_norm"));
  e.step(name("q_a_norm"), norm, {e.view(q_a)}, {e.view(q_a)});  // in place
  e.step(name("q_b"), linear("q_b"), {e.view(q_a)}, {e.view(q)});
  e.step(name("kv_a"), linear("kv_a"), {e.view(normed)}, {e.view(kv_a)});
  norm.w = index(name("kv_a_norm"));
  e.step(name("kv_a_norm"), norm, {e.view(kv_a, 0, kLatent)}, {e.view(latent)});
  MlaOpT mla;
  mla.heads = kMlaHeads;
  mla.nope_dim = kNope;
  mla.rope_dim = kRope;
  mla.v_dim = kValue;
  mla.latent_dim = kLatent;
  mla.scale = kMlaScale;
  mla.w_uk = index(name("w_uk"));
  mla.w_uv = index(name("w_uv"));
  mla.cache_layer = l;
  e.step(name("attention"), mla, {e.view(q), e.view(latent), e.view(kv_a, kLatent, kRope), e.view(positions)},
         {e.view(attended)}, e.workspace(name("latent_query"), mla_workspace(bound, kMlaHeads, kLatent, kRope).total()));
  e.step(name("o"), linear("o"), {e.view(attended)}, {e.view(o)});
  e.step(name("add_attention"), AddOpT(), {e.view(x), e.view(o)}, {e.view(x1)});
  if (options.select_early && l + 1 == kLayers) {
    x1 = select(e, x1);
    symbol = Symbol::rows;
    bound = e.entry().max_rows;
  }

  const std::uint32_t normed2 = value("normed2", kHidden), x2 = value("x2", kHidden);
  norm.w = index(name("mlp_norm"));
  e.step(name("mlp_norm"), norm, {e.view(x1)}, {e.view(normed2)});
  const auto mlp = [&](const char* gate_up, const char* down, const char* suffix, std::uint32_t intermediate) {
    const std::uint32_t out = value(suffix, kHidden);
    MlpOpT op;
    op.w_gate_up = index(name(gate_up));
    op.w_down = index(name(down));
    e.step(name(suffix), op, {e.view(normed2)}, {e.view(out)},
           e.workspace(name((std::string(suffix) + "_hidden").c_str()), mlp_workspace(bound, intermediate).total()));
    return out;
  };
  if (l == 0) {
    const std::uint32_t dense = mlp("mlp.gate_up", "mlp.down", "mlp", kDense);
    e.step(name("add_mlp"), AddOpT(), {e.view(x1), e.view(dense)}, {e.view(x2)});
    return x2;
  }
  const std::uint32_t ids = e.buffer(name("ids"), BufferRole::value, symbol, kMlaTopK, Format::i32);
  const std::uint32_t weights = value("weights", kMlaTopK), routed = value("routed", kHidden);
  RouteOpT route = weighted<RouteOpT>(index(name("router")));
  route.kind = RouterKind::sigmoid_group;
  route.w_bias = index(name("router_bias"));
  route.experts = kMlaExperts;
  route.top_k = kMlaTopK;
  route.normalise = true;
  route.scale = kRouterScale;
  route.groups = kGroups;
  route.topk_groups = kTopkGroups;
  e.step(name("route"), route, {e.view(normed2)}, {e.view(ids), e.view(weights)},
         e.workspace(name("router_logits"), route_workspace(bound, kMlaExperts).total()));
  ExpertsOpT experts;
  experts.w_gate_up = index(name("experts.gate_up"));
  experts.w_down = index(name("experts.down"));
  experts.layer = l;
  e.step(name("experts"), experts, {e.view(normed2), e.view(ids), e.view(weights)}, {e.view(routed)},
         e.workspace(name("hidden"), experts_workspace(bound, kMlaTopK, kIntermediate, kMlaExperts).total()));
  const std::uint32_t shared = mlp("shared.gate_up", "shared.down", "shared", kShared);
  e.step(name("add_mlp"), AddOpT(), {e.view(x1), e.view(routed), e.view(shared)}, {e.view(x2)});
  return x2;
}

}  // namespace ktc::test
