// Whole checkpoints: the two that ship, the order of modules, and a 671B model from headers alone.
#include "models/read_model.h"

#include <cmath>
#include <functional>

#include "model_test_support.h"
#include "models/dump.h"

namespace ktc::models {
namespace {

using ktc::test::FakeCheckpoint;
using ktc::test::make_deepseek_v3;
using ktc::test::make_qwen3_moe;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> module_names(const ModelDesc& model, int layer) {
  std::vector<std::string> names;
  for (const Module& module : model.modules)
    if (module.layer == layer) names.push_back(module.name);
  return names;
}

TEST(ReadModel, Demo) {
  const ReadOutcome o = read_folder(std::string(KTC_SOURCE_DIR) + "/models/demo");
  ASSERT_EQ(o.error, "");
  EXPECT_THAT(o.warnings, IsEmpty());
  const ModelDesc& m = *o.model;
  expect_exact_cover(m);
  EXPECT_EQ(m.name, "demo");
  EXPECT_EQ(m.family, "qwen3_moe");
  EXPECT_EQ(m.layers.size(), 8u);
  EXPECT_EQ(m.tensors.size(), 842u);
  EXPECT_EQ(m.slots.size(), 1 + 8 * 11 + 1u);  // embedding; 2 norms, 6 of attention, router, 2 of experts; final norm
  EXPECT_EQ(m.modules.size(), 1 + 8 * 5 + 2u);
  EXPECT_TRUE(m.tied_head);
  EXPECT_THAT(m.skipped, IsEmpty());
  EXPECT_THAT(m.stop_tokens, ElementsAre(0));
  EXPECT_THAT(m.text_files, ElementsAre("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"));
  const Layer& layer = m.layers[3];
  const auto& attention = std::get<GqaDesc>(m.modules[layer.attention].attributes);
  EXPECT_EQ(attention.heads, 6u);
  EXPECT_EQ(attention.kv_heads, 2u);
  EXPECT_EQ(attention.head_dim, 64u);
  EXPECT_EQ(attention.scale, 0.125f);
  EXPECT_EQ(attention.rope.style, RopeStyle::half);
  EXPECT_NE(attention.q_norm, kNoSlot);
  EXPECT_EQ(attention.q_bias, kNoSlot);
  EXPECT_EQ(m.slots[attention.q].name, "model.layers.3.self_attn.q");
  const auto& router = std::get<RouterDesc>(m.modules[layer.router].attributes);
  EXPECT_EQ(router.kind, RouterKind::softmax_topk);
  EXPECT_EQ(router.experts, 32u);
  EXPECT_EQ(router.top_k, 8u);
  EXPECT_TRUE(router.normalise);
  const auto& experts = std::get<ExpertsDesc>(m.modules[layer.experts].attributes);
  EXPECT_EQ(experts.intermediate, 64u);
  EXPECT_EQ(m.slots[experts.gate_up].pieces.size(), 64u);
}

TEST(ReadModel, MiniDeepseek) {
  const std::filesystem::path folder = std::string(KTC_CHECKPOINTS) + "/mini-deepseek-v3";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no trained checkpoint here: set KTC_CHECKPOINTS";
  const ReadOutcome o = read_folder(folder);
  ASSERT_EQ(o.error, "");
  const ModelDesc& m = *o.model;
  expect_exact_cover(m);
  EXPECT_EQ(m.family, "deepseek_v3");
  EXPECT_EQ(m.layers.size(), 10u);
  EXPECT_EQ(m.tensors.size(), 1869u);
  // embedding, final norm, head; per layer 2 norms and 7 of attention; 2 of the dense layer; 2 + 2 + 2 of each MoE
  // layer
  EXPECT_EQ(m.slots.size(), 3 + 10 * 9 + 2 + 9 * 6u);
  EXPECT_FALSE(m.tied_head);
  EXPECT_FALSE(m.layers[0].is_moe());
  EXPECT_NE(m.layers[0].mlp, kNoModule);
  for (std::size_t i = 1; i < 10; ++i) EXPECT_TRUE(m.layers[i].is_moe());
  const auto& mla = std::get<MlaDesc>(m.modules[m.layers[5].attention].attributes);
  EXPECT_EQ(mla.q_rank, 128u);
  EXPECT_EQ(mla.kv_rank, 512u);
  EXPECT_EQ(mla.rope.style, RopeStyle::interleaved);
  EXPECT_EQ(mla.q, kNoSlot);
  const auto& router = std::get<RouterDesc>(m.modules[m.layers[5].router].attributes);
  EXPECT_EQ(router.kind, RouterKind::sigmoid_group);
  EXPECT_EQ(router.groups, 8u);
  EXPECT_EQ(router.topk_groups, 4u);
  EXPECT_EQ(router.scale, 2.5f);
  EXPECT_EQ(m.slots[router.bias].type, TensorType::f32);
  // it announces an MTP layer that it does not have
  ASSERT_EQ(o.warnings.size(), 1u);
  EXPECT_THAT(o.warnings[0],
              testing::HasSubstr("num_nextn_predict_layers = 1 announces layers that the checkpoint does not have"));
}

TEST(ReadModel, ModulesStandInTheOrderOfExecution) {
  const ReadOutcome q = read(make_qwen3_moe({.layers = 2, .dense_layers = {0}}));
  ASSERT_EQ(q.error, "");
  EXPECT_EQ(q.model->modules.front().name, "model.embed_tokens");
  EXPECT_THAT(module_names(*q.model, 0), ElementsAre("model.layers.0.input_layernorm", "model.layers.0.self_attn",
                                                     "model.layers.0.post_attention_layernorm", "model.layers.0.mlp"));
  EXPECT_THAT(module_names(*q.model, 1), ElementsAre("model.layers.1.input_layernorm", "model.layers.1.self_attn",
                                                     "model.layers.1.post_attention_layernorm",
                                                     "model.layers.1.mlp.gate", "model.layers.1.mlp.experts"));
  EXPECT_THAT(module_names(*q.model, -1), ElementsAre("model.embed_tokens", "model.norm", "lm_head"));
  EXPECT_EQ(q.model->modules[q.model->head].name, "lm_head");
  EXPECT_EQ(q.model->modules[q.model->final_norm].name, "model.norm");
  const ReadOutcome d = read(make_deepseek_v3());
  ASSERT_EQ(d.error, "");
  EXPECT_THAT(module_names(*d.model, 2),
              ElementsAre("model.layers.2.input_layernorm", "model.layers.2.self_attn",
                          "model.layers.2.post_attention_layernorm", "model.layers.2.mlp.gate",
                          "model.layers.2.mlp.experts", "model.layers.2.mlp.shared_experts"));
  for (const Module& module : d.model->modules) {
    EXPECT_EQ(module.line.file, "deepseek_v3.yaml");
    EXPECT_GT(module.line.line, 0);
  }
}

TEST(ReadModel, DirectQueryProjection) {
  const ReadOutcome o = read(make_deepseek_v3({.q_rank = 0}));
  ASSERT_EQ(o.error, "");
  const auto& mla = std::get<MlaDesc>(o.model->modules[o.model->layers[1].attention].attributes);
  EXPECT_EQ(mla.q_rank, 0u);
  EXPECT_NE(mla.q, kNoSlot);
  EXPECT_EQ(mla.q_a, kNoSlot);
  EXPECT_EQ(mla.q_b, kNoSlot);
  expect_exact_cover(*o.model);
}

TEST(ReadModel, NoSharedExpertsAndOneGroup) {  // as in Kimi-K2: one group is no limit
  const ReadOutcome o = read(make_deepseek_v3({.groups = 1, .topk_groups = 1, .shared = 0}));
  ASSERT_EQ(o.error, "");
  EXPECT_EQ(o.model->layers[1].shared, kNoModule);
  EXPECT_EQ(std::get<RouterDesc>(o.model->modules[o.model->layers[1].router].attributes).groups, 1u);
}

TEST(ReadModel, TwoSharedExpertsAreOneWiderMlp) {
  const ReadOutcome o = read(make_deepseek_v3({.shared = 2}));
  ASSERT_EQ(o.error, "");
  EXPECT_EQ(std::get<MlpDesc>(o.model->modules[o.model->layers[1].shared].attributes).intermediate, 48u);
}

// User problem 2 from end to end: four spellings, one description.
TEST(ReadModel, RopeSpellingsGiveOneDescription) {
  auto frequencies = [](const std::function<void(nlohmann::json&)>& edit) {
    FakeCheckpoint c = make_qwen3_moe();
    edit(c.config);
    const ReadOutcome o = read(c);
    EXPECT_EQ(o.error, "");
    const auto& rope = std::get<GqaDesc>(o.model->modules[o.model->layers[0].attention].attributes).rope;
    EXPECT_EQ(rope.type, "default");
    EXPECT_EQ(rope.factor, 1.0f);
    return rope.inv_freq;
  };
  const auto a = frequencies([](auto& c) { c["rope_theta"] = 500000.0; });
  const auto b = frequencies([](auto& c) {
    c.erase("rope_theta");
    c.erase("rope_scaling");
    c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  });
  const auto conflict = frequencies([](auto& c) {
    c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  });
  const auto d = frequencies([](auto& c) {
    c["rope_theta"] = 500000.0;
    c["rope_parameters"] = {{"rope_type", "default"}};
  });
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, conflict);
  EXPECT_EQ(a, d);
  EXPECT_NEAR(a[1], std::pow(500000.0, -2.0 / 16), 1e-7);
}

TEST(ReadModel, UnknownArchitecture) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config["architectures"] = {"Qwen3MoeForCausalLN"};
  EXPECT_EQ(read(c).error,
            "M/config.json: architectures: found 'Qwen3MoeForCausalLN', expected one of DeepseekV3ForCausalLM, "
            "Qwen3MoeForCausalLM; docs/models.md says how to add a family");
  c.config["architectures"] = nlohmann::json::array();
  EXPECT_EQ(read(c).error, "M/config.json: architectures: found [], expected a list with one name");
  c.config.erase("architectures");
  EXPECT_EQ(read(c).error, "M/config.json: architectures: found nothing, expected a list with one name");
}

TEST(ReadModel, MissingConfig) {
  ktc::test::TemporaryFolder folder;
  EXPECT_EQ(read_folder(folder.path()).error, "M/config.json: no such file");
}

// DeepSeek-V3 with its real dimensions: 61 layers, 256 experts, 671 billion parameters; headers only.
TEST(ReadModel, DeepseekV3From671BHeaders) {
  FakeCheckpoint c = make_deepseek_v3({.layers = 61,
                                       .dense_layers = 3,
                                       .hidden = 7168,
                                       .heads = 128,
                                       .q_rank = 1536,
                                       .kv_rank = 512,
                                       .nope = 128,
                                       .rope = 64,
                                       .v = 128,
                                       .experts = 256,
                                       .top_k = 8,
                                       .groups = 8,
                                       .topk_groups = 4,
                                       .intermediate = 2048,
                                       .dense_intermediate = 18432,
                                       .shared = 1,
                                       .vocab = 129280});
  c.shards = 163;
  ktc::test::TemporaryFolder folder;
  c.write(folder.path());
  const Stopwatch reading;
  const ReadOutcome o = read_folder(folder.path());
  EXPECT_LT(reading.seconds(), 10.0);
  ASSERT_EQ(o.error, "");
  std::uint64_t parameters = 0;
  for (const WeightSlot& slot : o.model->slots) parameters += slot.batch * slot.rows * slot.columns;
  EXPECT_EQ(parameters, 671'026'419'200u);  // 671.03 billion: the published figure without the MTP layer
  EXPECT_EQ(o.model->tensors.size(), 61u * 9 + 3 * 3 + 58 * (2 + 256 * 3 + 3) + 3);
  const auto& mla = std::get<MlaDesc>(o.model->modules[o.model->layers[60].attention].attributes);
  EXPECT_NEAR(mla.scale, 0.13523378, 2e-8);
  EXPECT_EQ(mla.rope.type, "yarn");
}

TEST(Dump, IsStableText) {
  FakeCheckpoint c = make_qwen3_moe({.layers = 1});
  c.config["num_experts"] = 1;
  c.config["num_experts_per_tok"] = 1;
  std::erase_if(c.tensors, [](const auto& t) {
    const auto at = t.name.find(".experts.");
    return at != std::string::npos && t.name[at + 9] != '0';
  });
  c.at("model.layers.0.mlp.gate.weight").shape = {1, 48};
  ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  o.model->name = "tiny";
  for (Module& module : o.model->modules) module.line.line = 1;  // lines of the family file may move
  EXPECT_EQ(dump(*o.model, {.slots = true, .tensors = true}),
            R"(model tiny family qwen3_moe architecture Qwen3MoeForCausalLM
hidden 48 vocab 64 layers 1 max_positions 256
bos 0 stop [0, 1]
sampling temperature 0.7
sampling top_k 20
sampling top_p 0.9
shards 1 tensors 15 bytes 38080
head of its own
text file tokenizer.json
text file tokenizer_config.json
Embedding model.embed_tokens @qwen3_moe.yaml:1
  model.embed_tokens.weight [64, 48] bf16 from 1 tensor
    model.embed_tokens.weight at [0, 0]
Norm model.layers.0.input_layernorm rms eps 1e-06 @qwen3_moe.yaml:1
  model.layers.0.input_layernorm.weight [48] bf16 from 1 tensor
    model.layers.0.input_layernorm.weight at [0, 0]
Attention model.layers.0.self_attn gqa heads 4 kv_heads 2 head_dim 16 scale 0.25 norm_eps 1e-06 rope half dim 16 default inv_freq[8] 1..0.000316228 factor 1 softmax_factor 1 @qwen3_moe.yaml:1
  model.layers.0.self_attn.q [64, 48] bf16 from 1 tensor
    model.layers.0.self_attn.q_proj.weight at [0, 0]
  model.layers.0.self_attn.k [32, 48] bf16 from 1 tensor
    model.layers.0.self_attn.k_proj.weight at [0, 0]
  model.layers.0.self_attn.v [32, 48] bf16 from 1 tensor
    model.layers.0.self_attn.v_proj.weight at [0, 0]
  model.layers.0.self_attn.q_norm [16] bf16 from 1 tensor
    model.layers.0.self_attn.q_norm.weight at [0, 0]
  model.layers.0.self_attn.k_norm [16] bf16 from 1 tensor
    model.layers.0.self_attn.k_norm.weight at [0, 0]
  model.layers.0.self_attn.o [48, 64] bf16 from 1 tensor
    model.layers.0.self_attn.o_proj.weight at [0, 0]
Norm model.layers.0.post_attention_layernorm rms eps 1e-06 @qwen3_moe.yaml:1
  model.layers.0.post_attention_layernorm.weight [48] bf16 from 1 tensor
    model.layers.0.post_attention_layernorm.weight at [0, 0]
Router model.layers.0.mlp.gate softmax_topk experts 1 top_k 1 groups 1 topk_groups 1 normalise true scale 1 @qwen3_moe.yaml:1
  model.layers.0.mlp.gate.weight [48] bf16 from 1 tensor
    model.layers.0.mlp.gate.weight at [0, 0]
RoutedExperts model.layers.0.mlp.experts swiglu experts 1 intermediate 24 @qwen3_moe.yaml:1
  model.layers.0.mlp.experts.gate_up [48, 48] bf16 from 2 tensors
    model.layers.0.mlp.experts.0.gate_proj.weight at [0, 0]
    model.layers.0.mlp.experts.0.up_proj.weight at [0, 24]
  model.layers.0.mlp.experts.down [48, 24] bf16 from 1 tensor
    model.layers.0.mlp.experts.0.down_proj.weight at [0, 0]
Norm model.norm rms eps 1e-06 @qwen3_moe.yaml:1
  model.norm.weight [48] bf16 from 1 tensor
    model.norm.weight at [0, 0]
Head lm_head @qwen3_moe.yaml:1
  lm_head.weight [64, 48] bf16 from 1 tensor
    lm_head.weight at [0, 0]
)");
}

}  // namespace
}  // namespace ktc::models
