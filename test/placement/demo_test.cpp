// The shipped policies on the shipped checkpoint: what the README's commands rely on.
#include <gtest/gtest.h>

#include "models/read_model.h"
#include "placement/for_target.h"
#include "placement/place.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

models::ModelDesc demo() {
  auto model = models::read_model(KTC_SOURCE_DIR "/models/demo", KTC_SOURCE_DIR "/models/families");
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : models::ModelDesc();
}

std::uint64_t total(const Placement& placement, std::string_view category) {
  std::uint64_t sum = 0;
  for (const MemoryLine& line : placement.memory)
    if (line.category == category) sum += line.bytes;
  return sum;
}

TEST(DemoTest, ExactModeOnThisMachine) {
  const models::ModelDesc model = demo();
  const auto policy = read_policy(KTC_SOURCE_DIR "/placement/policies/exact.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  const auto placed = place(model, *policy, host_target());
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  ASSERT_EQ(placed->modules.size(), model.modules.size());
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    EXPECT_EQ(placed->modules[i].device, "cpu");
    EXPECT_EQ(placed->modules[i].activations, Format::f32);
    const bool norm = model.modules[i].cls == models::ModuleClass::Norm;
    EXPECT_EQ(placed->modules[i].weights, norm ? Format::f32 : Format::bf16) << model.modules[i].name;
  }
  EXPECT_EQ(placed->kv_device, "cpu");
  EXPECT_TRUE(placed->notes.empty());
  // 8 sequences of 2048 tokens, 8 layers of 2 heads of 64, keys and values in f32
  EXPECT_EQ(total(*placed, "kv-cache"), 8u * 2048 * 8 * 2 * 64 * 2 * 4);
}

// Rows of the demo's matrices are multiples of 64 bytes, so packed weights have the checkpoint's size, except that norm
// weights are widened to f32.
TEST(DemoTest, WeightsAddUpToTheCheckpoint) {
  const models::ModelDesc model = demo();
  const auto policy = read_policy(KTC_SOURCE_DIR "/placement/policies/cpu.yaml");
  const auto placed = place(model, *policy, host_target());
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  std::uint64_t expected = 0;
  for (const models::Tensor& tensor : model.tensors)
    expected += tensor.shape.size() == 1 ? 2 * tensor.bytes : tensor.bytes;
  EXPECT_EQ(total(*placed, "weights"), expected);
}

TEST(DemoTest, EveryPolicyOnEveryTargetPlacesOrNamesTheMissingDevice) {
  const models::ModelDesc model = demo();
  int placed = 0, refused = 0;
  for (const auto& p : std::filesystem::directory_iterator(KTC_SOURCE_DIR "/placement/policies")) {
    for (const auto& t : std::filesystem::directory_iterator(KTC_SOURCE_DIR "/placement/targets")) {
      SCOPED_TRACE(p.path().filename().string() + " on " + t.path().filename().string());
      const auto policy = read_policy(p.path());
      const auto target = read_target(t.path());
      ASSERT_TRUE(policy.ok() && target.ok());
      const Policy there = for_target(*policy, *target);  // any-machine.yaml takes what there is
      const auto result = place(model, there, *target);
      bool wants_gpu = false;
      for (const Rule& rule : there.rules) wants_gpu = wants_gpu || rule.place.device != "cpu";
      if (wants_gpu && target->gpus.empty()) {
        ASSERT_FALSE(result.ok());
        EXPECT_NE(result.status().message().find("a device that target '" + target->name + "' does not have"),
                  std::string::npos)
            << result.status().message();
        ++refused;
      } else {
        EXPECT_TRUE(result.ok()) << result.status().message();
        ++placed;
      }
    }
  }
  EXPECT_GE(placed, 8);
  EXPECT_GE(refused, 1);
}

TEST(DemoTest, HybridPutsTheBusyPartsOnTheGpuAndATenthOfTheExperts) {
  const models::ModelDesc model = demo();
  const auto policy = read_policy(KTC_SOURCE_DIR "/placement/policies/hybrid.yaml");
  const auto target = read_target(KTC_SOURCE_DIR "/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml");
  const auto placed = place(model, *policy, *target);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  for (std::size_t i = 0; i < model.modules.size(); ++i)
    EXPECT_EQ(placed->modules[i].device, model.modules[i].cls == models::ModuleClass::RoutedExperts ? "cpu" : "cuda:0");
  std::size_t hot = 0;
  for (const HotExperts& layer : placed->hot) hot += layer.ids.size();
  EXPECT_EQ(hot, 8u * 32 / 10);
}

// What hybrid.yaml's header promises: 48 layers of 128 experts, 30.5e9 parameters, on the 24 GB card.
TEST(DemoTest, HybridFitsA30BModelOnA24GbCard) {
  const models::ModelDesc model = test::build_model({.layers = 48,
                                                     .hidden = 2048,
                                                     .vocab = 151936,
                                                     .heads = 32,
                                                     .kv_heads = 4,
                                                     .head_dim = 128,
                                                     .experts = 128,
                                                     .top_k = 8,
                                                     .intermediate = 768});
  const auto policy = read_policy(KTC_SOURCE_DIR "/placement/policies/hybrid.yaml");
  const auto target = read_target(KTC_SOURCE_DIR "/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml");
  const auto placed = place(model, *policy, *target);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_EQ(total(*placed, "kv-cache"), std::uint64_t{4 * 16384 + 16} * 48 * 2 * 4 * 128 * 2) << "a page more";
  EXPECT_GT(total(*placed, "hot-experts"), std::uint64_t{5} << 30);
  EXPECT_TRUE(placed->notes.empty());
  std::uint64_t cold = 0;
  for (const MemoryLine& line : placed->memory)
    if (line.device == "cpu" && line.category == "weights") cold += line.bytes;
  EXPECT_EQ(cold + total(*placed, "hot-experts"), std::uint64_t{48} * 128 * 3 * 768 * 2048 * 2);
}

}  // namespace
}  // namespace ktc::placement
