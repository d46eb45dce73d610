// The rule by which a CPU takes a share of experts that pass through a GPU: against every prefix, at its borders, and what it
// leaves alone.
#include "runtime/formats/expert_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace ktc {
namespace {

constexpr ExpertShare kRates{.copy_ns = 100, .gpu_ns = 10, .gpu_row_ns = 1, .cpu_ns = 50, .cpu_row_ns = 20};

std::vector<std::uint8_t> taken(const ExpertShare& share, const std::vector<std::uint32_t>& chosen, std::uint32_t rows,
                                SharedExperts* result = nullptr) {
  std::vector<std::uint8_t> on_cpu(chosen.size(), 7);
  const SharedExperts shared = share_experts(share, chosen, rows, on_cpu);
  if (result != nullptr) *result = shared;
  return on_cpu;
}

TEST(ExpertShare, TakesThoseOfFewestRowsWhileThatIsFaster) {
  // CPU 70, 150, 240, ... for 1, 2, 3 of them; left 400, 300, 200, 100
  SharedExperts shared;
  EXPECT_EQ(taken(kRates, {9, 1, 30, 2, 0}, 42, &shared), (std::vector<std::uint8_t>{0, 1, 0, 1, 0}));
  EXPECT_EQ(shared.on_cpu, 2u);
  EXPECT_EQ(shared.cpu_rows, 3u);
  EXPECT_EQ(shared.cpu_ns, 160u);
  EXPECT_EQ(shared.left_ns, 200u);
}

TEST(ExpertShare, NoneWhereTheWayThereTakesLonger) {
  ExpertShare far = kRates;
  far.values_ns = 400;
  EXPECT_EQ(taken(far, {1, 1, 1, 1}, 4), (std::vector<std::uint8_t>{0, 0, 0, 0}));
  far.values_ns = 0, far.values_row_ns = 100;
  EXPECT_EQ(taken(far, {1, 1, 1, 1}, 4), (std::vector<std::uint8_t>{0, 0, 0, 0}));
}

TEST(ExpertShare, WhatIsCopiedAheadIsNeverTheCpus) {
  ExpertShare share = kRates;
  share.ahead_ns = 150, share.ahead_row_ns = 10;
  EXPECT_EQ(matrices_ahead(share, 8, 0), 2u);
  EXPECT_EQ(matrices_ahead(share, 8, 5), 2u);
  EXPECT_EQ(matrices_ahead(share, 8, 6), 3u);
  EXPECT_EQ(matrices_ahead(share, 8, 1u << 24), 8u);
  EXPECT_EQ(taken(share, {1, 1, 1, 1, 1, 1}, 2), (std::vector<std::uint8_t>{0, 0, 1, 1, 1, 0}));
  EXPECT_EQ(taken(share, {1, 1}, 2), (std::vector<std::uint8_t>{0, 0}));
}

TEST(ExpertShare, NoneForLessThanATenth) {
  const std::vector<std::uint32_t> chosen(20, 3);  // 2000 on the link; one of them on the CPU would leave 1900, two 1800
  ExpertShare share = kRates;
  share.cpu_ns = 1500, share.cpu_row_ns = 0;
  EXPECT_EQ(taken(share, chosen, 60), std::vector<std::uint8_t>(20, 0));
  share.cpu_ns = 900;
  std::vector<std::uint8_t> two(20, 0);
  two[0] = two[1] = 1;
  EXPECT_EQ(taken(share, chosen, 60), two);
}

// No prefix of the order is better, and of equal ones it is the shortest.
TEST(ExpertShare, IsTheBestPrefix) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    const ExpertShare share{below(300), below(3), 1 + below(200), below(50), below(10), below(200), below(60), below(300), below(3)};
    std::vector<std::uint32_t> chosen(1 + below(20));
    for (std::uint32_t& c : chosen) c = below(3) == 0 ? 0 : below(40);
    const std::uint32_t rows = std::accumulate(chosen.begin(), chosen.end(), 0u);
    const std::uint32_t ahead = matrices_ahead(share, static_cast<std::uint32_t>(chosen.size()), rows);
    std::vector<std::uint32_t> order;
    for (std::uint32_t m = ahead; m < chosen.size(); ++m)
      if (chosen[m] != 0) order.push_back(m);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return chosen[a] < chosen[b]; });
    std::uint64_t least = UINT64_MAX, without = 0;
    std::vector<std::uint8_t> expected;
    for (std::size_t n = 0; n <= order.size(); ++n) {
      std::vector<std::uint8_t> on_cpu(chosen.size(), 0);
      for (std::size_t i = 0; i < n; ++i) on_cpu[order[i]] = 1;
      const std::uint64_t before = share.ahead_ns + std::uint64_t{share.ahead_row_ns} * rows;
      std::uint64_t cpu = n == 0 ? 0 : before + share.values_ns + std::uint64_t{share.values_row_ns} * rows, copies = 0, gpu = before;
      for (std::uint32_t m = 0; m < chosen.size(); ++m) {
        if (on_cpu[m] != 0) {
          cpu += share.cpu_ns + std::uint64_t{share.cpu_row_ns} * chosen[m];
          continue;
        }
        if (m < ahead || chosen[m] != 0) copies += share.copy_ns;
        if (chosen[m] != 0) gpu += share.gpu_ns + std::uint64_t{share.gpu_row_ns} * chosen[m];
      }
      if (const std::uint64_t time = std::max({cpu, copies, gpu}); time < least) least = time, expected = on_cpu;
      if (n == 0) without = least;
    }
    if (least > without - without / 10) least = without, expected.assign(chosen.size(), 0);
    SharedExperts shared;
    EXPECT_EQ(taken(share, chosen, rows, &shared), expected) << round;
    EXPECT_EQ(std::max(shared.cpu_ns, shared.left_ns), least) << round;
  }
}

}  // namespace
}  // namespace ktc
