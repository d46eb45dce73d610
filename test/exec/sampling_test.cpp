#include "runtime/exec/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace ktc::exec {
namespace {

using Ids = std::vector<std::int32_t>;

std::int32_t sample(const std::vector<float>& logits, const SamplingParameters& p, std::uint64_t position = 0,
                    const Ids& history = {}) {
  Sampler sampler;
  const Expected<std::int32_t> id = sampler.sample(logits, p, position, history);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? *id : -1;
}

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

constexpr int kDraws = 20000;

// How often each id is drawn over kDraws positions.
std::map<std::int32_t, int> counts(const std::vector<float>& logits, const SamplingParameters& p,
                                   const Ids& history = {}) {
  Sampler sampler;
  std::map<std::int32_t, int> result;
  for (int i = 0; i < kDraws; ++i) ++result[*sampler.sample(logits, p, static_cast<std::uint64_t>(i), history)];
  return result;
}

// Pearson's statistic against the stated probabilities; ids of probability 0 must never be drawn. With k - 1 degrees of
// freedom the statistic exceeds k + 4 sqrt(2k) + 8 less than once in ten thousand seeds; these seeds are fixed.
void expect_distribution(const std::vector<float>& logits, const SamplingParameters& p,
                         const std::map<std::int32_t, double>& expected, const Ids& history = {}) {
  double sum = 0;
  for (const auto& [id, probability] : expected) sum += probability;
  ASSERT_NEAR(sum, 1, 1e-9);
  const std::map<std::int32_t, int> drawn = counts(logits, p, history);
  double statistic = 0;
  for (const auto& [id, probability] : expected) {
    const auto found = drawn.find(id);
    const double difference = (found == drawn.end() ? 0 : found->second) - probability * kDraws;
    statistic += difference * difference / (probability * kDraws);
  }
  for (const auto& [id, count] : drawn) EXPECT_TRUE(expected.contains(id)) << "id " << id << " drawn " << count;
  const double k = static_cast<double>(expected.size());
  EXPECT_LT(statistic, k + 4 * std::sqrt(2 * k) + 8);
}

TEST(Sampling, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  EXPECT_EQ(sample({0.5f, 2, -1, 2}, {}), 1);
  EXPECT_EQ(sample({-3, -2, -2}, {}), 1);
  EXPECT_EQ(sample({-1}, {}), 0);
  EXPECT_EQ(sample({1, 1, 1}, {.temperature = 2, .top_k = 1}), 0);
  EXPECT_EQ(sample({-0.0f, 0.0f}, {}), 0);
}

TEST(Sampling, TemperatureFollowsTheSoftmax) {
  const std::vector<float> logits = log_of({0.5, 0.3, 0.2});
  expect_distribution(logits, {.temperature = 1}, {{0, 0.5}, {1, 0.3}, {2, 0.2}});
  // T = 0.5 squares the odds: 0.25, 0.09, 0.04 of 0.38
  expect_distribution(logits, {.temperature = 0.5f, .seed = 7}, {{0, 0.25 / 0.38}, {1, 0.09 / 0.38}, {2, 0.04 / 0.38}});
  // a tiny temperature is greedy without overflow
  EXPECT_EQ(counts({3e38f, -3e38f, 2.9e38f}, {.temperature = 1e-30f}).size(), 1u);
}

TEST(Sampling, TopKKeepsExactlyKAndTheLowerIdsOfEquals) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.2, 0.2, 0.1});
  expect_distribution(logits, {.temperature = 1, .top_k = 2}, {{1, 0.4 / 0.6}, {2, 0.2 / 0.6}});
  expect_distribution(logits, {.temperature = 1, .top_k = 4},
                      {{0, 0.1 / 0.9}, {1, 0.4 / 0.9}, {2, 0.2 / 0.9}, {3, 0.2 / 0.9}});
  expect_distribution(logits, {.temperature = 1, .top_k = 99}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.2}, {4, 0.1}});
}

TEST(Sampling, TopPKeepsTheShortestPrefixThatReachesP) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.3, 0.2});
  expect_distribution(logits, {.temperature = 1, .top_p = 0.6f}, {{1, 4. / 7}, {2, 3. / 7}});
  expect_distribution(logits, {.temperature = 1, .top_p = 0.8f}, {{1, 4. / 9}, {2, 3. / 9}, {3, 2. / 9}});
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_p = 1e-6f}), (std::map<std::int32_t, int>{{1, kDraws}}));
  // equal probabilities: the lower ids stay
  expect_distribution(log_of({0.25, 0.25, 0.25, 0.25}), {.temperature = 1, .top_p = 0.45f}, {{0, 0.5}, {1, 0.5}});
}

TEST(Sampling, TopPWorksOnWhatTopKLeft) {
  // top-k 2 leaves 0.5 and 0.3; renormalised 0.625 and 0.375, so top-p 0.6 needs the first alone. Of all, it needs
  // both.
  const std::vector<float> logits = log_of({0.2, 0.5, 0.3});
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6f}), (std::map<std::int32_t, int>{{1, kDraws}}));
  expect_distribution(logits, {.temperature = 1, .top_p = 0.6f}, {{1, 0.625}, {2, 0.375}});
}

TEST(Sampling, MinPIsRelativeToTheBestAndComesAfterTopP) {
  const std::vector<float> logits = log_of({0.05, 0.5, 0.3, 0.15});
  expect_distribution(logits, {.temperature = 1, .min_p = 0.5f}, {{1, 0.625}, {2, 0.375}});
  expect_distribution(logits, {.temperature = 1, .min_p = 0.2f}, {{1, 0.5 / 0.95}, {2, 0.3 / 0.95}, {3, 0.15 / 0.95}});
  EXPECT_EQ(counts(logits, {.temperature = 1, .min_p = 1}).size(), 1u);
  // min-p first would shrink the sum to 0.8, of which 0.5 is 62.5 %: top-p 0.6 would then keep id 1 alone
  expect_distribution(logits, {.temperature = 1, .top_p = 0.6f, .min_p = 0.5f}, {{1, 0.625}, {2, 0.375}});
}

TEST(Sampling, RepetitionPenaltyDividesPositiveAndMultipliesNegativeOncePerId) {
  EXPECT_EQ(sample({2, 1.5f, -1}, {.repetition_penalty = 2}, 3, {0, 0, 0}), 1);  // 2 / 2 = 1 once, not 2 / 8
  EXPECT_EQ(sample({2, 0.9f, -1}, {.repetition_penalty = 2}, 3, {0, 0, 0}), 0);  // 1 > 0.9
  EXPECT_EQ(sample({-1, -1.5f}, {.repetition_penalty = 2}, 1, {0}), 1);          // -2 < -1.5
  EXPECT_EQ(sample({-1, -1.5f}, {.repetition_penalty = 0.5f}, 1, {1}), 1);       // -0.75 > -1
  EXPECT_EQ(sample({1, 0}, {.repetition_penalty = 2}, 1, {-1, 2, 1 << 30}), 0);  // ids outside are not read
  // before the temperature: ln 4 / 2 = ln 2, so the odds are 2 : 1 at T = 1 and 4 : 1 at T = 0.5
  const std::vector<float> logits = {static_cast<float>(std::log(4.0)), 0};
  expect_distribution(logits, {.temperature = 1, .repetition_penalty = 2}, {{0, 2. / 3}, {1, 1. / 3}}, {0});
  expect_distribution(logits, {.temperature = 0.5f, .repetition_penalty = 2}, {{0, 0.8}, {1, 0.2}}, {0});
  EXPECT_EQ(sample({3e38f, 1}, {.repetition_penalty = 1e-30f}, 1, {0}), 0);  // overflow keeps the order
}

TEST(Sampling, DrawsDependOnSeedAndPositionAlone) {
  std::vector<float> logits(300);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 17) * 0.1f;
  const SamplingParameters p{.temperature = 1, .seed = 42};
  Ids forwards, backwards(100);
  Sampler used;
  for (std::uint64_t i = 0; i < 100; ++i) forwards.push_back(*used.sample(logits, p, i, {}));
  for (std::uint64_t i = 100; i-- > 0;) {
    Sampler fresh;
    backwards[i] = *fresh.sample(logits, p, i, {});
    (void)used.sample({logits.data(), 7}, {.temperature = 3, .top_k = 3}, i, {});
  }
  EXPECT_EQ(forwards, backwards);
  Ids other;
  for (std::uint64_t i = 0; i < 100; ++i) other.push_back(sample(logits, {.temperature = 1, .seed = 43}, i));
  EXPECT_NE(forwards, other);
}

// 100 cells of width 1 %: over positions for a fixed seed, over seeds at a fixed position, and along a diagonal.
TEST(Sampling, UniformIsUniformInBothArguments) {
  constexpr int kCells = 100, kNumbers = 100000;
  for (const int way : {0, 1, 2}) {
    std::vector<int> cells(kCells);
    double product = 0, previous = 0.5;
    for (std::uint64_t i = 0; i < kNumbers; ++i) {
      const double u = way == 0 ? uniform(1, i) : way == 1 ? uniform(i, 5) : uniform(i, i);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      ++cells[static_cast<std::size_t>(u * kCells)];
      product += (u - 0.5) * (previous - 0.5);
      previous = u;
    }
    double statistic = 0;
    for (const int count : cells) statistic += std::pow(count - kNumbers / kCells, 2) / (kNumbers / kCells);
    EXPECT_LT(statistic, 99 + 4 * std::sqrt(2 * 99)) << way;
    EXPECT_GT(statistic, 99 - 4 * std::sqrt(2 * 99)) << way;                       // nor suspiciously even
    EXPECT_LT(std::abs(product / kNumbers * 12), 4 / std::sqrt(kNumbers)) << way;  // neighbours are uncorrelated
  }
  EXPECT_NE(uniform(0, 0), uniform(0, 1));
  EXPECT_NE(uniform(0, 1), uniform(1, 0));
}

// A second implementation with a full sort, of random rows and parameters.
TEST(Sampling, AgreesWithASortingImplementation) {
  std::mt19937 random(99);
  auto unit = [&] { return std::uniform_real_distribution<float>(0, 1)(random); };
  Sampler sampler;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<float> logits(1 + random() % 200);
    for (float& l : logits) l = std::round((unit() - 0.5f) * 40) / 4;  // many ties
    const SamplingParameters p{.temperature = 0.1f + 2 * unit(),
                               .top_k = static_cast<std::int32_t>(random() % 60),
                               .top_p = random() % 2 ? 1.0f : 0.01f + 0.98f * unit(),
                               .min_p = random() % 2 ? 0.0f : unit() * 0.5f,
                               .seed = random()};
    std::vector<std::int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    if (p.top_k > 0) order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(p.top_k)));
    auto mass = [&](std::int32_t id) {
      return std::exp((double{logits[static_cast<std::size_t>(id)]} - logits[static_cast<std::size_t>(order[0])]) /
                      p.temperature);
    };
    double total = 0, before = 0;
    for (const std::int32_t id : order) total += mass(id);
    std::vector<std::int32_t> kept;
    for (const std::int32_t id : order) {
      if ((kept.empty() || before < total * p.top_p) && (kept.empty() || mass(id) >= p.min_p)) kept.push_back(id);
      before += mass(id);
    }
    const std::int32_t id = *sampler.sample(logits, p, static_cast<std::uint64_t>(trial), {});
    EXPECT_TRUE(std::ranges::find(kept, id) != kept.end()) << "trial " << trial << ": id " << id;
    // and the draw is the one that inverting the distribution over ascending ids gives
    std::sort(kept.begin(), kept.end());
    double sum = 0, reached = 0;
    for (const std::int32_t k : kept) sum += mass(k);
    const double target = uniform(p.seed, static_cast<std::uint64_t>(trial)) * sum;
    std::int32_t expected = kept.back();
    for (const std::int32_t k : kept) {
      reached += mass(k);
      if (target < reached) {
        expected = k;
        break;
      }
    }
    EXPECT_EQ(id, expected) << "trial " << trial;
  }
}

TEST(Sampling, ANonFiniteLogitIsAnErrorThatSaysWhere) {
  Sampler sampler;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> bad = {0, 1, std::nanf(""), 2};
  EXPECT_EQ(sampler.sample(bad, {}, 12, {}).status().message(),
            "logits at position 12, id 2: found nan, expected finite numbers; "
            "check the weights with ktc-plan verify --weights");
  EXPECT_EQ(sampler.sample(std::vector<float>{inf}, {.temperature = 1}, 3, {}).status().message(),
            "logits at position 3, id 0: found inf, expected finite numbers; "
            "check the weights with ktc-plan verify --weights");
  EXPECT_EQ(sampler.sample(std::vector<float>{1, -inf}, {}, 0, {}).status().code(), StatusCode::data_corrupt);
  EXPECT_EQ(sampler.sample({}, {}, 0, {}).status().message(), "sampling: a row without logits");
}

TEST(Sampling, ParametersAreChecked) {
  const float nan = std::nanf("");
  auto message = [](const SamplingParameters& p) { return check_sampling(p).message(); };
  EXPECT_TRUE(check_sampling({}).ok());
  EXPECT_TRUE(check_sampling({.temperature = 2, .top_k = 1, .top_p = 0.1f, .min_p = 1, .repetition_penalty = 3}).ok());
  EXPECT_EQ(message({.temperature = -1}), "temperature: found -1, expected a finite number of at least 0");
  EXPECT_EQ(message({.temperature = nan}), "temperature: found nan, expected a finite number of at least 0");
  EXPECT_EQ(message({.top_k = -2}), "top-k: found -2, expected an integer of at least 0");
  EXPECT_EQ(message({.top_p = 0}), "top-p: found 0, expected a number above 0 and at most 1");
  EXPECT_EQ(message({.top_p = 1.5f}), "top-p: found 1.5, expected a number above 0 and at most 1");
  EXPECT_EQ(message({.min_p = 1.5f}), "min-p: found 1.5, expected a number from 0 to 1");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition-penalty: found 0, expected a finite number above 0");
}

}  // namespace
}  // namespace ktc::exec
