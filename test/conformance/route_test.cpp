// route_token against hand-worked values and against a plain implementation with sorting.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "test/conformance/guarded.h"
#include "test/conformance/rows.h"

namespace ktc::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<float> kLogits = {0.5f, -1.0f, 2.0f, 0.1f, 1.5f, -0.3f, 0.0f, 0.9f};
const std::vector<float> kBias = {0.0f, 0.6f, -0.1f, 0.0f, 0.05f, 0.2f, 0.0f, 0.3f};

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Choice route(const std::vector<float>& logits, const std::vector<float>* bias, std::size_t top_k, std::size_t groups,
             std::size_t topk_groups, bool sigmoid, bool normalise, float scale) {
  Guarded<float> l(logits.size()), b(logits.size()), weights(top_k);
  Guarded<std::int32_t> ids(top_k);
  std::copy(logits.begin(), logits.end(), l.begin());
  if (bias != nullptr) std::copy(bias->begin(), bias->end(), b.begin());
  route_token({.logits = l.data(),
               .bias = bias != nullptr ? b.data() : nullptr,
               .experts = logits.size(),
               .top_k = top_k,
               .groups = groups,
               .topk_groups = topk_groups,
               .sigmoid = sigmoid,
               .normalise = normalise,
               .scale = scale,
               .ids = ids.data(),
               .weights = weights.data()});
  return {{ids.begin(), ids.end()}, {weights.begin(), weights.end()}};
}

void expect(const Choice& choice, const std::vector<std::int32_t>& ids, const std::vector<double>& weights) {
  ASSERT_EQ(choice.ids, ids);
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(choice.weights[i], weights[i], 2e-6) << "place " << i;
}

TEST(Route, SoftmaxOverAllExperts) {
  expect(route(kLogits, nullptr, 2, 0, 0, false, false, 1.0f), {2, 4}, {0.384988, 0.233507});
  expect(route(kLogits, nullptr, 2, 1, 1, false, true, 1.0f), {2, 4}, {0.622459, 0.377541});
}

// Logits 2, 1 and six zeros, worked by hand: what users found wrong in other systems (normalising, scaling, top-1).
TEST(Route, TwoWinnersByHand) {
  const std::vector<float> logits = {0, 0, 2, 0, 0, 1, 0, 0}, no_bias(8, 0.0f);
  struct Case {
    std::size_t top_k;
    bool sigmoid, normalise;
    float scale;
    std::vector<float> weights;
  };
  const Case cases[] = {{2, false, false, 2.5f, {1.1468f, 0.4219f}},
                        {2, false, true, 1.0f, {0.7311f, 0.2689f}},
                        {2, true, true, 2.5f, {1.3661f, 1.1339f}},
                        {1, false, false, 2.5f, {1.1468f}}};
  for (const Case& c : cases) {
    const Choice first = route(logits, c.sigmoid ? &no_bias : nullptr, c.top_k, 1, 1, c.sigmoid, c.normalise, c.scale);
    EXPECT_EQ(first.ids.front(), 2);
    if (c.top_k == 2) EXPECT_EQ(first.ids.back(), 5);
    for (std::size_t k = 0; k < c.top_k; ++k) EXPECT_NEAR(first.weights[k], c.weights[k], 1e-4f);
    for (int again = 0; again < 100; ++again) {
      const Choice next = route(logits, c.sigmoid ? &no_bias : nullptr, c.top_k, 1, 1, c.sigmoid, c.normalise, c.scale);
      EXPECT_EQ(next.ids, first.ids);
      EXPECT_EQ(next.weights, first.weights);
    }
  }
}

TEST(Route, SigmoidOfEveryExpert) {
  expect(route(kLogits, nullptr, 8, 1, 1, true, false, 1.0f), {2, 4, 7, 0, 3, 6, 5, 1},
         {0.880797, 0.817574, 0.710950, 0.622459, 0.524979, 0.5, 0.425557, 0.268941});
}

TEST(Route, SigmoidWithBiasAndGroups) {
  expect(route(kLogits, &kBias, 2, 4, 2, true, true, 2.5f), {7, 4}, {1.162804, 1.337196});
  EXPECT_EQ(route(kLogits, &kBias, 2, 1, 1, true, true, 2.5f).ids, (std::vector<std::int32_t>{7, 1}));
}

// softmax routers with groups keep the groups with the best single expert: group 0 has the best sum, group 1 the best
// one
TEST(Route, SoftmaxGroupsCountTheirBest) {
  EXPECT_EQ(route({2.0f, 1.9f, 2.1f, -5.0f}, nullptr, 1, 2, 1, false, false, 1.0f).ids, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(route({2.0f, 1.9f, 2.1f, -5.0f}, nullptr, 1, 2, 1, true, false, 1.0f).ids, (std::vector<std::int32_t>{0}));
}

TEST(Route, TiesGoToTheLowerId) {
  EXPECT_EQ(route(std::vector<float>(8, 0.25f), nullptr, 3, 1, 1, false, true, 1.0f).ids,
            (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(route(std::vector<float>(8, 0.25f), nullptr, 3, 4, 2, true, true, 1.0f).ids,
            (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(route({0.0f, 1.0f, 0.0f, 1.0f, 0.0f}, nullptr, 4, 1, 1, true, true, 1.0f).ids,
            (std::vector<std::int32_t>{1, 3, 0, 2}));
}

// Whatever the logits are, the ids are distinct and in range: the executor indexes weights with them.
TEST(Route, HostileLogitsGiveDistinctIds) {
  std::mt19937 random(seed());
  SCOPED_TRACE(seed_trace());
  const float values[] = {0.0f, 1.0f, -1.0f, kNan, kInf, -kInf, 3e38f, -3e38f};
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(16), bias(16);
    for (float& v : logits) v = values[random() % std::size(values)];
    for (float& v : bias) v = values[random() % std::size(values)];
    const std::size_t top_k = 1 + random() % 16;
    const Choice choice = route(logits, random() % 2 == 0 ? &bias : nullptr, top_k, 1u << random() % 4,
                                1 + random() % 3, random() % 2 == 0, random() % 2 == 0, 1.0f);
    const std::set<std::int32_t> distinct(choice.ids.begin(), choice.ids.end());
    ASSERT_EQ(distinct.size(), top_k);
    ASSERT_GE(*distinct.begin(), 0);
    ASSERT_LT(*distinct.rbegin(), 16);
  }
  const Choice all_nan = route(std::vector<float>(4, kNan), nullptr, 2, 1, 1, true, true, 1.0f);
  EXPECT_EQ(all_nan.ids, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(route({kNan, 0.0f, kNan, -50.0f}, nullptr, 2, 1, 1, true, true, 1.0f).ids,
            (std::vector<std::int32_t>{1, 3}));
}

TEST(Route, UnderflowingSigmoidsAreNotDividedByZero) {
  for (float w : route(std::vector<float>(8, -1e4f), nullptr, 3, 1, 1, true, true, 1.0f).weights) EXPECT_EQ(w, 0.0f);
}

// Scores in double precision, groups and experts by sorting. Near-ties would be decided by rounding: they are skipped.
TEST(Route, AgreesWithSorting) {
  std::mt19937 random(seed());
  SCOPED_TRACE(seed_trace());
  std::normal_distribution<float> normal;
  int compared = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t groups = 1u << random() % 4, experts = groups * (1 + random() % 40);
    const std::size_t keep = 1 + random() % groups, top_k = 1 + random() % (keep * (experts / groups));
    const bool sigmoid = random() % 2 == 0, normalise = random() % 2 == 0, with_bias = random() % 2 == 0;
    std::vector<float> logits(experts), bias(experts, 0.0f);
    for (float& v : logits) v = 2 * normal(random);
    if (with_bias)
      for (float& v : bias) v = 0.1f * normal(random);

    std::vector<double> score(experts);
    double total = 0;
    for (std::size_t e = 0; e < experts; ++e) total += std::exp(static_cast<double>(logits[e]));
    for (std::size_t e = 0; e < experts; ++e) {
      const double l = logits[e];
      score[e] = sigmoid ? 1 / (1 + std::exp(-l)) : std::exp(l) / total;
    }
    const auto choice_of = [&](std::size_t e) { return score[e] + bias[e]; };
    bool near_tie = false;
    const auto best_first = [&](std::vector<std::size_t>& order, auto key, std::size_t taken) {
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return key(a) > key(b); });  // ties: skipped
      for (std::size_t i = 0; i < taken && i + 1 < order.size(); ++i)
        near_tie |= key(order[i]) - key(order[i + 1]) < 2e-6;
    };
    std::vector<std::size_t> eligible(experts);
    std::iota(eligible.begin(), eligible.end(), 0);
    if (groups > 1 && keep < groups) {
      const std::size_t size = experts / groups;
      const auto group_key = [&](std::size_t g) {
        std::vector<double> c;
        for (std::size_t i = 0; i < size; ++i) c.push_back(choice_of(g * size + i));
        std::sort(c.rbegin(), c.rend());
        return sigmoid && size > 1 ? c[0] + c[1] : c[0];
      };
      std::vector<std::size_t> order(groups);
      std::iota(order.begin(), order.end(), 0);
      best_first(order, group_key, keep);
      order.resize(keep);
      std::erase_if(eligible,
                    [&](std::size_t e) { return std::find(order.begin(), order.end(), e / size) == order.end(); });
    }
    best_first(eligible, choice_of, top_k);
    if (near_tie) continue;
    ++compared;
    double sum = 0;
    for (std::size_t i = 0; i < top_k; ++i) sum += score[eligible[i]];
    const Choice got = route(logits, with_bias ? &bias : nullptr, top_k, groups, keep, sigmoid, normalise, 1.5f);
    for (std::size_t i = 0; i < top_k; ++i) {
      ASSERT_EQ(static_cast<std::size_t>(got.ids[i]), eligible[i]) << "round " << round << " place " << i;
      const double weight = score[eligible[i]] / (normalise ? sum : 1.0) * 1.5;
      ASSERT_NEAR(got.weights[i], weight, 3e-6 * weight + 1e-12) << "round " << round << " place " << i;
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(Route, TheLargestNumberOfExperts) {
  std::vector<float> logits(kMaxExperts);
  for (std::size_t e = 0; e < kMaxExperts; ++e) logits[e] = -static_cast<float>(e % 1000) / 100;
  const Choice choice = route(logits, nullptr, 6, kMaxExperts, kMaxExperts / 2, true, true, 1.0f);
  EXPECT_EQ(choice.ids, (std::vector<std::int32_t>{0, 1000, 2000, 3000, 4000, 1}));
}

}  // namespace
}  // namespace ktc::kernels
