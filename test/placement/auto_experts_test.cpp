// Strategy auto: against brute force on small cases, and against the other four by the cost model.
#include "placement/auto_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace ktc::placement {
namespace {

// A machine in six numbers: a layer is max(a + hot * g, cold * c) plus a hand-off unless all its pairs are hot. Several GPUs compute
// beside each other; those that are not the layer's home take `away_us` longer.
struct Machine {
  StrategyInput input;
  std::vector<std::vector<double>> probability;
  std::vector<std::vector<double>> gpu_us;  // by layer and GPU: of one pair
  double cpu_us = 1, fixed_us = 0, handoff_us = 0, away_us = 0;

  std::uint32_t home(std::size_t l) const { return static_cast<std::uint32_t>(l % gpu_us[l].size()); }
  double layer(std::size_t l, const std::vector<std::vector<std::uint32_t>>& ids) const {
    double cold = 0, us = fixed_us;
    for (const double p : probability[l]) cold += p;
    for (std::uint32_t g = 0; g < ids.size(); ++g) {
      double hot = 0;
      for (const std::uint32_t id : ids[g]) hot += probability[l][id];
      cold -= hot;
      if (!ids[g].empty()) us = std::max(us, fixed_us + hot * gpu_us[l][g] + (g == home(l) ? 0 : away_us));
    }
    cold = std::max(0.0, cold);
    return std::max(us, cold * cpu_us + (cold > 1e-9 ? handoff_us : 0));
  }
  double total(const HotChoice& choice) const {
    double sum = 0;
    for (std::size_t l = 0; l < probability.size(); ++l) {
      std::vector<std::vector<std::uint32_t>> ids;
      for (const HotSets& sets : choice.sets) ids.push_back(sets[l]);
      sum += layer(l, ids);
    }
    return sum;
  }
  HotCost cost() const {
    return {[this](std::size_t l, const std::vector<std::vector<std::uint32_t>>& ids) { return layer(l, ids); },
            [this](const HotChoice& choice) { return total(choice); }};
  }
  SpreadInput gpus(std::vector<std::uint64_t> slots) const {
    SpreadInput gpus{std::move(slots), {}, false};
    for (std::size_t l = 0; l < probability.size(); ++l) gpus.home.push_back(home(l));
    return gpus;
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

// The least total over everything that a layer's experts can do: stay cold, or be hot on one of the GPUs. `budget`: of all together.
double brute_force(const Machine& m, std::vector<std::uint64_t> slots, std::uint64_t budget, std::size_t l = 0) {
  if (l == m.probability.size()) return 0;
  double least = std::numeric_limits<double>::infinity();
  const std::size_t choices = slots.size() + 1, experts = m.input.experts[l];
  std::size_t all = 1;
  for (std::size_t e = 0; e < experts; ++e) all *= choices;
  for (std::size_t code = 0; code < all; ++code) {
    std::vector<std::vector<std::uint32_t>> ids(slots.size());
    std::uint64_t taken = 0;
    for (std::size_t e = 0, rest = code; e < experts; ++e, rest /= choices)
      if (rest % choices != 0) ids[rest % choices - 1].push_back(static_cast<std::uint32_t>(e)), ++taken;
    bool fits = taken <= budget;
    for (std::size_t g = 0; g < slots.size(); ++g) fits = fits && ids[g].size() <= slots[g];
    if (!fits) continue;
    std::vector<std::uint64_t> left = slots;
    for (std::size_t g = 0; g < slots.size(); ++g) left[g] -= ids[g].size();
    least = std::min(least, m.layer(l, ids) + brute_force(m, std::move(left), budget - taken, l + 1));
  }
  return least;
}

void check(const StrategyInput& input, const std::vector<std::uint64_t>& slots, const HotChoice& choice) {
  ASSERT_EQ(choice.sets.size(), slots.size());
  std::uint64_t sum = 0;
  for (std::size_t g = 0; g < slots.size(); ++g) {
    ASSERT_EQ(choice.sets[g].size(), input.experts.size());
    EXPECT_LE(count_of(choice.sets[g]), slots[g]);
    sum += count_of(choice.sets[g]);
  }
  for (std::size_t l = 0; l < input.experts.size(); ++l) {
    std::vector<bool> taken(input.experts[l], false);
    for (const HotSets& sets : choice.sets) {
      EXPECT_TRUE(std::is_sorted(sets[l].begin(), sets[l].end()));
      for (const std::uint32_t id : sets[l]) {
        ASSERT_LT(id, input.experts[l]);
        EXPECT_FALSE(taken[id]) << "twice";
        taken[id] = true;
      }
    }
  }
  EXPECT_LE(sum, input.budget);
}

TEST(AutoExpertsTest, IsTheOptimumWhereTheGpuIsTheFasterSide) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Machine m = random_machine(random, 1, 0.05);
    m.fixed_us /= 100;
    m.input.budget = random() % 12;
    const auto choice = choose_auto(m.input, m.gpus({m.input.budget}), m.cost());
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    check(m.input, {m.input.budget}, *choice);
    EXPECT_NEAR(m.total(*choice), brute_force(m, {m.input.budget}, m.input.budget), 1e-9) << round;
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
    const auto choice = choose_auto(m.input, m.gpus({m.input.budget}), m.cost());
    ASSERT_TRUE(choice.ok());
    check(m.input, {m.input.budget}, *choice);
    const double least = brute_force(m, {m.input.budget}, m.input.budget);
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
  double worst = 1, sum = 0;
  for (int round = 0; round < kRoundsHere; ++round) {
    Machine m = random_machine(random, 2, 0.3);
    m.away_us = random() % 2 ? 0 : 0.05 * static_cast<double>(random() % 10);
    const std::vector<std::uint64_t> slots{random() % 4, random() % 8};
    m.input.budget = random() % 3 == 0 ? random() % 8 : slots[0] + slots[1];
    const auto choice = choose_auto(m.input, m.gpus(slots), m.cost());
    ASSERT_TRUE(choice.ok());
    check(m.input, slots, *choice);
    const double least = brute_force(m, slots, m.input.budget), found = m.total(*choice);
    EXPECT_GE(found, least * (1 - 1e-9));
    exact += found <= least * (1 + 1e-9);
    worst = std::max(worst, found / least);
    sum += found / least;
  }
  RecordProperty("exact", exact);
  EXPECT_GE(exact, kRoundsHere * 3 / 4) << worst;
  EXPECT_LE(worst, 1.35);
  EXPECT_LE(sum / kRoundsHere, 1.02);
}

TEST(AutoExpertsTest, IsNeverWorseThanTheOthers) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t number = 1 + round % 3;
    Machine m = random_machine(random, number, 1.5);
    std::vector<std::uint64_t> slots;
    for (std::uint32_t g = 0; g < number; ++g) slots.push_back(random() % 8);
    m.input.budget = random() % 15;
    m.input.seed = random();
    SpreadInput gpus = m.gpus(slots);
    gpus.whole = random() % 4 == 0;
    // a whole that is more than its layers: what the layers' costs do not know
    auto whole = [&](const HotChoice& choice) {
      double product = 1;
      for (std::size_t l = 0; l < m.probability.size(); ++l) {
        std::vector<std::vector<std::uint32_t>> ids;
        for (const HotSets& sets : choice.sets) ids.push_back(sets[l]);
        product *= 1 + m.layer(l, ids);
      }
      return product;
    };
    const auto choice = choose_auto(m.input, gpus, {m.cost().layer, whole});
    ASSERT_TRUE(choice.ok());
    check(m.input, slots, *choice);
    for (const Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency})
      EXPECT_LE(whole(*choice), whole(spread(*choose(strategy, m.input), m.input.counts, gpus)) * (1 + 1e-12));
    const auto again = choose_auto(m.input, gpus, {m.cost().layer, whole});
    EXPECT_EQ(again->sets, choice->sets);
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
  EXPECT_EQ(choose_auto(m.input, m.gpus({4}), m.cost())->sets[0], (HotSets{{0, 1}, {0, 1}}));
  m.handoff_us = 5;
  const HotSets sets = choose_auto(m.input, m.gpus({4}), m.cost())->sets[0];
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
  const auto choice = choose_auto(m.input, m.gpus({m.input.budget}), m.cost());
  ASSERT_TRUE(choice.ok());
  check(m.input, {m.input.budget}, *choice);
  const HotChoice frequency{{choose_frequency(m.input)}};
  EXPECT_LE(m.total(*choice), m.total(frequency) * (1 + 1e-12));
}

TEST(AutoExpertsTest, WithoutCountsOrSlots) {
  Machine m;
  m.input.experts = {3, 0, 2};
  m.probability = {{.1, .1, .1}, {}, {.2, .2}};
  m.gpu_us = {{0}, {0}, {0}};
  m.input.budget = 0;
  EXPECT_EQ(choose_auto(m.input, m.gpus({0}), m.cost())->sets[0], (HotSets{{}, {}, {}}));
  m.input.budget = 2;
  EXPECT_EQ(choose_auto(m.input, m.gpus({2}), m.cost())->sets[0], (HotSets{{}, {}, {0, 1}}));
}

}  // namespace
}  // namespace ktc::placement
