// Sweeps: every combination once, sorted; what is refused says why; flags are read strictly.
#include "placement/explore.h"

#include <gtest/gtest.h>

#include <set>

#include "placement/quality_cost.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

const char* kPolicy =
    "version: 1\nrules:\n  - {match: {class: RoutedExperts}, place: {device: cpu, weights: int8}}\n"
    "  - {match: {class: \"*\"}, place: {device: cuda:0}}\nkv_cache: {tokens: 256}\nbatch: {decode: [1, 2], chunk: 16}\n";

struct Base {
  models::ModelDesc model = test::build_model({.layers = 4, .hidden = 512, .experts = 16, .top_k = 4, .intermediate = 256});
  Policy policy = *parse_policy(kPolicy, "p.yaml");
  Target target = *read_target(KTC_SOURCE_DIR "/placement/targets/emerald-rapids-16-cores-h200.yaml");
};

ExpertBudget share(double part) {
  ExpertBudget budget;
  budget.share = part;
  return budget;
}

TEST(ExploreTest, EveryCombinationOnceSortedByRate) {
  Base s;
  const auto rows = explore(s.model, s.policy, s.target,
                            {{Strategy::uniform, Strategy::auto_}, {share(0), share(.25), share(1)}, {0, 2}, {{"int8", 0}, {"int4", 64}}});
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  // without hot experts strategies are one
  EXPECT_EQ(rows->size(), 2u * 2 * (1 + 2 * 2));
  std::set<std::string> seen;
  double last = 1e30;
  int pareto = 0;
  for (const SweepRow& row : *rows) {
    EXPECT_FALSE(row.refused);
    EXPECT_TRUE(seen.insert(row.strategy + row.on_gpu + row.format + std::to_string(row.defer)).second);
    EXPECT_LE(row.tokens_per_second(), last);
    last = row.tokens_per_second();
    EXPECT_GT(row.gpu_memory, 0u);
    EXPECT_EQ(row.gpu_memory, row.memory.at("cuda:0"));
    if (row.strategy != "auto") EXPECT_EQ(row.hot, row.on_gpu == "0%" ? 0u : row.on_gpu == "25%" ? 16u : 64u);
    pareto += row.pareto;
    // nobody beats a plan of the front in everything
    if (row.pareto)
      for (const SweepRow& other : *rows)
        EXPECT_FALSE(other.tokens_per_second() > row.tokens_per_second() && other.gpu_memory < row.gpu_memory &&
                     other.quality_cost < row.quality_cost);
  }
  EXPECT_GE(pareto, 2);
  EXPECT_TRUE(rows->front().pareto || rows->front().tokens_per_second() == (*rows)[1].tokens_per_second());
}

TEST(ExploreTest, WhatDoesNotFitStaysInTheTable) {
  Base s;
  s.target.gpus[0].memory = std::uint64_t{112} << 20;  // driver and dense parts, a few experts
  s.target.gpus[0].context = std::uint64_t{100} << 20;
  const auto rows = explore(s.model, s.policy, s.target, {{Strategy::uniform, Strategy::frequency}, {share(0), share(1)}, {}, {}});
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_FALSE((*rows)[0].refused);
  ASSERT_TRUE((*rows)[1].refused);
  EXPECT_NE((*rows)[1].refused->find("cuda:0 is too small by"), std::string::npos) << *(*rows)[1].refused;
  ASSERT_TRUE((*rows)[2].refused);
  EXPECT_NE((*rows)[2].refused->find("frequency without counts"), std::string::npos) << *(*rows)[2].refused;
}

TEST(ExploreTest, ChoicesNeedAGpuAndARule) {
  Base s;
  s.target.gpus.clear();
  const auto bare = with_choices(s.policy, s.target, {}, share(.5), {}, {});
  EXPECT_EQ(bare.status().message(),
            "--gpu-experts: target '16-core Emerald Rapids with H200' has no GPU: found 50%, expected 0%; name a target with --target");
  s.policy.rules.erase(s.policy.rules.begin());
  EXPECT_EQ(with_choices(s.policy, s.target, {}, {}, {}, SweepFormat{"int4", 0}).status().message(),
            "p.yaml: no rule of class RoutedExperts: expected one, whose weights --format replaces; put - match: {class: "
            "RoutedExperts} in front of the rule for \"*\"");
}

TEST(ExploreTest, FlagsAreReadStrictly) {
  EXPECT_EQ(*parse_strategy("-s", "front-loading"), Strategy::front_loading);
  EXPECT_EQ(parse_strategy("-s", "best").status().message(),
            "-s: found 'best', expected one of uniform, frequency, front-loading, random, auto");
  EXPECT_EQ(to_string(*parse_on_gpu("-g", "12.5%")), "12.5%");
  EXPECT_EQ(to_string(*parse_on_gpu("-g", "7")), "7");
  EXPECT_EQ(parse_on_gpu("-g", "2GiB")->bytes, std::uint64_t{2} << 30);
  for (const char* text : {"", "-1", "101%", "many", "3x", "1e3"}) EXPECT_FALSE(parse_on_gpu("-g", text).ok()) << text;
  EXPECT_EQ(parse_sweep_format("-f", "int4/row")->group, kGroupRow);
  EXPECT_EQ(parse_sweep_format("-f", "int4/32")->group, 32u);
  EXPECT_EQ(parse_sweep_format("-f", "bf16")->word, "bf16");
  for (const char* text : {"", "int5", "int4/", "int4/7", "int8/64", "bf16/64", "native/row", "fp8/32", "mxfp4"})
    EXPECT_FALSE(parse_sweep_format("-f", text).ok()) << text;
}

TEST(ExploreTest, QualityCostsAreOrdered) {
  EXPECT_EQ(format_cost_percent(Format::bf16, 0), 0);
  EXPECT_LT(format_cost_percent(Format::int8, 0), format_cost_percent(Format::int4, 32));
  EXPECT_LT(format_cost_percent(Format::int4, 32), format_cost_percent(Format::int4, 64));
  EXPECT_LT(format_cost_percent(Format::int4, 64), format_cost_percent(Format::int4, 0));
  double last = 0;
  for (int late = 1; late <= 8; ++late) {
    EXPECT_GT(deferral_cost_percent(late, 8), last);
    last = deferral_cost_percent(late, 8);
  }
  EXPECT_NEAR(last, 63.33, 1e-9);
  EXPECT_NEAR(deferral_cost_percent(5, 10), deferral_cost_percent(4, 8), 1e-12);
  EXPECT_NEAR(deferral_cost_percent(0.5, 8), 0.0495, 1e-9);
  EXPECT_EQ(deferral_cost_percent(9, 8), last);
}

}  // namespace
}  // namespace ktc::placement
