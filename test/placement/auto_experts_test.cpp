// Strategy auto: against brute force on small cases, and against the other four by the cost model.
#include "placement/auto_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace ktc::placement {
namespace {

// A machine in six numbers: a layer is max(a + hot * g, cold * c) plus a hand-off unless all its pairs are hot.
struct Machine {
  StrategyInput input;
  std::vector<std::vector<double>> probability;
  std::vector<std::vector<double>> gpu_us;  // by layer and GPU: of one pair
  double cpu_us = 1, fixed_us = 0, handoff_us = 0;

  double layer(std::size_t l, std::uint32_t g, const std::vector<std::uint32_t>& ids) const {
    double hot = 0, all = 0;
    for (const double p : probability[l]) all += p;
    for (const std::uint32_t id : ids) hot += probability[l][id];
    const double cold = std::max(0.0, all - hot);
    return std::max(fixed_us + hot * gpu_us[l][g], cold * cpu_us + (cold > 1e-9 ? handoff_us : 0));
  }
  double total(const HotChoice& choice) const {
    double sum = 0;
    for (std::size_t l = 0; l < probability.size(); ++l) sum += layer(l, choice.gpu[l], choice.sets[l]);
    return sum;
  }
  HotCost cost() const {
    return {[this](std::size_t l, std::uint32_t g, const std::vector<std::uint32_t>& ids) { return layer(l, g, ids); },
            [this](const HotChoice& choice) { return total(choice); }};
  }
};

Machine random_machine(std::mt19937& random, std::uint32_t gpus, double slowest_gpu) {
  Machine m;
  std::uniform_real_distribution<double> unit(0.01, 1);
  for (std::uint32_t l = 0, layers = 1 + random() % 3; l < layers; ++l) {
    const std::uint32_t experts = 1 + random() % (gpus == 1 ? 5 : 4);
    m.input.experts.push_back(experts);
    auto& counts = m.input.counts.emplace_back();
    auto& p = m.probability.emplace_back();
    for (std::uint32_t e = 0; e < experts; ++e) {
      counts.push_back(1 + random() % 1000);
      p.push_back(static_cast<double>(counts.back()) / 1000);
    }
    auto& us = m.gpu_us.emplace_back();
    for (std::uint32_t g = 0; g < gpus; ++g) us.push_back(slowest_gpu * unit(random));
  }
  m.cpu_us = 1 + unit(random);
  m.fixed_us = unit(random) / 2;
  m.handoff_us = random() % 2 ? 0 : 2 * unit(random);
  return m;
}

// The least total over every subset of every layer, on every GPU.
double brute_force(const Machine& m, std::vector<std::uint64_t> budgets, std::size_t l = 0) {
  if (l == m.probability.size()) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t g = 0; g < budgets.size(); ++g)
    for (std::uint32_t mask = 0; mask < 1u << m.input.experts[l]; ++mask) {
      std::vector<std::uint32_t> ids;
      for (std::uint32_t e = 0; e < m.input.experts[l]; ++e)
        if (mask >> e & 1) ids.push_back(e);
      if (ids.size() > budgets[g]) continue;
      budgets[g] -= ids.size();
      least = std::min(least, m.layer(l, g, ids) + brute_force(m, budgets, l + 1));
      budgets[g] += ids.size();
    }
  return least;
}

void check(const StrategyInput& input, const std::vector<std::uint64_t>& budgets, const HotChoice& choice) {
  ASSERT_EQ(choice.sets.size(), input.experts.size());
  std::vector<std::uint64_t> used(budgets.size(), 0);
  std::uint64_t sum = 0;
  for (std::size_t l = 0; l < choice.sets.size(); ++l) {
    const auto& ids = choice.sets[l];
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
    if (!ids.empty()) EXPECT_LT(ids.back(), input.experts[l]);
    used[choice.gpu[l]] += ids.size();
    sum += ids.size();
  }
  for (std::size_t g = 0; g < budgets.size(); ++g) EXPECT_LE(used[g], budgets[g]);
  EXPECT_LE(sum, input.budget);
}

TEST(AutoExpertsTest, IsTheOptimumWhereTheGpuIsTheFasterSide) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Machine m = random_machine(random, 1, 0.05);
    m.fixed_us /= 100;
    m.input.budget = random() % 12;
    const auto choice = choose_auto(m.input, {m.input.budget}, m.cost());
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    check(m.input, {m.input.budget}, *choice);
    EXPECT_NEAR(m.total(*choice), brute_force(m, {m.input.budget}), 1e-9) << round;
  }
}

// Where hot experts may cost more than they save, sums of few popularities have to meet: a search may miss the last percents.
TEST(AutoExpertsTest, IsNearTheOptimumOnAnyMachine) {
  std::mt19937 random(2);
  int exact = 0;
  constexpr int kRoundsHere = 400;
  double worst = 1;
  for (int round = 0; round < kRoundsHere; ++round) {
    Machine m = random_machine(random, 1, 2.0);
    m.input.budget = random() % 12;
    const auto choice = choose_auto(m.input, {m.input.budget}, m.cost());
    ASSERT_TRUE(choice.ok());
    check(m.input, {m.input.budget}, *choice);
    const double least = brute_force(m, {m.input.budget});
    exact += m.total(*choice) <= least * (1 + 1e-9);
    worst = std::max(worst, m.total(*choice) / least);
  }
  EXPECT_GE(exact, kRoundsHere * 3 / 4);
  EXPECT_LE(worst, 1.35);
}

TEST(AutoExpertsTest, SeveralGpusOfUnequalSize) {
  std::mt19937 random(3);
  int exact = 0;
  constexpr int kRoundsHere = 200;
  double worst = 1;
  for (int round = 0; round < kRoundsHere; ++round) {
    Machine m = random_machine(random, 2, 0.3);
    const std::vector<std::uint64_t> budgets{random() % 4, random() % 8};
    m.input.budget = budgets[0] + budgets[1];
    const auto choice = choose_auto(m.input, budgets, m.cost());
    ASSERT_TRUE(choice.ok());
    check(m.input, budgets, *choice);
    const double least = brute_force(m, budgets);
    exact += m.total(*choice) <= least * (1 + 1e-9);
    worst = std::max(worst, m.total(*choice) / least);
  }
  EXPECT_GE(exact, kRoundsHere * 9 / 10);
  EXPECT_LE(worst, 1.25);
}

TEST(AutoExpertsTest, IsNeverWorseThanTheOthers) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    Machine m = random_machine(random, 1, 1.5);
    m.input.budget = random() % 15;
    m.input.seed = random();
    // a whole that is more than its layers: what the layers' costs do not know
    auto whole = [&](const HotChoice& choice) {
      double product = 1;
      for (std::size_t l = 0; l < m.probability.size(); ++l) product *= 1 + m.layer(l, 0, choice.sets[l]);
      return product;
    };
    const auto choice = choose_auto(m.input, {m.input.budget}, {m.cost().layer, whole});
    ASSERT_TRUE(choice.ok());
    for (const Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency}) {
      const HotChoice other{*choose(strategy, m.input), std::vector<std::uint32_t>(m.input.experts.size(), 0)};
      EXPECT_LE(whole(*choice), whole(other) * (1 + 1e-12));
    }
    const auto again = choose_auto(m.input, {m.input.budget}, {m.cost().layer, whole});
    EXPECT_EQ(again->sets, choice->sets);
    EXPECT_EQ(again->gpu, choice->gpu);
  }
}

TEST(AutoExpertsTest, AHandOffMakesWholeLayersWorthMore) {
  Machine m;
  m.input.experts = {4, 4};
  m.input.counts = {{30, 25, 25, 20}, {40, 40, 10, 10}};
  m.probability = {{.3, .25, .25, .2}, {.4, .4, .1, .1}};
  m.gpu_us = {{0}, {0}};
  m.input.budget = 4;
  // without hand-offs the four most popular; with a long one a layer of its own
  EXPECT_EQ(choose_auto(m.input, {4}, m.cost())->sets, (HotSets{{0, 1}, {0, 1}}));
  m.handoff_us = 5;
  const HotSets sets = choose_auto(m.input, {4}, m.cost())->sets;
  EXPECT_TRUE(sets[0].size() == 4 || sets[1].size() == 4);
}

// Large models: the knapsack takes several experts at a time, and the budget is kept.
TEST(AutoExpertsTest, LargeModelsTakeMoments) {
  Machine m;
  std::mt19937 random(6);
  for (int l = 0; l < 60; ++l) {
    m.input.experts.push_back(384);
    auto& counts = m.input.counts.emplace_back();
    auto& p = m.probability.emplace_back();
    for (int e = 0; e < 384; ++e) counts.push_back(random() % 1000), p.push_back(static_cast<double>(counts.back()) / 48000);
    m.gpu_us.push_back({0.01});
  }
  m.input.budget = 60 * 384 / 2 + 7;
  const auto choice = choose_auto(m.input, {m.input.budget}, m.cost());
  ASSERT_TRUE(choice.ok());
  check(m.input, {m.input.budget}, *choice);
  const HotChoice frequency{choose_frequency(m.input), std::vector<std::uint32_t>(60, 0)};
  EXPECT_LE(m.total(*choice), m.total(frequency) * (1 + 1e-12));
}

TEST(AutoExpertsTest, WithoutCountsOrSlots) {
  Machine m;
  m.input.experts = {3, 0, 2};
  m.probability = {{.1, .1, .1}, {}, {.2, .2}};
  m.gpu_us = {{0}, {0}, {0}};
  m.input.budget = 0;
  EXPECT_EQ(choose_auto(m.input, {0}, m.cost())->sets, (HotSets{{}, {}, {}}));
  m.input.budget = 2;
  EXPECT_EQ(choose_auto(m.input, {2}, m.cost())->sets, (HotSets{{}, {}, {0, 1}}));
}

}  // namespace
}  // namespace ktc::placement
