// From how many tokens on prefill streams experts, and what the CPU takes: the threshold is where the predictions cross, and it moves
// as the machine does.
#include "placement/streaming.h"

#include <gtest/gtest.h>

#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

const test::ModelShape kQwen30{.layers = 48, .hidden = 2048, .vocab = 151936, .heads = 32, .kv_heads = 4, .head_dim = 128,
                               .experts = 128, .top_k = 8, .intermediate = 768};

constexpr const char* kPolicy = R"(version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: int4, group: 64}
  - match: {class: "*"}
    place: {device: "cuda:0"}
kv_cache: {tokens: 16384}
)";

Policy policy_with(const std::string& more) {
  auto policy = parse_policy(kPolicy + more, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return *policy;
}
Policy streamed(const std::string& more = "") { return policy_with("batch: {chunk: 2048, stream_chunk: 8192" + more + "}\n"); }

Target h200() {
  auto target = read_target(std::string(KTC_SOURCE_DIR) + "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  EXPECT_TRUE(target.ok()) << target.status().message();
  return *target;
}

StreamChoice choose(const Policy& policy, const Target& target) {
  auto placed = place(test::build_model(kQwen30), policy, target);
  EXPECT_TRUE(placed.ok()) << placed.status().message();
  return placed.ok() ? placed->stream : StreamChoice();
}

StreamPoint at(const StreamChoice& choice, std::uint32_t tokens) {
  for (const StreamPoint& point : choice.points)
    if (point.tokens == tokens) return point;
  ADD_FAILURE() << "no prediction for " << tokens;
  return {};
}

TEST(StreamingTest, TheThresholdIsWhereThePredictionsCross) {
  for (const bool share : {true, false}) {
    const std::string more = share ? "" : ", stream_share: false";
    const StreamChoice choice = choose(streamed(more), h200());
    ASSERT_GT(choice.from, 1u);
    ASSERT_LT(choice.from, 8192u);
    EXPECT_FALSE(choice.stated);
    EXPECT_LT(at(choice, choice.from).streamed, kStreamMargin * at(choice, choice.from).on_cpu);
    const StreamChoice below = choose(streamed(", stream_from: " + std::to_string(choice.from - 1) + more), h200());
    EXPECT_TRUE(below.stated);
    EXPECT_EQ(below.from, choice.from - 1);
    EXPECT_GE(at(below, below.from).streamed, kStreamMargin * at(below, below.from).on_cpu);
    EXPECT_LT(at(choice, 8192).streamed, at(choice, 8192).on_cpu);
  }
}

TEST(StreamingTest, ASlowerLinkRaisesItAndASlowerCpuLowersIt) {
  const std::uint32_t from = choose(streamed(), h200()).from;
  Target slow_link = h200(), slow_cpu = h200();
  slow_link.gpus[0].pcie_gb_per_s /= 4;
  slow_cpu.cpu.amx_int8_tops /= 4, slow_cpu.cpu.read_gb_per_s /= 4, slow_cpu.cpu.vnni_tops /= 4;
  EXPECT_GT(choose(streamed(), slow_link).from, from);
  EXPECT_LT(choose(streamed(), slow_cpu).from, from);
}

TEST(StreamingTest, WhereNothingPaysNothingIsStreamed) {
  Target target = h200();
  target.gpus[0].pcie_gb_per_s = 0.01;
  const StreamChoice choice = choose(streamed(", stream_share: false"), target);
  EXPECT_EQ(choice.from, 0u);
  EXPECT_TRUE(choice.shares.empty());
  EXPECT_TRUE(describe(choice).starts_with("nothing is streamed: 8192 tokens ")) << describe(choice);
}

TEST(StreamingTest, AShareOfTheCpuLowersItAndIsNeverSlower) {
  const StreamChoice with = choose(streamed(), h200()), without = choose(streamed(", stream_share: false"), h200());
  EXPECT_LT(with.from, without.from);
  EXPECT_EQ(with.shares.size(), 48u);
  EXPECT_TRUE(without.shares.empty());
  for (const StreamPoint& point : with.points) EXPECT_LE(point.streamed, point.unshared) << point.tokens;
  for (const StreamPoint& point : without.points) EXPECT_EQ(point.streamed, point.unshared) << point.tokens;
}

TEST(StreamingTest, NothingIsSharedBesideLateExperts) {
  Policy policy = streamed();
  policy.defer.max_per_token = 2;
  const StreamChoice choice = choose(policy, h200());
  EXPECT_GT(choice.from, 0u);
  EXPECT_TRUE(choice.shares.empty());
}

TEST(StreamingTest, OnlyWhatIsAskedFor) {
  EXPECT_TRUE(choose(policy_with(""), h200()).points.empty());
  const auto placed = place(test::build_model({}), streamed(), h200());  // a tiny model has its threshold too
  ASSERT_TRUE(placed.ok());
  EXPECT_FALSE(placed->stream.points.empty());
}

// Numbers of the rule follow the rates of the target.
TEST(StreamingTest, RatesOfTheShare) {
  const StreamChoice choice = choose(streamed(), h200());
  ASSERT_FALSE(choice.shares.empty());
  const ExpertShare share = choice.shares.begin()->second;
  const double bytes = 3 * 2048.0 * 768 * 4.25 / 8;
  EXPECT_NEAR(share.copy_ns, bytes / 55.5, 0.01 * share.copy_ns);
  EXPECT_GT(share.cpu_ns, bytes / 160);
  EXPECT_GT(share.cpu_row_ns, share.gpu_row_ns);
  EXPECT_GT(share.ahead_row_ns, 0u);
}

}  // namespace
}  // namespace ktc::placement
