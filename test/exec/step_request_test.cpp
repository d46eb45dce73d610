// Which entry runs a step, and how many tokens a step should take, where a plan prefers a large entry for many tokens.
#include "runtime/exec/step_request.h"

#include <gtest/gtest.h>

#include <vector>

namespace ktc::exec {
namespace {

// decode[1], extend[8], extend[32] for 12 tokens or more.
std::vector<EntryBounds> entries(std::uint32_t from) {
  return {{.entry = 0, .decode = true, .max_tokens = 1, .max_rows = 1, .max_sequences = 1},
          {.entry = 1, .decode = false, .max_tokens = 8, .max_rows = 8, .max_sequences = 4},
          {.entry = 2, .decode = false, .max_tokens = 32, .max_rows = 16, .max_sequences = 4, .from_tokens = from}};
}

std::uint32_t chosen(const std::vector<EntryBounds>& all, std::size_t tokens, std::size_t rows = 1, std::size_t sequences = 1) {
  static const std::vector<std::int32_t> ids(64, 0);
  std::vector<StepSequence> steps(sequences);
  for (StepSequence& s : steps) s.ids = std::span(ids).first(1), s.logits_from = 1;
  steps[0].ids = std::span(ids).first(tokens - (sequences - 1));
  steps[0].logits_from = static_cast<std::uint32_t>(steps[0].ids.size() - rows);
  const auto index = choose_entry(all, steps);
  EXPECT_TRUE(index.ok()) << index.status().message();
  return index.ok() ? all[*index].entry : UINT32_MAX;
}

TEST(ChooseEntry, WithoutAThresholdTheSmallestThatHasRoom) {
  const auto all = entries(0);
  EXPECT_EQ(chosen(all, 1), 0u);
  EXPECT_EQ(chosen(all, 2), 1u);
  EXPECT_EQ(chosen(all, 8), 1u);
  EXPECT_EQ(chosen(all, 9), 2u);
}

TEST(ChooseEntry, FromAThresholdOnTheLargeOneGoesFirst) {
  const auto all = entries(5);
  EXPECT_EQ(chosen(all, 1), 0u);
  EXPECT_EQ(chosen(all, 4), 1u);
  EXPECT_EQ(chosen(all, 5), 2u);
  EXPECT_EQ(chosen(all, 8), 2u);
  EXPECT_EQ(chosen(all, 32), 2u);
}

TEST(ChooseEntry, BelowItTheLargeOneIsTheLastResort) {
  const auto all = entries(12);
  EXPECT_EQ(chosen(all, 8), 1u);
  EXPECT_EQ(chosen(all, 9), 2u) << "nothing else has room";
  EXPECT_EQ(chosen(all, 12), 2u);
}

TEST(ChooseEntry, ALargeOneWithoutRoomForTheRowsIsNotTaken) {
  auto all = entries(5);
  all[2].max_rows = 4;
  EXPECT_EQ(chosen(all, 8, 8), 1u);
  EXPECT_EQ(chosen(all, 8, 4), 2u);
}

TEST(BestTokens, AllThatTheLargestHasRoomFor) {
  const auto all = entries(0);
  EXPECT_EQ(best_tokens(all, 1), 1u);
  EXPECT_EQ(best_tokens(all, 20), 20u);
  EXPECT_EQ(best_tokens(all, 100), 32u);
}

TEST(BestTokens, FewerThanAThresholdAreCutForTheOthers) {
  const auto all = entries(12);
  EXPECT_EQ(best_tokens(all, 7), 7u);
  EXPECT_EQ(best_tokens(all, 11), 8u);
  EXPECT_EQ(best_tokens(all, 12), 12u);
  EXPECT_EQ(best_tokens(all, 100), 32u);
}

TEST(BestTokens, ALargeEntryAloneTakesWhatThereIs) {
  std::vector<EntryBounds> all = entries(12);
  all.erase(all.begin() + 1);
  EXPECT_EQ(best_tokens(all, 7), 7u);
}

}  // namespace
}  // namespace ktc::exec
