// Rotary embedding: the numeric table of reference/models.md 1.2.4, the spellings of user problem 2, and every refusal.
#include "models/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ktc::models {
namespace {

RopeKeys keys() {
  return {{"rope_parameters"}, {"rope_scaling"}, {"rope_theta"}, {"default", "linear", "yarn", "llama3"}, {}};
}

struct Outcome {
  RopeConfig rope;
  std::string error;
  std::vector<std::string> warnings;
};

Outcome read(const char* json) {
  Outcome outcome;
  auto rope = read_rope_config(Json::parse(json), keys(), 4096, "config.json", &outcome.warnings);
  if (rope.ok())
    outcome.rope = *rope;
  else
    outcome.error = rope.status().message();
  return outcome;
}

RopeConfig yarn(double theta, double factor, double fast, double slow, std::optional<double> mscale,
                std::optional<double> all_dim, double original = 4096) {
  RopeConfig c;
  c.type = "yarn";
  c.theta = theta;
  c.factor = factor;
  c.original_positions = original;
  c.beta_fast = fast;
  c.beta_slow = slow;
  c.mscale = mscale;
  c.mscale_all_dim = all_dim;
  return c;
}

void expect_near(float value, double reference) {
  EXPECT_NEAR(value, reference, 2e-6 * std::abs(reference));
}

void expect_frequencies(const RopeDesc& rope, std::initializer_list<std::pair<std::size_t, double>> expected) {
  for (const auto& [i, reference] : expected) {
    SCOPED_TRACE(i);
    expect_near(rope.inv_freq.at(i), reference);
  }
}

TEST(Rope, DeepseekV3) {
  const RopeDesc rope = resolve_rope(yarn(1e4, 40, 32, 1, 1.0, 1.0), RopeStyle::interleaved, 64, true);
  EXPECT_EQ(rope.inv_freq.size(), 32u);
  EXPECT_EQ(rope.factor, 1.0f);
  expect_near(rope.softmax_factor, 1.3688879 * 1.3688879);
  EXPECT_NEAR(rope.softmax_factor / std::sqrt(192.0), 0.13523378, 2e-8);
  expect_frequencies(rope, {{0, 1}, {8, 1e-1}, {16, 5.5e-3}, {20, 7.905694e-4}, {31, 3.333804e-6}});
}

TEST(Rope, DeepseekV2Lite) {
  const RopeDesc rope = resolve_rope(yarn(1e4, 40, 32, 1, 0.707, 0.707), RopeStyle::interleaved, 64, true);
  EXPECT_EQ(rope.factor, 1.0f);
  EXPECT_NEAR(rope.softmax_factor / std::sqrt(192.0), 0.11472139, 2e-8);
  expect_frequencies(rope, {{16, 5.5e-3}, {31, 3.333804e-6}});
}

TEST(Rope, KimiK2) {
  const RopeDesc first = resolve_rope(yarn(5e4, 32, 1, 1, 1.0, 1.0), RopeStyle::interleaved, 64, true);
  EXPECT_NEAR(first.softmax_factor / std::sqrt(192.0), 0.13086080, 2e-8);
  expect_frequencies(first, {{0, 1}, {8, 6.687403e-2}, {16, 4.472136e-3}, {20, 3.614047e-5}, {31, 8.764413e-7}});
  const RopeDesc later = resolve_rope(yarn(5e4, 64, 1, 1, 1.0, 1.0), RopeStyle::interleaved, 64, true);
  EXPECT_NEAR(later.softmax_factor / std::sqrt(192.0), 0.14467963, 2e-8);
  expect_frequencies(later, {{20, 1.807023e-5}, {31, 4.382206e-7}});
}

TEST(Rope, UntruncatedYarn) {
  RopeConfig config = yarn(1.5e5, 32, 32, 1, std::nullopt, std::nullopt);
  config.truncate = false;
  const RopeDesc rope = resolve_rope(config, RopeStyle::half, 64, false);
  expect_near(rope.factor, 1.346574);
  EXPECT_EQ(rope.softmax_factor, 1.0f);
  expect_frequencies(rope, {{0, 1}, {8, 5.081327e-2}, {16, 4.564839e-4}, {20, 1.818834e-5}, {31, 3.023511e-7}});
  config.attention_factor = 1.0;  // the explicit key wins
  EXPECT_EQ(resolve_rope(config, RopeStyle::half, 64, false).factor, 1.0f);
}

TEST(Rope, Llama3) {
  RopeConfig config;
  config.type = "llama3";
  config.theta = 5e5;
  config.factor = 8;
  config.original_positions = 8192;
  const RopeDesc rope = resolve_rope(config, RopeStyle::half, 128, false);
  EXPECT_EQ(rope.factor, 1.0f);
  expect_frequencies(rope, {{16, 3.760603e-2},
                            {28, 3.211446e-3},
                            {30, 1.371894e-3},
                            {32, 5.248462e-4},
                            {34, 1.785078e-4},
                            {36, 7.784655e-5},
                            {63, 3.068926e-7}});
}

TEST(Rope, DefaultAndLinear) {
  RopeConfig config;
  config.theta = 1e6;
  const RopeDesc plain = resolve_rope(config, RopeStyle::half, 128, true);
  config.type = "linear";
  config.factor = 4;
  const RopeDesc linear = resolve_rope(config, RopeStyle::half, 128, false);
  for (std::size_t i = 0; i < 64; ++i) {
    expect_near(plain.inv_freq[i], std::pow(1e6, -static_cast<double>(i) / 64));
    EXPECT_EQ(linear.inv_freq[i], plain.inv_freq[i] / 4);
  }
  EXPECT_EQ(plain.softmax_factor, 1.0f);
}

// User problem 2: one base, four spellings.
TEST(RopeConfig, OldAndNewSpellingsAreOneRecord) {
  const Outcome a = read(R"({"rope_theta": 500000.0, "rope_scaling": null})");
  const Outcome b = read(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}})");
  const Outcome d = read(R"({"rope_theta": 500000, "rope_parameters": {"rope_type": "default"}})");
  const Outcome e =
      read(R"({"rope_theta": 500000, "rope_parameters": null, "rope_scaling": {"type": "default", "factor": null}})");
  for (const Outcome& o : {a, b, d, e}) {
    EXPECT_EQ(o.error, "");
    EXPECT_EQ(o.rope.type, "default");
    EXPECT_EQ(o.rope.theta, 500000.0);
    EXPECT_THAT(o.warnings, testing::IsEmpty());
  }
}

TEST(RopeConfig, NestedBaseWinsWithAWarningThatNamesBoth) {
  const Outcome c = read(R"({"rope_theta": 10000, "rope_parameters": {"rope_type": "default", "rope_theta": 500000}})");
  EXPECT_EQ(c.error, "");
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_THAT(c.warnings,
              testing::ElementsAre("config.json: rope_parameters.rope_theta = 500000 and rope_theta = 10000 disagree: "
                                   "rope_parameters.rope_theta is used"));
  const Outcome both = read(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
                                "rope_scaling": {"type": "yarn", "factor": 4}})");
  EXPECT_EQ(both.rope.type, "default");
  EXPECT_THAT(both.warnings,
              testing::ElementsAre("config.json: rope_parameters and rope_scaling disagree about the type (default "
                                   "and yarn): rope_parameters is used"));
}

TEST(RopeConfig, ABaseIsNeverAssumed) {
  EXPECT_EQ(read("{}").error,
            "config.json: no base of the rotary embedding: expected key 'rope_theta' or 'rope_parameters.rope_theta'; "
            "a default "
            "would be a guess: write the value that the model was trained with");
  EXPECT_EQ(read(R"({"rope_theta": "1e4"})").error,
            "config.json: rope_theta: found \"1e4\", expected a number above 1");
  EXPECT_EQ(read(R"({"rope_parameters": {"rope_theta": 1}})").error,
            "config.json: rope_parameters.rope_theta: found 1, expected a number above 1");
}

TEST(RopeConfig, ReadsYarn) {
  const Outcome o = read(R"({"rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 30,
      "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": false}})");
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.rope.type, "yarn");
  EXPECT_EQ(o.rope.factor, 40);
  EXPECT_EQ(o.rope.original_positions, 4096);
  EXPECT_EQ(o.rope.beta_fast, 30);
  EXPECT_EQ(o.rope.beta_slow, 1);
  EXPECT_EQ(o.rope.mscale, 0.7);
  EXPECT_EQ(o.rope.mscale_all_dim, 1.0);
  EXPECT_FALSE(o.rope.truncate);
  const Outcome silent = read(R"({"rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 4}})");
  EXPECT_EQ(silent.rope.original_positions, 4096);
  EXPECT_THAT(silent.warnings,
              testing::ElementsAre("config.json: rope_scaling has no original_max_position_embeddings: "
                                   "max_position_embeddings = 4096 is used"));
}

TEST(RopeConfig, RefusesByName) {
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2}})").error,
            "config.json: rope_scaling.type: found 'dynamic', expected one of default, linear, yarn, llama3");
  EXPECT_EQ(read(R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope"}})").error,
            "config.json: rope_parameters.rope_type: found 'longrope', expected one of default, linear, yarn, llama3");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "rope_type": "linear"}})").error,
            "config.json: rope_scaling.rope_type and rope_scaling.type disagree: found \"linear\" and \"yarn\", "
            "expected equal "
            "types; remove one of the two");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn"}})").error,
            "config.json: rope_scaling.factor: found nothing, expected a number, since the type is not default");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 0.5}})").error,
            "config.json: rope_scaling.factor: found 0.5, expected a number of at least 1");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": "4"}})").error,
            "config.json: rope_scaling.factor: found \"4\", expected a number");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "llama3", "factor": 8}})").error,
            "config.json: rope_scaling.original_max_position_embeddings: found nothing, expected a number, since the "
            "type is not "
            "default");
  EXPECT_EQ(
      read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 2}})")
          .error,
      "config.json: rope_scaling.beta_fast: found 1 and beta_slow 2, expected 0 < beta_slow <= beta_fast");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 8, "truncate": 1}})").error,
            "config.json: rope_scaling.truncate: found 1, expected true or false");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "rope_scaling": [1]})").error,
            "config.json: rope_scaling: found [1], expected an object or null");
  EXPECT_EQ(
      read(R"({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})").error,
      "config.json: rope_parameters.full_attention: found an object, expected one set of parameters for all layers: "
      "parameters by layer type are not supported");
  EXPECT_EQ(read(R"({"rope_theta": 1e4, "partial_rotary_factor": 0.5})").error,
            "config.json: partial_rotary_factor: found 0.5, expected 1: this family rotates whole heads");
  EXPECT_EQ(
      read(R"({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}})").error,
      "config.json: rope_parameters.partial_rotary_factor: found 0.25, expected 1: this family rotates whole heads");
}

TEST(RopeConfig, ReportsUnknownKeys) {
  const Outcome o = read(R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "beta_fats": 3}})");
  EXPECT_EQ(o.error, "");
  EXPECT_THAT(o.warnings,
              testing::ElementsAre(
                  "config.json: unknown key rope_parameters.\"beta_fats\" is not used; did you mean 'beta_fast'?"));
}

}  // namespace
}  // namespace ktc::models
