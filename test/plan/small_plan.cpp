#include "test/plan/small_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "test/support/plan_builder.h"

namespace ktc::test {

using namespace planfb;

namespace {

constexpr std::uint32_t kVocabulary = 8, kHidden = 16, kExperts = 4;
constexpr const char* kTokenizer = "{}\n";

class SmallPlan {
 public:
  SmallPlan() : builder_("small") {
    PlanT& plan = builder_.plan();
    plan.target = "test.yaml";
    plan.policy = "version: 1\nrules: []\n";
    model(*plan.model);
    weights();
    rope_ = builder_.rope(RopeStyle::half, {1.0f, 0.1f, 0.01f, 0.001f}, 1.0f);
    mla_rope_ = builder_.rope(RopeStyle::interleaved, {1.0f, 0.3f}, 1.1f);
    kv_ = builder_.cache("kv", Format::f32, 1, {{"k", 1, 8}, {"v", 1, 8}}, 4, 10, 2);
    latent_ = builder_.cache("latent", Format::bf16, 1, {{"latent", 1, 8}, {"rope", 1, 4}}, 4, 10, 2);
    text_file();
    model_entry(EntryKind::extend, 4, 2, 2);
    model_entry(EntryKind::decode, 1, 1, 1);
    model_entry(EntryKind::decode, 2, 2, 2);
    sample_entry();
  }

  PlanBuilder& builder() { return builder_; }

 private:
  static void model(ModelT& model) {
    model.vocab_size = kVocabulary;
    model.hidden_size = kHidden;
    model.layers = 2;
    model.experts = kExperts;
    model.max_positions = 64;
    model.bos_token = 1;
    model.stop_tokens = {2, 3};
    model.sampling = std::make_unique<SamplingDefaultsT>();
    model.sampling->temperature = 0.7f;
    model.sampling->top_k = 20;
  }

  void text_file() {
    auto file = std::make_unique<TextFileT>();
    file->name = "tokenizer.json";
    file->bytes = 3;
    file->digest = plan::digest64(std::as_bytes(std::span(kTokenizer, 3)));
    builder_.plan().text_files.push_back(std::move(file));
  }

  std::uint32_t add(const std::string& name, Format format, std::uint64_t batch, std::uint64_t rows,
                    std::uint64_t columns) {
    std::vector<float> values(batch * rows * columns);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i % 7) - 3) * 0.25f;
    return builder_.weight(name, format, batch, rows, columns, values);
  }

  void weights() {
    embed_ = add("embed", Format::bf16, 1, kVocabulary, kHidden);
    norm_ = add("norm", Format::f32, 1, 1, kHidden);
    head_norm_ = add("head_norm", Format::f32, 1, 1, 8);
    qkv_ = add("layers.0.qkv", Format::bf16, 1, 32, kHidden);
    qkv_bias_ = add("layers.0.qkv_bias", Format::f32, 1, 1, 32);
    o_ = add("layers.0.o", Format::bf16, 1, kHidden, kHidden);
    router_ = add("layers.0.router", Format::f32, 1, kExperts, kHidden);
    gate_up_ = add("layers.0.experts.gate_up", Format::bf16, kExperts, 8, kHidden);
    down_ = add("layers.0.experts.down", Format::bf16, kExperts, kHidden, 4);
    q_ = add("layers.1.q", Format::bf16, 1, 24, kHidden);
    kv_a_ = add("layers.1.kv_a", Format::bf16, 1, 12, kHidden);
    uk_ = add("layers.1.uk", Format::bf16, 2, 8, 8);
    uv_ = add("layers.1.uv", Format::bf16, 2, 8, 8);
    router1_ = add("layers.1.router", Format::f32, 1, kExperts, kHidden);
    router_bias_ = add("layers.1.router_bias", Format::f32, 1, 1, kExperts);
    gate_up1_ = builder_.alias("layers.1.experts.gate_up", gate_up_);
    down1_ = builder_.alias("layers.1.experts.down", down_);
    shared_gate_up_ = builder_.splat("layers.1.shared.gate_up", Format::bf16, 1, 8, kHidden, 0.5f);
    shared_down_ = builder_.splat("layers.1.shared.down", Format::bf16, 1, kHidden, 4, -0.25f);
  }

  NormOpT norm(std::uint32_t w) const {
    NormOpT op;
    op.w = w;
    op.eps = 1e-6f;
    return op;
  }
  LinearOpT linear(std::uint32_t w) const {
    LinearOpT op;
    op.w = w;
    return op;
  }

  struct Buffers {
    std::uint32_t ids, positions, output_rows, logits, x, h, qkv, attention, expert_ids, expert_weights, q, kv, latent,
        shared, selected, scratch;
  };

  Buffers buffers(EntryBuilder& e) const {
    Buffers b{};
    b.ids = e.buffer("ids", BufferRole::ids, Symbol::tokens, 1, Format::i32);
    b.positions = e.buffer("positions", BufferRole::positions, Symbol::tokens, 1, Format::i32);
    b.output_rows = e.buffer("output_rows", BufferRole::output_rows, Symbol::rows, 1, Format::i32);
    b.logits = e.buffer("logits", BufferRole::logits, Symbol::rows, kVocabulary);
    b.x = e.buffer("x", BufferRole::value, Symbol::tokens, kHidden);
    b.h = e.buffer("h", BufferRole::value, Symbol::tokens, kHidden);
    b.qkv = e.buffer("qkv", BufferRole::value, Symbol::tokens, 32);
    b.attention = e.buffer("attention", BufferRole::value, Symbol::tokens, kHidden);
    b.expert_ids = e.buffer("expert_ids", BufferRole::value, Symbol::tokens, 2, Format::i32);
    b.expert_weights = e.buffer("expert_weights", BufferRole::value, Symbol::tokens, 2);
    b.q = e.buffer("q", BufferRole::value, Symbol::tokens, 24);
    b.kv = e.buffer("kv", BufferRole::value, Symbol::tokens, 12);
    b.latent = e.buffer("latent", BufferRole::value, Symbol::tokens, 8);
    b.shared = e.buffer("shared", BufferRole::value, Symbol::tokens, kHidden);
    b.selected = e.buffer("selected", BufferRole::value, Symbol::rows, kHidden);
    b.scratch = e.workspace("scratch", 640);
    return b;
  }

  void first_layer(EntryBuilder& e, const Buffers& b) const {
    e.step("layers.0.attention.norm", norm(norm_), {e.view(b.x)}, {e.view(b.h)});
    LinearOpT qkv = linear(qkv_);
    qkv.w_bias = qkv_bias_;
    e.step("layers.0.attention.qkv", qkv, {e.view(b.h)}, {e.view(b.qkv)}).location = "small.yaml:12";
    GqaOpT gqa;
    gqa.heads = 2;
    gqa.kv_heads = 1;
    gqa.head_dim = 8;
    gqa.scale = 0.35355338f;
    gqa.rope = rope_;
    gqa.w_q_norm = gqa.w_k_norm = head_norm_;
    gqa.norm_eps = 1e-6f;
    gqa.cache = kv_;
    e.step("layers.0.attention", gqa,
           {e.view(b.qkv, 0, 16), e.view(b.qkv, 16, 8), e.view(b.qkv, 24, 8), e.view(b.positions)},
           {e.view(b.attention)}, b.scratch);
    e.step("layers.0.attention.o", linear(o_), {e.view(b.attention)}, {e.view(b.h)});
    e.step("layers.0.attention.add", AddOpT(), {e.view(b.x), e.view(b.h)}, {e.view(b.x)});
    e.step("layers.0.mlp.norm", norm(norm_), {e.view(b.x)}, {e.view(b.h)});
    RouteOpT route;
    route.w = router_;
    route.experts = kExperts;
    route.top_k = 2;
    route.normalise = true;
    e.step("layers.0.mlp.router", route, {e.view(b.h)}, {e.view(b.expert_ids), e.view(b.expert_weights)}, b.scratch);
    ExpertsOpT experts;
    experts.w_gate_up = gate_up_;
    experts.w_down = down_;
    e.step("layers.0.mlp.experts", experts, {e.view(b.h), e.view(b.expert_ids), e.view(b.expert_weights)},
           {e.view(b.attention)}, b.scratch);
    e.step("layers.0.mlp.add", AddOpT(), {e.view(b.x), e.view(b.attention)}, {e.view(b.x)});
  }

  void second_layer(EntryBuilder& e, const Buffers& b) const {
    e.step("layers.1.attention.norm", norm(norm_), {e.view(b.x)}, {e.view(b.h)});
    e.step("layers.1.attention.q", linear(q_), {e.view(b.h)}, {e.view(b.q)});
    e.step("layers.1.attention.kv_a", linear(kv_a_), {e.view(b.h)}, {e.view(b.kv)});
    e.step("layers.1.attention.kv_norm", norm(head_norm_), {e.view(b.kv, 0, 8)}, {e.view(b.latent)});
    MlaOpT mla;
    mla.heads = 2;
    mla.nope_dim = 8;
    mla.rope_dim = 4;
    mla.v_dim = 8;
    mla.latent_dim = 8;
    mla.scale = 0.2886751f;
    mla.rope = mla_rope_;
    mla.w_uk = uk_;
    mla.w_uv = uv_;
    mla.cache = latent_;
    e.step("layers.1.attention", mla, {e.view(b.q), e.view(b.latent), e.view(b.kv, 8, 4), e.view(b.positions)},
           {e.view(b.attention)}, b.scratch);
    e.step("layers.1.attention.o", linear(o_), {e.view(b.attention)}, {e.view(b.h)});
    e.step("layers.1.attention.add", AddOpT(), {e.view(b.x), e.view(b.h)}, {e.view(b.x)});
    e.step("layers.1.mlp.norm", norm(norm_), {e.view(b.x)}, {e.view(b.h)});
    RouteOpT route;
    route.kind = RouterKind::sigmoid_group;
    route.w = router1_;
    route.w_bias = router_bias_;
    route.experts = kExperts;
    route.top_k = 2;
    route.scale = 2.5f;
    route.groups = 2;
    e.step("layers.1.mlp.router", route, {e.view(b.h)}, {e.view(b.expert_ids), e.view(b.expert_weights)}, b.scratch);
    ExpertsOpT experts;
    experts.w_gate_up = gate_up1_;
    experts.w_down = down1_;
    experts.layer = 1;
    e.step("layers.1.mlp.experts", experts, {e.view(b.h), e.view(b.expert_ids), e.view(b.expert_weights)},
           {e.view(b.attention)}, b.scratch);
    MlpOpT shared;
    shared.w_gate_up = shared_gate_up_;
    shared.w_down = shared_down_;
    e.step("layers.1.mlp.shared", shared, {e.view(b.h)}, {e.view(b.shared)}, b.scratch);
    e.step("layers.1.mlp.add", AddOpT(), {e.view(b.x), e.view(b.attention), e.view(b.shared)}, {e.view(b.x)});
  }

  void model_entry(EntryKind kind, std::uint32_t tokens, std::uint32_t rows, std::uint32_t sequences) {
    EntryBuilder e = builder_.entry(kind, tokens, rows, sequences);
    const Buffers b = buffers(e);
    EmbedOpT embed;
    embed.w = embed_;
    e.step("embed", embed, {e.view(b.ids)}, {e.view(b.x)});
    first_layer(e, b);
    second_layer(e, b);
    e.step("select", SelectRowsOpT(), {e.view(b.x), e.view(b.output_rows)}, {e.view(b.selected)});
    e.step("norm", norm(norm_), {e.view(b.selected)}, {e.view(b.selected)});
    LinearOpT head = linear(embed_);
    head.head = true;
    e.step("head", head, {e.view(b.selected)}, {e.view(b.logits)});
  }

  void sample_entry() {
    EntryBuilder e = builder_.entry(EntryKind::sample, 2, 2, 2);
    e.entry().name = "sample[2]";
    const std::uint32_t logits = e.buffer("logits", BufferRole::logits, Symbol::rows, kVocabulary);
    const std::uint32_t ids = e.buffer("next_ids", BufferRole::next_ids, Symbol::rows, 1, Format::i32);
    e.step("sample", SampleOpT(), {e.view(logits)}, {e.view(ids)});
  }

  PlanBuilder builder_;
  std::uint32_t embed_, norm_, head_norm_, qkv_, qkv_bias_, o_, router_, gate_up_, down_, q_, kv_a_, uk_, uv_, router1_,
      router_bias_, gate_up1_, down1_, shared_gate_up_, shared_down_, rope_, mla_rope_, kv_, latent_;
};

template <typename T>
T& named(const std::vector<std::unique_ptr<T>>& items, std::string T::*key, std::string_view name) {
  for (const auto& one : items)
    if ((*one).*key == name) return *one;
  ADD_FAILURE() << "the small plan has no " << name;
  std::abort();
}

}  // namespace

void write_small_plan(const std::filesystem::path& folder) {
  SmallPlan plan;
  ASSERT_TRUE(plan.builder().write(folder));
  std::ofstream(folder / "tokenizer.json") << kTokenizer;
}

const std::vector<std::byte>& small_plan_bytes() {
  static const std::vector<std::byte> bytes = [] {
    const TempFolder folder;
    SmallPlan plan;
    EXPECT_TRUE(plan.builder().write(folder.path()));
    return plan::serialise_plan(plan.builder().plan());
  }();
  return bytes;
}

PlanT small_plan() {
  PlanT plan;
  GetPlan(small_plan_bytes().data())->UnPackTo(&plan);
  return plan;
}

EntryT& entry(PlanT& plan, std::string_view name) {
  return named(plan.entries, &EntryT::name, name);
}
BufferT& buffer(EntryT& entry, std::string_view name) {
  return named(entry.buffers, &BufferT::name, name);
}
StepT& step(EntryT& entry, std::string_view name) {
  return named(entry.steps, &StepT::name, name);
}
WeightT& weight(PlanT& plan, std::string_view name) {
  return named(plan.weights, &WeightT::name, name);
}

std::uint32_t buffer_index(const EntryT& entry, std::string_view name) {
  for (std::uint32_t i = 0; i < entry.buffers.size(); ++i)
    if (entry.buffers[i]->name == name) return i;
  ADD_FAILURE() << "no buffer " << name;
  return 0;
}
std::uint32_t weight_index(const PlanT& plan, std::string_view name) {
  for (std::uint32_t i = 0; i < plan.weights.size(); ++i)
    if (plan.weights[i]->name == name) return i;
  ADD_FAILURE() << "no weight " << name;
  return 0;
}

void PrintTo(const Broken& broken, std::ostream* out) {
  *out << broken.name;
}

std::string message_of(const Broken& broken) {
  PlanT plan = small_plan();
  broken.change(plan);
  const Status status = plan::verify_plan(plan);
  EXPECT_NE(status.code(), StatusCode::internal);
  std::string message = status.message();
  const std::string remedy = "; compile the model again";
  EXPECT_TRUE(message.ends_with(remedy)) << message;
  return message.substr(0, message.size() - std::min(message.size(), remedy.size()));
}

}  // namespace ktc::test
