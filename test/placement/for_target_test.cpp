// One policy for several machines: with best-effort, GPUs that a target lacks are replaced, and each replacement is named.
#include "placement/for_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "placement/place.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

constexpr char kLaptop[] = "version: 1\nname: laptop\ncpu: {cores: 4, memory: 8GiB}\n";
constexpr char kBox[] =
    "version: 1\nname: box\ncpu: {cores: 4, memory: 8GiB}\n"
    "gpus: [{device: cuda:0, name: g, sm: 80, memory: 2GiB, context: 1MiB}]\n";
constexpr char kHybrid[] =
    "version: 1\n"
    "rules:\n"
    "  - {match: {class: RoutedExperts}, place: {device: cpu, weights: int4}}\n"
    "  - {match: {class: \"*\"}, place: {device: cuda:0, weights: int8}}\n"
    "experts: {on_gpu: 25%, gpu: {devices: [cuda:0], weights: int4}, update: {every_tokens: 64}}\n"
    "defer: {max_per_token: 2, phases: [decode], scope: cpu}\n"
    "kv_cache: {tokens: 64}\n"
    "batch: {chunk: 16, stream_chunk: 64}\n"
    "limits: {cuda:0: 1GiB}\n";

Policy policy_of(const std::string& text) {
  const auto policy = parse_policy(text, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return *policy;
}
models::ModelDesc model() { return test::build_model({.layers = 2, .hidden = 512, .experts = 16, .top_k = 2, .intermediate = 512}); }

TEST(ForTargetTest, WithoutBestEffortAMissingDeviceIsAnError) {
  const Target laptop = *parse_target(kLaptop, "t.yaml");
  const Policy policy = for_target(policy_of(kHybrid), laptop);
  EXPECT_TRUE(policy.replaced.empty());
  EXPECT_EQ(place(model(), policy, laptop).status().message(),
            "p.yaml:4:43: a device that target 'laptop' does not have: found cuda:0, expected one of its devices: cpu; name one of "
            "these, compile for another target with --target, or write best-effort: true to take what there is");
}

TEST(ForTargetTest, WhereEveryDeviceExistsNothingChanges) {
  const Target box = *parse_target(kBox, "t.yaml");
  const Policy policy = for_target(policy_of(std::string(kHybrid) + "best-effort: true\n"), box);
  EXPECT_TRUE(policy.replaced.empty());
  EXPECT_EQ(policy.rules[1].place.device, "cuda:0");
  EXPECT_EQ(policy.defer.max_per_token, 2u);
  EXPECT_EQ(policy.batch.stream_chunk, 64u);
  EXPECT_EQ(policy.limits.size(), 1u);
}

TEST(ForTargetTest, ALaptopGetsAPlanForItsCpu) {
  const Target laptop = *parse_target(kLaptop, "t.yaml");
  const Policy policy = for_target(policy_of(std::string(kHybrid) + "best-effort: true\n"), laptop);
  std::vector<std::string> lines;
  for (const Difference& d : policy.replaced)
    lines.push_back(d.place + ": " + d.what + ": " + d.requested + " -> " + d.granted + " (" + d.why + ")");
  EXPECT_THAT(lines, testing::ElementsAre("p.yaml:4:43: device: cuda:0 -> cpu (target 'laptop' has cpu)",
                                          "p.yaml:5:19: hot experts: 25% -> none (target 'laptop' has cpu)",
                                          "p.yaml:8:8: stream_chunk: 64 -> none (no GPU to stream experts to)",
                                          "p.yaml:6:8: late experts of a token: 2 -> none (no GPU whose work they could run beside)"));
  const auto placed = place(model(), policy, laptop);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_TRUE(placed->hot.empty());
  EXPECT_EQ(placed->differences.size(), lines.size());
  for (const ModulePlacement& module : placed->modules) EXPECT_EQ(module.device, "cpu");
  EXPECT_EQ(for_target(policy, laptop).replaced.size(), lines.size()) << "a second time adds nothing";
}

TEST(ForTargetTest, TheDevicesThatExistKeepTheirHotExperts) {
  Policy policy = policy_of(std::string(kHybrid) + "best-effort: true\n");
  policy.experts.gpu_devices.push_back("cuda:1");
  policy.experts.gpu_device_positions.push_back(policy.experts.gpu_device_positions[0]);
  policy = for_target(std::move(policy), *parse_target(kBox, "t.yaml"));
  EXPECT_THAT(policy.experts.gpu_devices, testing::ElementsAre("cuda:0"));
  EXPECT_FALSE(policy.experts.on_gpu.none());
  ASSERT_EQ(policy.replaced.size(), 1u);
  EXPECT_EQ(policy.replaced[0].requested, "cuda:1");
}

}  // namespace
}  // namespace ktc::placement
