// Which GPU holds which hot expert: budgets of each kept, nobody twice, home first, equal input gives equal output.
#include "placement/spread_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace ktc::placement {
namespace {

using Ids = std::vector<std::uint32_t>;

TEST(SpreadExpertsTest, HomeFirstThenTheSmallestThatHasRoomForAll) {
  const HotSets hot{{0, 1, 2}, {3, 4}, {5, 6, 7}};
  const HotChoice choice = spread(hot, {}, {{4, 2, 8}, {0, 0, 1}, false});
  // layer 0 is at home; of layer 1 one expert finds room there, of layer 2 two
  EXPECT_EQ(choice.sets[0], (HotSets{{0, 1, 2}, {3}, {}}));
  EXPECT_EQ(choice.sets[1], (HotSets{{}, {}, {5, 6}}));
  EXPECT_EQ(choice.sets[2], (HotSets{{}, {4}, {7}}));
}

TEST(SpreadExpertsTest, TheMostFrequentStayAtHome) {
  const HotChoice choice = spread({{1, 2, 4}}, {{9, 1, 7, 9, 7}}, {{2, 1}, {0}, false});
  EXPECT_EQ(choice.sets[0][0], (Ids{2, 4}));
  EXPECT_EQ(choice.sets[1][0], (Ids{1}));
}

TEST(SpreadExpertsTest, WholeLayersStayTogether) {
  const HotChoice choice = spread({{0, 1}, {0, 1, 2}}, {}, {{4, 3}, {0, 0}, true});
  EXPECT_EQ(choice.sets[0], (HotSets{{0, 1}, {}}));
  EXPECT_EQ(choice.sets[1], (HotSets{{}, {0, 1, 2}}));
  EXPECT_EQ(count_of(spread({{0, 1, 2, 3, 4}}, {}, {{4, 4}, {0}, true})), 0u);
}

TEST(SpreadExpertsTest, KeepsEveryBudgetAndLosesNobodyWhoHasRoom) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t layers = 1 + random() % 6, gpus = 1 + random() % 4;
    HotSets hot(layers);
    ExpertCounts counts;
    SpreadInput input;
    input.whole = random() % 3 == 0;
    for (std::size_t g = 0; g < gpus; ++g) input.slots.push_back(random() % 12);
    for (std::size_t l = 0; l < layers; ++l) {
      for (std::uint32_t e = 0; e < 8; ++e)
        if (random() % 2) hot[l].push_back(e);
      input.home.push_back(random() % 5 == 0 ? kNoGpu : static_cast<std::uint32_t>(random() % gpus));
      if (round % 2) counts.emplace_back();
      for (int e = 0; round % 2 && e < 8; ++e) counts.back().push_back(random() % 4);
    }
    const HotChoice choice = spread(hot, counts, input);
    EXPECT_EQ(spread(hot, counts, input).sets, choice.sets);
    ASSERT_EQ(choice.sets.size(), gpus);
    std::uint64_t room = 0;
    for (std::size_t g = 0; g < gpus; ++g) {
      ASSERT_EQ(choice.sets[g].size(), layers);
      EXPECT_LE(count_of(choice.sets[g]), input.slots[g]);
      room += input.slots[g];
    }
    for (std::size_t l = 0; l < layers; ++l) {
      Ids all;
      std::size_t parts = 0;
      for (const HotSets& sets : choice.sets) {
        EXPECT_TRUE(std::is_sorted(sets[l].begin(), sets[l].end()));
        all.insert(all.end(), sets[l].begin(), sets[l].end());
        parts += !sets[l].empty();
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
      EXPECT_TRUE(std::includes(hot[l].begin(), hot[l].end(), all.begin(), all.end()));
      if (input.whole) EXPECT_TRUE(parts <= 1 && (all.empty() || all == hot[l]));
    }
    if (!input.whole) EXPECT_EQ(count_of(choice), std::min(count_of(hot), room));
  }
}

}  // namespace
}  // namespace ktc::placement
