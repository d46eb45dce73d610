// Every strategy on the demo checkpoint with the activation counts of its reference: which share of the routed pairs hot experts
// serve. Prints the table of docs/performance.md:
//   placement_test --gtest_filter='HitRates*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "models/json_reader.h"
#include "models/read_model.h"
#include "placement/cost_model.h"
#include "placement/place.h"

namespace ktc::placement {
namespace {

constexpr std::string_view kStrategies[] = {"random", "uniform", "front-loading", "frequency", "auto"};

class HitRates : public testing::Test {
 protected:
  void SetUp() override {
    auto model = models::read_model(KTC_SOURCE_DIR "/models/demo", KTC_SOURCE_DIR "/models/families");
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    const auto reference = models::read_json(KTC_SOURCE_DIR "/models/demo/reference/reference.json", std::uint64_t{64} << 20);
    ASSERT_TRUE(reference.ok()) << reference.status().message();
    for (const models::Module& module : model_.modules)
      if (module.cls == models::ModuleClass::RoutedExperts)
        counts_.push_back(reference->at("activation_counts").at(module.name).get<std::vector<std::uint64_t>>());
    auto target = read_target(KTC_SOURCE_DIR "/placement/targets/emerald-rapids-16-cores-h200.yaml");
    ASSERT_TRUE(target.ok()) << target.status().message();
    target_ = std::move(*target);
  }

  Policy policy(std::string_view strategy, int percent, std::string_view rest = {}) const {
    const auto policy = parse_policy(
        fmt::format("version: 1\nrules:\n  - {{match: {{class: RoutedExperts}}, place: {{device: cpu, weights: int8}}}}\n"
                    "  - {{match: {{class: \"*\"}}, place: {{device: cuda:0}}}}\n"
                    "experts: {{strategy: {}, on_gpu: {}%, gpu: {{devices: [cuda:0], weights: int8}}, statistics: s.json}}\n{}",
                    strategy, percent, rest),
        "p.yaml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return *policy;
  }

  struct Result {
    double hits = 0, us = 0;
    std::size_t hot = 0;
  };
  Result run(const Policy& policy, const ExpertCounts& seen) const {
    const auto placed = place(model_, policy, target_, seen);
    EXPECT_TRUE(placed.ok()) << placed.status().message();
    const auto cost = CostModel::create(model_, placed->modules, policy, target_, counts_);
    EXPECT_TRUE(cost.ok());
    Result result;
    for (const HotExperts& layer : placed->hot) result.hot += layer.ids.size();
    result.hits = cost->predict(placed->hot)->steps.front().hit_rate;
    result.us = *cost->us_per_token(placed->hot);
    return result;
  }

  models::ModelDesc model_;
  ExpertCounts counts_;
  Target target_;
};

TEST_F(HitRates, OfTheDemoCheckpoint) {
  fmt::print("| on_gpu | uniform, no counts |");
  for (const auto strategy : kStrategies) fmt::print(" {} |", strategy);
  fmt::print("\n|---|---|---|---|---|---|---|\n");
  for (const int percent : {10, 30, 50}) {
    const double blind = run(policy("uniform", percent), {}).hits;
    fmt::print("| {} % | {:.3f} |", percent, blind);
    std::map<std::string_view, Result> results;
    for (const auto strategy : kStrategies) {
      results[strategy] = run(policy(strategy, percent), counts_);
      fmt::print(" {:.3f} |", results[strategy].hits);
    }
    fmt::print("\n");
    const double share = percent / 100.0;
    EXPECT_NEAR(blind, share, 0.15) << "ids say nothing about popularity";
    EXPECT_GT(results["uniform"].hits, share * 1.2) << "counts tell popular experts apart";
    for (const auto strategy : kStrategies) {
      EXPECT_GE(results["frequency"].hits, results[strategy].hits - 1e-12) << strategy;
      EXPECT_LE(results["auto"].us, results[strategy].us * (1 + 1e-12)) << strategy;
      EXPECT_LE(results[strategy].hot, model_.layers.size() * 32 * static_cast<std::size_t>(percent) / 100);
    }
  }
}

TEST_F(HitRates, AutoWithDeferralAndBatchesIsNeverWorse) {
  for (const char* rest : {"defer: {max_per_token: 2}\n", "defer: {max_per_token: 3, scope: all}\nkv_cache: {sequences: 8}\nbatch: {decode: [1, 4, 8]}\n"})
    for (const int percent : {10, 40, 80}) {
      const double best = run(policy("auto", percent, rest), counts_).us;
      for (const auto strategy : kStrategies) EXPECT_LE(best, run(policy(strategy, percent, rest), counts_).us * (1 + 1e-12)) << strategy;
      const auto again = place(model_, policy("auto", percent, rest), target_, counts_);
      const auto once = place(model_, policy("auto", percent, rest), target_, counts_);
      ASSERT_EQ(again->hot.size(), once->hot.size());
      for (std::size_t i = 0; i < once->hot.size(); ++i) EXPECT_EQ(again->hot[i].ids, once->hot[i].ids);
    }
}

TEST_F(HitRates, AutoWorksWithoutStatistics) {
  Policy blind = policy("auto", 25);
  blind.experts.statistics.clear();
  const auto placed = place(model_, blind, target_);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_FALSE(placed->hot.empty());
}

}  // namespace
}  // namespace ktc::placement
