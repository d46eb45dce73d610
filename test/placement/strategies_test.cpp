// Properties that every strategy keeps, and what each one is about.
#include "placement/strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace ktc::placement {
namespace {

using testing::ElementsAre;

constexpr Strategy kStatic[] = {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency};

StrategyInput random_input(std::mt19937& random, bool equal_layers) {
  StrategyInput input;
  const std::uint32_t experts = 1 + random() % 20;
  for (std::uint32_t layer = 0, layers = 1 + random() % 9; layer < layers; ++layer)
    input.experts.push_back(equal_layers ? experts : random() % 20);
  std::uint64_t all = 0;
  for (std::uint32_t number : input.experts) {
    all += number;
    auto& counts = input.counts.emplace_back();
    for (std::uint32_t expert = 0; expert < number; ++expert) counts.push_back(random() % 5);  // many ties
  }
  input.budget = random() % (all + 3);
  input.seed = random();
  return input;
}

std::uint64_t size_of(const HotSets& sets) {
  std::uint64_t size = 0;
  for (const auto& ids : sets) size += ids.size();
  return size;
}

std::uint64_t hits(const StrategyInput& input, const HotSets& sets) {
  std::uint64_t sum = 0;
  for (std::size_t layer = 0; layer < sets.size(); ++layer)
    for (std::uint32_t id : sets[layer]) sum += input.counts[layer][id];
  return sum;
}

TEST(StrategiesTest, BudgetIsKeptWithoutDuplicatesAndDeterministically) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const StrategyInput input = random_input(random, round % 2 == 0);
    std::uint64_t all = 0;
    for (std::uint32_t number : input.experts) all += number;
    for (Strategy strategy : kStatic) {
      SCOPED_TRACE(std::string(to_string(strategy)));
      const auto sets = choose(strategy, input);
      ASSERT_TRUE(sets.ok()) << sets.status().message();
      ASSERT_EQ(sets->size(), input.experts.size());
      EXPECT_EQ(size_of(*sets), std::min(input.budget, all));
      for (std::size_t layer = 0; layer < sets->size(); ++layer) {
        const auto& ids = (*sets)[layer];
        EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
        EXPECT_EQ(std::set<std::uint32_t>(ids.begin(), ids.end()).size(), ids.size());
        if (!ids.empty()) EXPECT_LT(ids.back(), input.experts[layer]);
      }
      EXPECT_EQ(*choose(strategy, input), *sets);
    }
  }
}

TEST(StrategiesTest, UniformDiffersByAtMostOneAndFavoursTheFirst) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const StrategyInput input = random_input(random, true);
    const HotSets sets = choose_uniform(input);
    for (std::size_t layer = 1; layer < sets.size(); ++layer) {
      EXPECT_GE(sets[layer - 1].size(), sets[layer].size());
      EXPECT_LE(sets.front().size(), sets[layer].size() + 1);
    }
  }
}

TEST(StrategiesTest, IdsAreTheLowestWithoutCountsAndTheMostFrequentWithThem) {
  StrategyInput input{{4, 4, 4}, 5, {}, 1};
  EXPECT_THAT(choose_uniform(input), ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1), ElementsAre(0)));
  EXPECT_THAT(choose_front_loading(input), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0), ElementsAre()));
  input.counts = {{1, 9, 9, 5}, {0, 0, 7, 0}, {3, 3, 3, 3}};
  EXPECT_THAT(choose_uniform(input), ElementsAre(ElementsAre(1, 2), ElementsAre(0, 2), ElementsAre(0)));
  EXPECT_THAT(choose_front_loading(input), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(2), ElementsAre()));
  // 9, 9, 7, 5, then the first of the four threes
  EXPECT_THAT(choose_frequency(input), ElementsAre(ElementsAre(1, 2, 3), ElementsAre(2), ElementsAre(0)));
}

TEST(StrategiesTest, FullLayersPassTheirShareOn) {
  EXPECT_THAT(choose_uniform({{1, 5, 5}, 7, {}, 1}),
              ElementsAre(ElementsAre(0), ElementsAre(0, 1, 2), ElementsAre(0, 1, 2)));
  EXPECT_THAT(choose_uniform({{0, 2}, 9, {}, 1}), ElementsAre(ElementsAre(), ElementsAre(0, 1)));
}

TEST(StrategiesTest, FrequencyHitsNoLessThanAnyOther) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const StrategyInput input = random_input(random, round % 2 == 0);
    const std::uint64_t best = hits(input, choose_frequency(input));
    for (Strategy strategy : kStatic) EXPECT_GE(best, hits(input, *choose(strategy, input)));
  }
}

TEST(StrategiesTest, RandomDrawsEveryPairEquallyOften) {
  constexpr int kRounds = 20000;
  std::vector<std::vector<int>> drawn{{0, 0, 0}, {0, 0, 0, 0}, {0}};
  for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
    const HotSets sets = choose_random({{3, 4, 1}, 2, {}, seed});
    for (std::size_t layer = 0; layer < sets.size(); ++layer)
      for (std::uint32_t id : sets[layer]) ++drawn[layer][id];
  }
  // each of the 8 pairs is in a draw of 2 with probability 1/4; five standard deviations are 306
  for (const auto& layer : drawn)
    for (int count : layer) EXPECT_NEAR(count, kRounds / 4, 306);
}

TEST(StrategiesTest, SeedsMatterAndAreTheSameOnEveryMachine) {
  const StrategyInput one{{8, 8}, 4, {}, 1}, two{{8, 8}, 4, {}, 2};
  EXPECT_NE(choose_random(one), choose_random(two));
  EXPECT_EQ(choose_random(one), (HotSets{{1, 5, 6}, {2}}));
}

TEST(StrategiesTest, RefusalsSayWhy) {
  EXPECT_EQ(choose(Strategy::frequency, {{4}, 2, {}, 1}).status().message(),
            "experts.strategy: frequency without counts; give statistics, or take uniform");
  const std::string other =
      "expert statistics: counts of another model: found 1 rows, expected one count for every expert of 2 layers; "
      "record them with this model";
  EXPECT_EQ(choose(Strategy::uniform, {{4, 4}, 2, {{1, 2, 3, 4}}, 1}).status().message(), other);
  EXPECT_FALSE(choose(Strategy::uniform, {{4}, 2, {{1, 2, 3}}, 1}).ok());
}

}  // namespace
}  // namespace ktc::placement
