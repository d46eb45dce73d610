// Requested against granted: a difference is an error, or a line of the report where the policy says best-effort.
#include <gtest/gtest.h>

#include "placement/place.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

constexpr char kTarget[] =
    "version: 1\nname: small card\ncpu: {cores: 4, memory: 8GiB}\ngpus: [{device: cuda:0, name: g, sm: 80, memory: 20MiB, "
    "context: 1MiB}]\n";
constexpr char kRest[] = "  - {match: {class: \"*\"}, place: {device: cuda:0}}\nkv_cache: {tokens: 64}\nbatch: {chunk: 16}\n";

Expected<Placement> try_place(const std::string& rules, const std::string& rest = {}) {
  const auto policy = parse_policy("version: 1\nrules:\n" + rules + kRest + rest, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  const models::ModelDesc model = test::build_model({.layers = 2, .hidden = 512, .experts = 16, .top_k = 2, .intermediate = 512});
  return place(model, *policy, *parse_target(kTarget, "t.yaml"));
}

TEST(BestEffortTest, AnEmbeddingThatIsNamedIsADifference) {
  const std::string rule = "  - {match: {class: Embedding}, place: {device: cpu, weights: int8}}\n";
  EXPECT_EQ(try_place("  - {match: {class: RoutedExperts}, place: {device: cpu}}\n" + rule).status().message(),
            "p.yaml:4:5: weights of 'model.embed_tokens': a lookup reads single rows: found bf16, expected int8; ask for what there "
            "is, or write best-effort: true");
  const auto placed = try_place("  - {match: {class: RoutedExperts}, place: {device: cpu}}\n" + rule, "best-effort: true\n");
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  ASSERT_EQ(placed->differences.size(), 1u);
  EXPECT_EQ(placed->differences[0].requested, "int8");
  EXPECT_EQ(placed->differences[0].granted, "bf16");
}

TEST(BestEffortTest, HotExpertsNeedExpertsToChooseFrom) {
  const std::string pinned = "  - {match: {class: RoutedExperts}, place: {device: cpu, pin: true}}\n";
  const std::string hot = "experts: {on_gpu: 10%, gpu: {devices: [cuda:0]}}\n";
  EXPECT_EQ(try_place(pinned, hot).status().message(),
            "p.yaml:7:19: hot experts: no rule leaves routed experts on the cpu without pin: found none, expected some; ask for what "
            "there is, or write best-effort: true");
  const auto placed = try_place(pinned, hot + "best-effort: true\n");
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_TRUE(placed->hot.empty());
  ASSERT_EQ(placed->differences.size(), 1u);
}

TEST(BestEffortTest, HotExpertsAreAsManyAsFit) {
  const std::string rule = "  - {match: {class: RoutedExperts}, place: {device: cpu}}\n";
  for (const char* strategy : {"uniform", "front-loading", "random", "auto"}) {
    auto hot = [&](const std::string& on_gpu) {
      return std::string("experts: {strategy: ") + strategy + ", on_gpu: " + on_gpu + ", gpu: {devices: [cuda:0]}}\n";
    };
    EXPECT_FALSE(try_place(rule, hot("100%")).ok());
    const auto placed = try_place(rule, hot("100%") + "best-effort: true\n");
    ASSERT_TRUE(placed.ok()) << placed.status().message();
    std::size_t count = 0;
    for (const HotExperts& layer : placed->hot) count += layer.ids.size();
    ASSERT_EQ(placed->differences.size(), 1u);
    EXPECT_GT(count, 4u);
    EXPECT_LT(count, 32u);
    EXPECT_EQ(placed->differences[0].granted, std::to_string(count));
    EXPECT_NE(placed->differences[0].why.find("cuda:0 is too small by"), std::string::npos);
    if (std::string_view(strategy) == "auto") continue;  // takes what serves it
    // one more would not have fitted
    EXPECT_TRUE(try_place(rule, hot("{max: " + std::to_string(count * 3 * 512) + "KiB}")).ok());
    EXPECT_FALSE(try_place(rule, hot("{max: " + std::to_string((count + 1) * 3 * 512) + "KiB}")).ok());
  }
}

TEST(BestEffortTest, WhatDoesNotFitWithoutHotExpertsIsStillAnError) {
  const auto placed = try_place("  - {match: {class: RoutedExperts}, place: {device: cpu}}\n",
                                "experts: {on_gpu: 10%, gpu: {devices: [cuda:0]}}\nlimits: {cuda:0: 1MiB}\nbest-effort: true\n");
  ASSERT_FALSE(placed.ok());
  EXPECT_NE(placed.status().message().find("cuda:0 is too small by"), std::string::npos);
}

}  // namespace
}  // namespace ktc::placement
