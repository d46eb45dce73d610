// Which pairs an op of experts computes, against the words of DESIGN ("Expert deferral, exactly") written down as a sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "runtime/exec/program.h"

namespace ktc::exec {
namespace {

using Part = PairFilter::Part;
using Pair = std::pair<std::size_t, std::int32_t>;  // row, expert id

struct Routing {
  std::size_t rows, top_k, experts;
  std::vector<std::int32_t> ids;  // [rows][top_k]
  std::vector<float> weights;
  std::vector<std::int32_t> deferred;
  std::vector<std::int32_t> slots;  // empty: identity
  std::size_t matrices;

  std::int32_t id(std::size_t r, std::size_t k) const { return ids[r * top_k + k]; }
  float weight(std::size_t r, std::size_t k) const { return weights[r * top_k + k]; }
  std::int32_t slot(std::int32_t e) const {
    if (e < 0 || static_cast<std::size_t>(e) >= experts) return -1;
    return slots.empty() ? e : slots[static_cast<std::size_t>(e)];
  }
};

struct Sorted {
  std::map<Pair, float> pairs;     // with their weights
  std::vector<std::uint64_t> counts;
  std::size_t active = 0;
};

Sorted sort(Routing& routing, Part part, std::size_t late, bool among_all) {
  std::vector<std::uint32_t> pair_row(routing.ids.size()), active(routing.ids.size()), first(routing.matrices + 1);
  std::vector<float> pair_weight(routing.ids.size());
  Sorted result;
  result.counts.resize(routing.experts);
  ExpertsStep step = {};
  step.ids = {routing.ids.data(), routing.top_k, routing.top_k};
  step.weights = {routing.weights.data(), routing.top_k, routing.top_k};
  step.filter.slots = routing.slots.empty() ? nullptr : routing.slots.data();
  step.filter.ids = routing.experts;
  step.filter.deferred = {routing.deferred.data(), 1, 1};
  step.filter.late = late;
  step.filter.part = part;
  step.filter.among_all = among_all;
  step.experts = routing.matrices;
  step.top_k = routing.top_k;
  step.pair_row = pair_row.data();
  step.active = active.data();
  step.first = first.data();
  step.pair_weight = pair_weight.data();
  step.activations = part == Part::late ? nullptr : result.counts.data();
  result.active = sort_pairs(step, routing.rows);

  std::map<std::int32_t, std::int32_t> id_of;
  for (std::size_t e = 0; e < routing.experts; ++e)
    if (const std::int32_t slot = routing.slot(static_cast<std::int32_t>(e)); slot >= 0) id_of[slot] = static_cast<std::int32_t>(e);
  std::size_t found = 0;
  for (std::size_t m = 0; m < routing.matrices; ++m) {
    if (first[m] != first[m + 1]) {
      EXPECT_EQ(active[found], m);
      ++found;
    }
    for (std::uint32_t p = first[m]; p < first[m + 1]; ++p) {
      EXPECT_TRUE(p == first[m] || pair_row[p - 1] < pair_row[p]) << "pairs of a matrix are in row order";
      EXPECT_TRUE(result.pairs.emplace(Pair{pair_row[p], id_of.at(static_cast<std::int32_t>(m))}, pair_weight[p]).second);
    }
  }
  EXPECT_EQ(found, result.active);
  return result;
}

// The late pairs of a row: sort the candidates by weight, ties: the lower id is higher; the `late` last ones.
std::set<Pair> late_pairs(const Routing& routing, std::size_t late, bool among_all) {
  std::set<Pair> result;
  for (std::size_t r = 0; r < routing.rows; ++r) {
    if (routing.deferred[r] == 0) continue;
    std::vector<std::size_t> order;
    for (std::size_t k = 0; k < routing.top_k; ++k)
      if (among_all || routing.slot(routing.id(r, k)) >= 0) order.push_back(k);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (routing.weight(r, a) != routing.weight(r, b)) return routing.weight(r, a) > routing.weight(r, b);
      return routing.id(r, a) < routing.id(r, b);
    });
    const std::size_t count = std::min(late, order.size());
    for (std::size_t i = order.size() - count; i < order.size(); ++i)
      if (routing.slot(routing.id(r, order[i])) >= 0) result.emplace(r, routing.id(r, order[i]));
  }
  return result;
}

Routing random_routing(std::mt19937& random) {
  Routing routing;
  const auto draw = [&random](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  routing.experts = draw(1, 20);
  routing.top_k = draw(1, std::min<std::size_t>(8, routing.experts));
  routing.rows = draw(1, 12);
  routing.matrices = routing.experts;
  std::vector<std::int32_t> all(routing.experts);
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t r = 0; r < routing.rows; ++r) {
    std::shuffle(all.begin(), all.end(), random);
    for (std::size_t k = 0; k < routing.top_k; ++k) {
      routing.ids.push_back(all[k]);
      routing.weights.push_back(static_cast<float>(draw(1, 4)) * 0.125f);  // ties are common
    }
    routing.deferred.push_back(static_cast<std::int32_t>(draw(0, 3) != 0));
  }
  if (draw(0, 2) != 0) {  // a split: some experts elsewhere, matrices in any order
    std::shuffle(all.begin(), all.end(), random);
    routing.matrices = draw(1, routing.experts);
    routing.slots.assign(routing.experts, -1);
    for (std::size_t m = 0; m < routing.matrices; ++m) routing.slots[static_cast<std::size_t>(all[m])] = static_cast<std::int32_t>(m);
  }
  return routing;
}

TEST(PairFilter, PartsAreWhatTheSortSaysAndTogetherAll) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    Routing routing = random_routing(random);
    const std::size_t late = random() % 5;
    const bool among_all = random() % 2 == 0;
    const Sorted all = sort(routing, Part::all, late, among_all), in_time = sort(routing, Part::in_time, late, among_all),
                 behind = sort(routing, Part::late, late, among_all);
    const std::set<Pair> expected = late_pairs(routing, late, among_all);
    std::map<Pair, float> both = in_time.pairs;
    for (const auto& [pair, weight] : behind.pairs) {
      ASSERT_TRUE(expected.contains(pair)) << "round " << round;
      ASSERT_TRUE(both.emplace(pair, weight).second) << "a pair in both parts, round " << round;
    }
    ASSERT_EQ(behind.pairs.size(), expected.size()) << "round " << round;
    ASSERT_EQ(both, all.pairs) << "round " << round;
    // every pair is counted once, by its id, whatever its part
    ASSERT_EQ(in_time.counts, all.counts);
    std::vector<std::uint64_t> counts(routing.experts);
    for (const auto& [pair, weight] : all.pairs) ++counts[static_cast<std::size_t>(pair.second)];
    ASSERT_EQ(all.counts, counts);
  }
}

// With scope `all`, what is late does not depend on where experts live.
TEST(PairFilter, TwoHalvesOfASplitAgreeOnWhatIsLateAmongAll) {
  std::mt19937 random(11);
  for (int round = 0; round < 1000; ++round) {
    Routing whole = random_routing(random);
    whole.slots.clear();
    whole.matrices = whole.experts;
    Routing halves[2] = {whole, whole};
    std::int32_t next[2] = {0, 0};
    for (Routing& half : halves) half.slots.assign(whole.experts, -1);
    for (std::size_t e = 0; e < whole.experts; ++e) {
      const std::size_t side = random() % 2;
      halves[side].slots[e] = next[side]++;
    }
    const std::size_t late = 1 + random() % 4;
    std::map<Pair, float> both;
    for (int side = 0; side < 2; ++side) {
      halves[side].matrices = static_cast<std::size_t>(std::max(1, next[side]));
      both.merge(sort(halves[side], Part::late, late, true).pairs);
    }
    ASSERT_EQ(both, sort(whole, Part::late, late, true).pairs) << "round " << round;
  }
}

TEST(PairFilter, OfEqualWeightsTheHigherIdIsLate) {
  Routing routing{.rows = 1, .top_k = 4, .experts = 8, .ids = {6, 1, 7, 3}, .weights = {0.25f, 0.25f, 0.5f, 0.25f}, .deferred = {1},
                  .slots = {}, .matrices = 8};
  const Sorted late = sort(routing, Part::late, 2, false);
  EXPECT_EQ(late.pairs, (std::map<Pair, float>{{{0, 6}, 0.25f}, {{0, 3}, 0.25f}}));
}

TEST(PairFilter, RanksTheOpsOwnPairsOrAllOfThem) {
  // experts 0 and 1 are elsewhere; of this op's pairs 2 is the lowest, of all 0 is
  Routing routing{.rows = 1, .top_k = 3, .experts = 4, .ids = {0, 2, 3}, .weights = {0.1f, 0.3f, 0.6f}, .deferred = {1},
                  .slots = {-1, -1, 0, 1}, .matrices = 2};
  EXPECT_EQ(sort(routing, Part::late, 1, false).pairs, (std::map<Pair, float>{{{0, 2}, 0.3f}}));
  EXPECT_TRUE(sort(routing, Part::late, 1, true).pairs.empty());
}

TEST(PairFilter, NoPairForWhatIsNoExpert) {
  const float nan = std::nanf("");
  Routing routing{.rows = 1, .top_k = 3, .experts = 4, .ids = {-1, 9, 2}, .weights = {nan, 0.5f, 0.5f}, .deferred = {1}, .slots = {},
                  .matrices = 4};
  for (const bool among_all : {false, true}) {
    EXPECT_EQ(sort(routing, Part::late, 1, among_all).pairs, (std::map<Pair, float>{{{0, 2}, 0.5f}}));
    EXPECT_TRUE(sort(routing, Part::in_time, 1, among_all).pairs.empty());
  }
}

}  // namespace
}  // namespace ktc::exec
