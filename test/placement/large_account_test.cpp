// The account of a model of 671 billion parameters from headers alone: FP8 with scales in 163 files, as it is released.
#include <gtest/gtest.h>

#include <ctime>

#include "models/read_model.h"
#include "placement/cost_model.h"
#include "placement/place.h"
#include "test/support/fake_checkpoint.h"

namespace ktc::placement {
namespace {

test::FakeCheckpoint released() {
  test::FakeCheckpoint checkpoint = test::make_deepseek_v3({.layers = 61, .dense_layers = 3, .hidden = 7168, .heads = 128, .q_rank = 1536,
                                                            .kv_rank = 512, .nope = 128, .rope = 64, .v = 128, .experts = 256,
                                                            .top_k = 8, .groups = 8, .topk_groups = 4, .intermediate = 2048,
                                                            .dense_intermediate = 18432, .shared = 1, .vocab = 129280});
  std::vector<test::FakeTensor> scales;
  for (test::FakeTensor& tensor : checkpoint.tensors) {
    const bool kept = tensor.shape.size() != 2 || tensor.name.find("embed") != std::string::npos ||
                      tensor.name.find("lm_head") != std::string::npos || tensor.name.find("mlp.gate.") != std::string::npos;
    if (kept) continue;
    tensor.dtype = "F8_E4M3";
    scales.push_back({tensor.name + "_scale_inv", "F32", {(tensor.shape[0] + 127) / 128, (tensor.shape[1] + 127) / 128}});
  }
  checkpoint.tensors.insert(checkpoint.tensors.end(), scales.begin(), scales.end());
  checkpoint.config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  checkpoint.shards = 163;
  return checkpoint;
}

TEST(LargeAccountTest, OfAReleasedCheckpointTakesSeconds) {
  test::TemporaryFolder folder;
  const test::FakeCheckpoint checkpoint = released();
  EXPECT_GT(checkpoint.tensors.size(), 90000u);
  checkpoint.write(folder.path());

  const auto policy = parse_policy("version: 1\nrules:\n  - {match: {class: RoutedExperts}, place: {device: cpu, weights: int4}}\n"
                                   "  - {match: {class: \"*\"}, place: {device: cuda:0, weights: int8}}\n"
                                   "experts: {strategy: auto, on_gpu: 1%, gpu: {devices: [cuda:0], weights: int4}}\n"
                                   "kv_cache: {tokens: 8192}\n",
                                   "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  const auto target = read_target(KTC_SOURCE_DIR "/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml");
  ASSERT_TRUE(target.ok());
  // what everything takes is an error of memory, which has to come as fast
  const std::clock_t start = std::clock();
  const auto model = models::read_model(folder.path(), KTC_SOURCE_DIR "/models/families");
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto placed = place(*model, *policy, *target);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;  // of the processor: the machine may be busy
  EXPECT_LT(seconds, 10);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  std::uint64_t cold = 0, hot = 0, kv = 0;
  std::size_t count = 0;
  for (const MemoryLine& line : placed->memory) {
    if (line.device == "cpu" && line.category == "weights") cold += line.bytes;
    if (line.category == "hot-experts") hot += line.bytes;
    if (line.category == "kv-cache") kv += line.bytes;
  }
  for (const HotExperts& layer : placed->hot) count += layer.ids.size();
  EXPECT_LE(count, 58u * 256 / 100);
  // 58 layers of 256 experts of 3 * 2048 * 7168 weights, 4 bits and a bf16 scale for 64
  const std::uint64_t expert = std::uint64_t{3} * 2048 * 7168 * 17 / 32;
  EXPECT_EQ(cold, (58 * 256 - count) * expert);
  EXPECT_EQ(hot, count * expert);
  EXPECT_EQ(kv, std::uint64_t{(8192 + 16)} * 61 * (512 + 64) * 2);
  const auto cost = CostModel::create(*model, placed->modules, *policy, *target, {});
  ASSERT_TRUE(cost.ok());
  EXPECT_GT(cost->predict(placed->hot)->steps.front().tokens_per_second, 1);
}

}  // namespace
}  // namespace ktc::placement
