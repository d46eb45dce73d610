// config.json through the shipped families: spellings, nulls, refusals, unknown keys.
#include "models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/support/fake_checkpoint.h"

namespace ktc::models {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const Family& family(const std::string& name) {
  static std::map<std::string, Family> families;
  auto it = families.find(name);
  if (it == families.end()) {
    auto parsed = parse_family(ktc::test::read_text(std::string(KTC_SOURCE_DIR) + "/models/families/" + name + ".yaml"),
                               name + ".yaml");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    it = families.emplace(name, *parsed).first;
  }
  return it->second;
}

struct Outcome {
  std::optional<ModelConfig> config;
  std::string error;
  std::vector<std::string> warnings;
};

Outcome read(const std::string& name, const Json& json) {
  Outcome outcome;
  auto config = read_config(family(name), json, "config.json", &outcome.warnings);
  if (config.ok())
    outcome.config = *std::move(config);
  else
    outcome.error = config.status().message();
  return outcome;
}

Json qwen() {
  return ktc::test::make_qwen3_moe().config;
}
Json deepseek() {
  return ktc::test::make_deepseek_v3().config;
}

std::string error_with(Json json, const std::string& name, const std::string& key, const Json& value) {
  json[key] = value;
  return read(name, json).error;
}

TEST(Config, ReadsValuesUnderTheirNames) {
  const Outcome o = read("qwen3_moe", qwen());
  ASSERT_EQ(o.error, "");
  EXPECT_THAT(o.warnings, IsEmpty());
  EXPECT_EQ(o.config->integer("hidden"), 48);
  EXPECT_EQ(o.config->integer("experts"), 4);
  EXPECT_EQ(*o.config->find("eps")->get<double>(), 1e-6);
  EXPECT_EQ(o.config->boolean("tied"), false);
}

TEST(Config, AcceptsOldAndNewSpellings) {
  Json json = qwen();
  json["num_local_experts"] = json["num_experts"];
  EXPECT_EQ(read("qwen3_moe", json).error, "");  // both, and equal
  json.erase("num_experts");
  json["dtype"] = json["torch_dtype"];
  json.erase("torch_dtype");
  const Outcome o = read("qwen3_moe", json);
  EXPECT_EQ(o.error, "");
  EXPECT_THAT(o.warnings, IsEmpty());
  EXPECT_EQ(o.config->integer("experts"), 4);
  EXPECT_EQ(o.config->key_of("experts"), "num_local_experts");
  json["num_experts"] = 8;
  EXPECT_EQ(read("qwen3_moe", json).error,
            "config.json: 'num_experts' and 'num_local_experts' are two spellings of one value: found 8 and 4, "
            "expected equal values; "
            "remove the wrong one");
}

TEST(Config, NullEqualsAbsent) {
  Json json = qwen();
  for (const char* key : {"head_dim", "num_key_value_heads", "mlp_only_layers", "decoder_sparse_step",
                          "tie_word_embeddings", "attention_bias", "quantization_config"})
    json[key] = nullptr;
  json["something_unknown"] = nullptr;
  const Outcome o = read("qwen3_moe", json);
  EXPECT_EQ(o.error, "");
  EXPECT_THAT(o.warnings, IsEmpty());
  EXPECT_EQ(o.config->integer("head_dim"), 12);  // hidden // heads
  EXPECT_EQ(o.config->integer("kv_heads"), 4);
  EXPECT_EQ(o.config->boolean("tied"), std::nullopt);
  json["hidden_size"] = nullptr;
  EXPECT_EQ(read("qwen3_moe", json).error,
            "config.json: 'hidden_size' is missing: expected an integer; family qwen3_moe needs it");
}

TEST(Config, ExplicitHeadDimWins) {
  Json json = qwen();
  EXPECT_EQ(read("qwen3_moe", json).config->integer("head_dim"), 16);  // hidden / heads would be 12
}

TEST(Config, RefusesWhatChangesTheMathematics) {
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "hidden_act", "gelu"),
            "config.json: hidden_act: found \"gelu\", expected \"silu\"; family qwen3_moe serves nothing else");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "attention_bias", true),
            "config.json: attention_bias: found true, expected false; family qwen3_moe serves nothing else");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "use_sliding_window", true),
            "config.json: use_sliding_window: found true, expected false; family qwen3_moe serves nothing else");
  EXPECT_EQ(
      error_with(qwen(), "qwen3_moe", "layer_types", {"full_attention", "sliding_attention"}),
      "config.json: layer_types: found [\"full_attention\",\"sliding_attention\"], expected \"full_attention\"; family "
      "qwen3_moe serves nothing else");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "layer_types", {"full_attention", "full_attention"}), "");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "quantization_config", {{"quant_method", "fp8"}, {"fmt", "e4m3"}}), "");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "quantization_config", {{"quant_method", "gptq"}}),
            "config.json: quantization_config: found \"gptq\", expected \"fp8\"; family qwen3_moe serves nothing else");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "quantization_config", {{"bits", 4}}),
            "config.json: quantization_config: found {\"bits\":4}, expected \"fp8\"; family qwen3_moe serves nothing else");
  EXPECT_EQ(
      error_with(deepseek(), "deepseek_v3", "scoring_func", "softmax"),
      "config.json: scoring_func: found \"softmax\", expected \"sigmoid\"; family deepseek_v3 serves nothing else");
  EXPECT_EQ(
      error_with(deepseek(), "deepseek_v3", "topk_method", "greedy"),
      "config.json: topk_method: found \"greedy\", expected \"noaux_tc\"; family deepseek_v3 serves nothing else");
  EXPECT_EQ(error_with(deepseek(), "deepseek_v3", "mlp_layer_types", {"dense", "hash_moe", "sparse"}),
            "config.json: mlp_layer_types: found [\"dense\",\"hash_moe\",\"sparse\"], expected one of \"dense\", "
            "\"sparse\"; family "
            "deepseek_v3 serves nothing else");
  EXPECT_EQ(error_with(deepseek(), "deepseek_v3", "rope_scaling", {{"type", "dynamic"}, {"factor", 2}}),
            "config.json: rope_scaling.type: found 'dynamic', expected one of default, linear, yarn, llama3");
}

TEST(Config, RefusesWrongTypesAndRanges) {
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "hidden_size", "48"),
            "config.json: hidden_size: found \"48\", expected an integer");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "hidden_size", 48.0),
            "config.json: hidden_size: found 48.0, expected an integer");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "hidden_size", 0),
            "config.json: hidden_size: found 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "num_hidden_layers", 1ull << 40),
            "config.json: num_hidden_layers: found 1099511627776, expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "hidden_size", 18446744073709551615ull),
            "config.json: hidden_size: found 18446744073709551615, expected an integer");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "norm_topk_prob", 1),
            "config.json: norm_topk_prob: found 1, expected true or false");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "mlp_only_layers", {0, "1"}),
            "config.json: mlp_only_layers: found [0,\"1\"], expected a list of integers");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "rms_norm_eps", "1e-6"),
            "config.json: rms_norm_eps: found \"1e-6\", expected a number");
}

TEST(Config, RefusesBrokenRequirements) {
  EXPECT_EQ(
      error_with(qwen(), "qwen3_moe", "num_key_value_heads", 3),
      "config.json: num_attention_heads must be a multiple of num_key_value_heads: found num_attention_heads = 4, "
      "num_key_value_heads = 3");
  EXPECT_EQ(error_with(qwen(), "qwen3_moe", "num_experts_per_tok", 5),
            "config.json: num_experts_per_tok must not exceed the number of experts: found num_experts = 4, "
            "num_experts_per_tok = 5");
  EXPECT_EQ(error_with(deepseek(), "deepseek_v3", "qk_head_dim", 99),
            "config.json: qk_head_dim must be qk_nope_head_dim + qk_rope_head_dim: found qk_head_dim = 99, "
            "qk_nope_head_dim = 16, "
            "qk_rope_head_dim = 8");
  EXPECT_EQ(error_with(deepseek(), "deepseek_v3", "n_group", 3),
            "config.json: n_routed_experts must be a multiple of n_group: found n_routed_experts = 8, n_group = 3");
}

TEST(Config, ReportsUnknownKeys) {
  Json json = qwen();
  json["hidden_sise"] = 12;
  json["logit_softcap"] = 30.5;
  const Outcome o = read("qwen3_moe", json);
  EXPECT_EQ(o.error, "");
  EXPECT_THAT(
      o.warnings,
      ElementsAre(
          "config.json: unknown key \"hidden_sise\" = 12 is not used by family qwen3_moe; did you mean 'hidden_size'?",
          "config.json: unknown key \"logit_softcap\" = 30.5 is not used by family qwen3_moe"));
}

// Every key that published configs of these families have is known: no warning.
TEST(Config, PublishedConfigs) {
  const Json qwen3_30b =
      Json::parse(R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})");
  const Json deepseek_v3 = Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "auto_map": {}, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})");
  Json kimi_k2 = deepseek_v3;
  kimi_k2.update({{"model_type", "kimi_k2"},
                  {"num_attention_heads", 64},
                  {"n_routed_experts", 384},
                  {"n_group", 1},
                  {"topk_group", 1},
                  {"first_k_dense_replace", 1},
                  {"routed_scaling_factor", 2.827},
                  {"vocab_size", 163840},
                  {"rope_theta", 50000.0},
                  {"num_nextn_predict_layers", 0},
                  {"seq_aux", true},
                  {"aux_loss_alpha", 0.001},
                  {"pretraining_tp", 1},
                  {"max_position_embeddings", 131072}});
  kimi_k2["rope_scaling"].update({{"beta_fast", 1.0}, {"beta_slow", 1.0}, {"factor", 32.0}});
  for (const auto& [name, json] :
       {std::pair{"qwen3_moe", qwen3_30b}, std::pair{"deepseek_v3", deepseek_v3}, std::pair{"deepseek_v3", kimi_k2}}) {
    const Outcome o = read(name, json);
    EXPECT_EQ(o.error, "");
    EXPECT_THAT(o.warnings, IsEmpty());
  }
  const Outcome kimi = read("deepseek_v3", kimi_k2);
  EXPECT_EQ(kimi.config->integer("experts"), 384);
  EXPECT_EQ(kimi.config->rope().factor, 32);
  EXPECT_EQ(kimi.config->rope().theta, 5e4);
}

// Both ways of saying which layers are dense; the list of the newer form wins.
TEST(Config, LayerPattern) {
  auto pattern = [](const std::string& name, const Json& json, int layers) {
    Outcome o = read(name, json);
    EXPECT_EQ(o.error, "");
    std::string text;
    for (int layer = 0; layer < layers; ++layer) {
      EXPECT_TRUE(o.config->enter_layer(layer).ok());
      text += *o.config->boolean("moe") ? 'M' : 'd';
    }
    return text;
  };
  Json json = qwen();
  EXPECT_EQ(pattern("qwen3_moe", json, 6), "MMMMMM");
  json["decoder_sparse_step"] = 2;
  EXPECT_EQ(pattern("qwen3_moe", json, 6), "dMdMdM");
  json["mlp_only_layers"] = {1, 5};
  EXPECT_EQ(pattern("qwen3_moe", json, 6), "dddMdd");
  json = deepseek();
  EXPECT_EQ(pattern("deepseek_v3", json, 3), "dMM");
  json["moe_layer_freq"] = 2;
  EXPECT_EQ(pattern("deepseek_v3", json, 6), "ddMdMd");
  json["mlp_layer_types"] = {"sparse", "dense", "sparse"};
  EXPECT_EQ(pattern("deepseek_v3", json, 3), "MdM");
}

TEST(Config, NamesTheKeyThatAnExpressionMisses) {
  Json json = deepseek();
  json.erase("first_k_dense_replace");
  Outcome o = read("deepseek_v3", json);
  ASSERT_EQ(o.error, "");
  EXPECT_THAT(o.config->enter_layer(0).message(),
              testing::MatchesRegex(
                  "deepseek_v3.yaml:[0-9]+:[0-9]+: config.json has no 'first_k_dense_replace', which is needed here"));
}

}  // namespace
}  // namespace ktc::models
