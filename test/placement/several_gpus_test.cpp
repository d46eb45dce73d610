// Layers and hot experts on several GPUs of unequal size: accounts and budgets of each, refusals that name each, what auto chooses.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "placement/cost_model.h"
#include "placement/for_target.h"
#include "placement/place.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// 4 layers of 16 experts of 1.5 MiB each; the first two layers on cuda:0, the others on cuda:1.
const models::ModelDesc kModel = test::build_model({.layers = 4, .hidden = 512, .experts = 16, .top_k = 2, .intermediate = 512});
constexpr char kRules[] =
    "version: 1\nrules:\n"
    "  - {match: {class: RoutedExperts}, place: {device: cpu}}\n"
    "  - {match: {name: \"model[.]layers[.][01][.].*\"}, place: {device: cuda:0}}\n"
    "  - {match: {class: Embedding}, place: {device: cuda:0}}\n"
    "  - {match: {class: \"*\"}, place: {device: cuda:1}}\n"
    "kv_cache: {tokens: 64}\nbatch: {chunk: 16}\n";

Target target_of(const std::string& first, const std::string& second, const std::string& rates = "") {
  const std::string gpu = ", name: g, sm: 80, context: 1MiB, pcie_gb_per_s: 20";
  const auto target = parse_target("version: 1\nname: two cards\ncpu: {cores: 4, memory: 8GiB, read_gb_per_s: 40}\ngpus:\n  - {device: cuda:0, memory: " +
                                       first + gpu + ", read_gb_per_s: 400}\n  - {device: cuda:1, memory: " + second + gpu +
                                       (rates.empty() ? ", read_gb_per_s: 400" : rates) + "}\n",
                                   "t.yaml");
  EXPECT_TRUE(target.ok()) << target.status().message();
  return *target;
}

std::string experts(const std::string& on_gpu, const std::string& strategy = "uniform", const std::string& more = "") {
  return "experts: {strategy: " + strategy + ", on_gpu: " + on_gpu + ", gpu: {devices: [cuda:0, cuda:1]}" + more + "}\n";
}

Policy policy_of(const std::string& rest) {
  const auto policy = parse_policy(kRules + rest, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return *policy;
}

// With counts that no file has.
Policy policy_of(const std::string& on_gpu, Strategy strategy) {
  Policy policy = policy_of(experts(on_gpu));
  policy.experts.strategy = strategy;
  return policy;
}

Expected<Placement> try_place(const std::string& rest, const Target& target) { return place(kModel, policy_of(rest), target); }

std::uint64_t bytes_on(const Placement& placed, const std::string& device, const std::string& category = "") {
  std::uint64_t bytes = 0;
  for (const MemoryLine& line : placed.memory)
    if (line.device == device && (category.empty() || line.category == category)) bytes += line.bytes;
  return bytes;
}

// Hot experts on each device, and that none is on two.
std::map<std::string, std::size_t> counts_of(const Placement& placed) {
  std::map<std::string, std::size_t> counts;
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  for (const HotExperts& entry : placed.hot) {
    counts[entry.device] += entry.ids.size();
    for (const std::uint32_t id : entry.ids) EXPECT_TRUE(seen.emplace(entry.module, id).second) << "expert " << id << " twice";
  }
  return counts;
}

TEST(SeveralGpusTest, EachHasTheCacheAndTheExpertsOfItsLayers) {
  const auto placed = try_place(experts("25%"), target_of("1GiB", "1GiB"));
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_EQ(counts_of(*placed), (std::map<std::string, std::size_t>{{"cuda:0", 8}, {"cuda:1", 8}}));
  for (const HotExperts& entry : placed->hot) {
    const std::string& name = kModel.modules[entry.module].name;
    EXPECT_EQ(entry.device, name.starts_with("model.layers.0.") || name.starts_with("model.layers.1.") ? "cuda:0" : "cuda:1") << name;
  }
  EXPECT_EQ(bytes_on(*placed, "cuda:0", "kv-cache"), bytes_on(*placed, "cuda:1", "kv-cache"));
  EXPECT_GT(bytes_on(*placed, "cuda:0", "kv-cache"), 0u);
  EXPECT_EQ(bytes_on(*placed, "cpu", "kv-cache"), 0u);
}

TEST(SeveralGpusTest, WhatASmallOneHasNoRoomForGoesToTheOther) {
  for (const Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency}) {
    ExpertCounts counts(4, std::vector<std::uint64_t>(16));
    for (std::size_t l = 0; l < 4; ++l)
      for (std::size_t e = 0; e < 16; ++e) counts[l][e] = (l * 31 + e * 17) % 23;
    for (const std::uint64_t first : {20, 28, 40}) {
      const auto placed = place(kModel, policy_of("75%", strategy), target_of(std::to_string(first) + "MiB", "1GiB"), counts);
      ASSERT_TRUE(placed.ok()) << placed.status().message();
      const auto on = counts_of(*placed);
      EXPECT_EQ(on.at("cuda:0") + on.at("cuda:1"), 48u) << to_string(strategy);
      EXPECT_LE(bytes_on(*placed, "cuda:0"), first * kMiB);
      if (first == 20) EXPECT_GT(on.at("cuda:1"), 32u) << to_string(strategy);  // those of its own layers are 32 at most
    }
  }
}

TEST(SeveralGpusTest, LimitsCountToo) {
  const auto placed = try_place(experts("75%") + "limits: {cuda:1: 24MiB}\n", target_of("1GiB", "1GiB"));
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_LE(bytes_on(*placed, "cuda:1"), 24 * kMiB);
  const auto on = counts_of(*placed);
  EXPECT_EQ(on.at("cuda:0") + on.at("cuda:1"), 48u);
}

TEST(SeveralGpusTest, ARefusalNamesEachOfThem) {
  const auto placed = try_place(experts("100%"), target_of("20MiB", "30MiB"));
  ASSERT_FALSE(placed.ok());
  const std::string message = placed.status().message();
  EXPECT_TRUE(message.starts_with("p.yaml:9:38: hot experts do not fit on their GPUs: found 64 hot experts of 1.5 MiB, expected at most ")) << message;
  EXPECT_NE(message.find(" on cuda:0, "), std::string::npos) << message;
  EXPECT_NE(message.find(" on cuda:1; ask for fewer"), std::string::npos) << message;
}

TEST(SeveralGpusTest, WithBestEffortAsManyAsFit) {
  const Target target = target_of("20MiB", "30MiB");
  for (const char* strategy : {"uniform", "front-loading", "random"}) {
    for (const char* on_gpu : {"100%", "{max: 1GiB}"}) {
      const auto placed = try_place(experts(on_gpu, strategy) + "best-effort: true\n", target);
      ASSERT_TRUE(placed.ok()) << placed.status().message();
      const auto on = counts_of(*placed);
      ASSERT_EQ(placed->differences.size(), 1u) << on_gpu;
      EXPECT_EQ(placed->differences[0].granted, std::to_string(on.at("cuda:0") + on.at("cuda:1")));
      // not one more of 1.5 MiB
      EXPECT_GT(bytes_on(*placed, "cuda:0"), 20 * kMiB - 2 * kMiB);
      EXPECT_GT(bytes_on(*placed, "cuda:1"), 30 * kMiB - 2 * kMiB);
    }
  }
}

TEST(SeveralGpusTest, ASizeIsThatOfEach) {
  const auto placed = try_place(experts("{max: 12MiB}"), target_of("1GiB", "1GiB"));
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_EQ(counts_of(*placed), (std::map<std::string, std::size_t>{{"cuda:0", 8}, {"cuda:1", 8}}));
  const auto refused = try_place(experts("{max: 12MiB}"), target_of("1GiB", "12MiB"));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("cuda:1 is too small by"), std::string::npos) << refused.status().message();
}

TEST(SeveralGpusTest, ExpertsThatMoveAreOnOneForEachLayer) {
  const std::string moves = ", update: {every_tokens: 64}";
  const auto placed = try_place(experts("50%", "uniform", moves), target_of("120MiB", "1GiB"));
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  std::set<std::uint32_t> modules;
  for (const HotExperts& entry : placed->hot) EXPECT_TRUE(modules.insert(entry.module).second);
  EXPECT_LE(bytes_on(*placed, "cuda:0"), 120 * kMiB);
  // room for all of them, for 18 and 27 say, but not for four layers of 11 in one piece
  std::string message;
  for (std::uint64_t mib = 60; mib < 200 && message.empty(); ++mib) {
    const auto refused = try_place(experts("11", "uniform", moves), target_of(std::to_string(mib) + "MiB", std::to_string(mib + 14) + "MiB"));
    if (!refused.ok() && refused.status().message().find("do not fit") == std::string::npos) message = refused.status().message();
  }
  EXPECT_NE(message.find("experts that move at run time are on one GPU for each layer"), std::string::npos) << message;
  EXPECT_NE(message.find(" on cuda:0, "), std::string::npos) << message;
}

TEST(SeveralGpusTest, AutoIsNoSlowerThanTheOthers) {
  ExpertCounts counts(4, std::vector<std::uint64_t>(16));
  for (std::size_t l = 0; l < 4; ++l)
    for (std::size_t e = 0; e < 16; ++e) counts[l][e] = 1000 / (1 + (l * 5 + e * 7) % 16);
  for (const char* rates : {", read_gb_per_s: 400", ", read_gb_per_s: 60", ", read_gb_per_s: 1500"}) {
    for (const auto& [first, second] : {std::pair("24MiB", "60MiB"), std::pair("60MiB", "24MiB")}) {
      const Target target = target_of(first, second, rates);
      std::map<std::string, double> us;
      for (const Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::frequency, Strategy::auto_}) {
        const Policy policy = policy_of("30%", strategy);
        const auto placed = place(kModel, policy, target, counts);
        ASSERT_TRUE(placed.ok()) << placed.status().message();
        for (const char* device : {"cuda:0", "cuda:1"}) EXPECT_LE(bytes_on(*placed, device), target.memory_of(device));
        const auto cost = CostModel::create(kModel, placed->modules, policy, target, counts);
        ASSERT_TRUE(cost.ok());
        us[std::string(to_string(strategy))] = *cost->us_per_token(placed->hot);
        counts_of(*placed);
      }
      for (const auto& [strategy, time] : us) EXPECT_LE(us["auto"], time * (1 + 1e-9)) << strategy << " " << first << rates;
    }
  }
}

TEST(SeveralGpusTest, WithFewerGpusThanTheyName) {
  Target one = target_of("1GiB", "1GiB");
  one.gpus.pop_back();
  EXPECT_FALSE(place(kModel, policy_of(experts("25%")), one).ok());
  const Policy policy = for_target(policy_of(experts("25%") + "best-effort: true\n"), one);
  const auto placed = place(kModel, policy, one);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_EQ(counts_of(*placed), (std::map<std::string, std::size_t>{{"cuda:0", 16}}));
  EXPECT_EQ(placed->differences.size(), 2u);
}

}  // namespace
}  // namespace ktc::placement
