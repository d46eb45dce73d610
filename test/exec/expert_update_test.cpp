// The choice of hot experts as a simulation: workloads of topics against the best choice for each topic.
#include "runtime/exec/expert_update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace ktc::exec {
namespace {

constexpr std::uint32_t kExperts = 128, kTopK = 8, kLayers = 6, kHot = 13;  // 10 %

// A topic's popularity of experts: Zipf of exponent 1 over a shuffle of its own in every layer.
struct Topic {
  std::vector<std::vector<double>> weight;  // [layers][experts]
  explicit Topic(std::uint32_t seed) {
    std::mt19937 random(seed);
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      std::vector<std::uint32_t> rank(kExperts);
      std::iota(rank.begin(), rank.end(), 0u);
      std::shuffle(rank.begin(), rank.end(), random);
      std::vector<double> layer(kExperts);
      for (std::uint32_t e = 0; e < kExperts; ++e) layer[e] = 1.0 / (1 + rank[e]);
      weight.push_back(std::move(layer));
    }
  }
  // kTopK different experts: the largest of weight over an exponential draw.
  std::vector<std::int32_t> draw(std::uint32_t layer, std::mt19937& random) const {
    std::exponential_distribution<double> time(1.0);
    std::vector<std::pair<double, std::int32_t>> keys;
    for (std::uint32_t e = 0; e < kExperts; ++e) keys.emplace_back(time(random) / weight[layer][e], static_cast<std::int32_t>(e));
    std::partial_sort(keys.begin(), keys.begin() + kTopK, keys.end());
    std::vector<std::int32_t> ids;
    for (std::uint32_t k = 0; k < kTopK; ++k) ids.push_back(keys[k].second);
    return ids;
  }
};

std::vector<std::int32_t> best(const std::vector<std::uint64_t>& counts) {
  std::vector<std::uint32_t> order(kExperts);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return counts[a] > counts[b]; });
  std::vector<std::int32_t> slots(kExperts, -1);
  for (std::uint32_t i = 0; i < kHot; ++i) slots[order[i]] = static_cast<std::int32_t>(i);
  return slots;
}

struct Outcome {
  double hit = 0, fixed = 0, oracle = 0;  // rates: of the update, of the first placement, of the best one of each topic
  std::uint64_t moves = 0, tokens = 0;
};

// Topics take turns of `turn` tokens. The first placement comes from the mixture of all; a round makes at most `most` moves.
Outcome simulate(const std::vector<Topic>& topics, std::uint32_t turn, std::uint32_t turns, std::size_t most, UpdateRules rules = {}) {
  std::mt19937 random(7);
  std::vector<std::vector<std::uint64_t>> mixture(kLayers, std::vector<std::uint64_t>(kExperts));
  std::vector<std::vector<std::vector<std::int32_t>>> oracle;  // [topics][layers]
  for (const Topic& topic : topics) {
    oracle.emplace_back();
    for (std::uint32_t l = 0; l < kLayers; ++l) {
      std::vector<std::uint64_t> own(kExperts);
      for (int t = 0; t < 4000; ++t)
        for (const std::int32_t id : topic.draw(l, random)) ++own[static_cast<std::size_t>(id)], ++mixture[l][static_cast<std::size_t>(id)];
      oracle.back().push_back(best(own));
    }
  }
  std::vector<std::vector<std::int32_t>> slots;
  for (std::uint32_t l = 0; l < kLayers; ++l) slots.push_back(best(mixture[l]));
  ExpertUpdate update(rules, slots);
  Outcome out;
  std::uint64_t oracle_hits = 0;
  for (std::uint32_t i = 0; i < turns; ++i) {
    const std::size_t which = i % topics.size();
    for (std::uint32_t t = 0; t < turn; ++t, ++out.tokens) {
      for (std::uint32_t l = 0; l < kLayers; ++l) {
        const std::vector<std::int32_t> ids = topics[which].draw(l, random);
        update.count(l, ids, true);
        for (const std::int32_t id : ids) oracle_hits += oracle[which][l][static_cast<std::size_t>(id)] >= 0;
      }
      update.tokens(1, true);
      if (!update.due()) continue;
      std::size_t made = 0;
      for (const ExpertSwap& swap : update.decide())
        if (made++ < most) update.moved(swap);
    }
  }
  const UpdateTrial total = update.total();
  const auto pairs = static_cast<double>(total.pairs);
  out.hit = static_cast<double>(total.hits) / pairs;
  out.fixed = static_cast<double>(total.initial_hits) / pairs;
  out.oracle = static_cast<double>(oracle_hits) / pairs;
  out.moves = total.moves;
  return out;
}

TEST(ExpertUpdate, FollowsTopics) {
  const std::vector<Topic> topics = {Topic(1), Topic(2), Topic(3), Topic(4)};
  const Outcome o = simulate(topics, 8192, 8, 1000);
  std::printf("topics: hit rate %.3f, fixed %.3f, oracle %.3f, %llu moves in %llu tokens\n", o.hit, o.fixed, o.oracle,
              static_cast<unsigned long long>(o.moves), static_cast<unsigned long long>(o.tokens));
  EXPECT_GE(o.hit, 0.9 * o.oracle);
  EXPECT_GT(o.hit, 1.2 * o.fixed) << "or the workload says nothing";
}

TEST(ExpertUpdate, LeavesAStationaryWorkloadAlone) {
  const Outcome o = simulate({Topic(5)}, 65536, 1, 1000);
  std::printf("stationary: hit rate %.4f, fixed %.4f, %llu moves in %llu tokens\n", o.hit, o.fixed, static_cast<unsigned long long>(o.moves),
              static_cast<unsigned long long>(o.tokens));
  EXPECT_GE(o.hit, 0.98 * o.fixed);
  EXPECT_LT(o.moves, o.tokens / 100) << "next to nothing moves";
}

TEST(ExpertUpdate, AFewMovesARoundAreEnough) {
  const Outcome o = simulate({Topic(1), Topic(2)}, 16384, 4, 16);
  EXPECT_GE(o.hit, 0.85 * o.oracle);
}

TEST(ExpertUpdate, APromptLeadsAtOnce) {
  // 2048 tokens in one chunk: what came before has all but gone
  std::vector<std::vector<std::int32_t>> slots = {{0, 1, -1, -1}};
  ExpertUpdate update({.every_tokens = 256}, slots);
  const auto feed = [&](std::initializer_list<std::int32_t> ids, int times) {
    for (int i = 0; i < times; ++i) update.count(0, ids, false);
    update.tokens(static_cast<std::uint64_t>(times), false);
  };
  for (int i = 0; i < 20; ++i) {
    feed({0, 1}, 256);
    ASSERT_TRUE(update.due());
    EXPECT_TRUE(update.decide().empty());
  }
  feed({2, 3}, 2048);
  const auto swaps = update.decide();
  ASSERT_EQ(swaps.size(), 2u);
  for (const ExpertSwap& swap : swaps) EXPECT_NEAR(swap.gain, 1.0, 0.01) << "a pair of every token";
  for (const ExpertSwap& swap : swaps) update.moved(swap);
  const auto now = update.slots(0);
  EXPECT_TRUE(now[0] == -1 && now[1] == -1);
  EXPECT_TRUE((now[2] == 0 && now[3] == 1) || (now[2] == 1 && now[3] == 0)) << "a matrix each, of those that left";
}

TEST(ExpertUpdate, ChoosesPairsThatChanceDoesNotExplain) {
  const bool hot[] = {true, true, false, false, false};
  const double counts[] = {100, 5, 9, 400, 101};
  const auto swaps = choose_swaps(counts, hot, 3.0);
  ASSERT_EQ(swaps.size(), 1u) << "101 against 100 is chance";
  EXPECT_EQ(swaps[0].in, 3u);
  EXPECT_EQ(swaps[0].out, 1u);
  EXPECT_EQ(choose_swaps(counts, hot, 0.0).size(), 2u);
  const double equal[] = {7, 7, 7, 7, 7};
  EXPECT_TRUE(choose_swaps(equal, hot, 0.0).empty()) << "an equal one does not move";
}

TEST(ExpertUpdate, PaysWhenTheCpuIsSpared) {
  UpdateTrial trial{.pairs = 1000, .hits = 600, .initial_hits = 400, .cold_pairs = 400, .cold_seconds = 0.4, .moves = 10, .cost_seconds = 0.1};
  EXPECT_DOUBLE_EQ(trial.gain_seconds(), 0.2);
  EXPECT_TRUE(trial.pays());
  EXPECT_FALSE(trial.pays(3.0));
  trial.cost_seconds = 0.3;
  EXPECT_FALSE(trial.pays());
  trial.moves = 0;
  EXPECT_TRUE(trial.pays()) << "what does not move costs nothing worth an end";
  trial = {.pairs = 1000, .hits = 400, .initial_hits = 400, .cold_pairs = 600, .cold_seconds = 0.6, .moves = 3, .cost_seconds = 0.001};
  EXPECT_FALSE(trial.pays());
  EXPECT_EQ(to_text(trial), "moved 3 experts, hit rate 40.0 % instead of 40.0 %, saved 0.0 ms for 1.0 ms");
}

TEST(ExpertUpdate, ATrialIsOfGeneratedTokens) {
  ExpertUpdate update({.every_tokens = 4, .trial_rounds = 2}, {{0, -1}});
  for (int i = 0; i < 10; ++i) {
    update.tokens(4, false);
    update.decide();
    EXPECT_EQ(update.ended_trial(), nullptr) << "a long prompt is no reason to end";
  }
  for (int i = 0; i < 5; ++i) {
    update.tokens(4, true);
    update.decide();
    EXPECT_EQ(update.ended_trial() != nullptr, i % 2 == 1) << i;
  }
}

TEST(ExpertUpdate, LeavesOutIdsThatAreNoExperts) {
  ExpertUpdate update({}, {{0, -1}});
  const std::int32_t ids[] = {-1, 2, 1};
  EXPECT_EQ(update.count(0, ids, true), 1u) << "one that is cold";
  EXPECT_EQ(update.total().pairs, 1u);
  EXPECT_EQ(update.total().hits, 0u);
  EXPECT_EQ(update.pair_seconds(), 0.0);
  update.add_cold(0.5);
  EXPECT_EQ(update.pair_seconds(), 0.5);
}

}  // namespace
}  // namespace ktc::exec
