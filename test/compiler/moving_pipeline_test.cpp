// Policies with `update`: both sides of every layer that moves, what they hold, where they start and what that takes.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <stdexcept>

#include "compiler/emit/PlanBuilder.h"
#include "compiler/pipeline/Pipeline.h"
#include "dialects/kt/KtWalk.h"
#include "models/read_model.h"
#include "placement/place.h"

namespace ktc::compiler {
namespace {

const std::string kSource = KTC_SOURCE_DIR;

models::ModelDesc demo() {
  auto model = models::read_model(kSource + "/models/demo", kSource + "/models/families");
  if (!model.ok()) throw std::runtime_error(model.status().message());
  return std::move(*model);
}

placement::Target h200() {
  auto target = placement::read_target(kSource + "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  if (!target.ok()) throw std::runtime_error(target.status().message());
  return std::move(*target);
}

placement::Policy policy(const std::string& cold, const std::string& experts, const std::string& more = "") {
  auto policy = placement::parse_policy("version: 1\nrules:\n  - match: {class: RoutedExperts}\n    place: {device: cpu, " + cold +
                                            "}\n  - match: {class: \"*\"}\n    place: {device: \"cuda:0\"}\nexperts:\n  " + experts +
                                            "\n  update: {every_tokens: 256}\nkv_cache: {dtype: bf16, tokens: 256, sequences: 2, page: 16}\n"
                                            "batch: {decode: [1, 2], chunk: 64}\n" + more,
                                        "p.yaml");
  if (!policy.ok()) throw std::runtime_error(policy.status().message());
  return std::move(*policy);
}

class MovingTest : public ::testing::Test {
 protected:
  MovingTest() : context_(mlir::MLIRContext::Threading::DISABLED) {}

  Expected<mlir::OwningOpRef<mlir::ModuleOp>> lower(const placement::Policy& policy, std::vector<std::string> disabled = {}) {
    return compileTo(context_, model_, policy, h200(), {.disabled = std::move(disabled)});
  }
  std::string error(const placement::Policy& policy) {
    auto module = lower(policy);
    return module.ok() ? "compiled" : module.status().message();
  }
  PlanAndJobs plan(const placement::Policy& policy) {
    auto module = lower(policy);
    EXPECT_TRUE(module.ok()) << module.status().message();
    if (!module.ok()) return {};
    auto built = buildPlan(**module, model_);
    EXPECT_TRUE(built.ok()) << built.status().message();
    if (!built.ok()) return {};
    const Status status = plan::verify_plan(built->plan);
    EXPECT_TRUE(status.ok()) << status.message();
    std::map<std::string, std::uint64_t> reserved, found;  // by device
    auto bound = placement::place(model_, policy, h200());
    EXPECT_TRUE(bound.ok());
    for (const placement::MemoryLine& line : bound->memory)
      if (line.category != "context") reserved[line.device] += line.bytes;
    for (const auto& line : built->plan.account) found[built->plan.devices[line->device]->name] += line->bytes;
    for (const auto& [device, bytes] : found) EXPECT_LE(bytes, reserved[device]) << "placement reserved less for " << device;
    return std::move(*built);
  }

  mlir::MLIRContext context_;
  const models::ModelDesc model_ = demo();
};

TEST_F(MovingTest, TheCpuKeepsAllExpertsAndAGpuSome) {
  for (const char* format : {"weights: native", "weights: bf16", "weights: int8", "weights: int4, group: 32"}) {
    const PlanAndJobs built = plan(policy(format, std::string("on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"], ") + format + "}"));
    const planfb::PlanT& p = built.plan;
    EXPECT_EQ(p.update_every_tokens, 256u);
    ASSERT_EQ(p.moving.size(), 8u) << format;
    for (const auto& layer : p.moving) {
      const planfb::WeightT &cold = *p.weights[layer->w_cold_gate_up], &hot = *p.weights[layer->w_hot_gate_up];
      EXPECT_EQ(cold.batch, 32u);
      EXPECT_EQ(hot.batch, 8u);
      EXPECT_EQ(cold.format, hot.format);
    }
    EXPECT_GT(plan::spare_bytes(p, 1), 0u);
    std::map<std::string, std::size_t> matrices;  // that a job packs
    for (const FileJobs& file : built.files)
      for (const WeightJob& job : file.jobs) matrices[job.name] = job.matrices.empty() ? job.batch : job.matrices.size();
    EXPECT_EQ(matrices.at("model.layers.3.mlp.experts.gate_up"), 32u);
    EXPECT_EQ(matrices.at("model.layers.3.mlp.experts.hot.down"), 8u);
  }
}

TEST_F(MovingTest, LayersThatAreWhollyOnOneSideTakeNoPart) {
  const PlanAndJobs some = plan(policy("weights: bf16", "strategy: front-loading\n  on_gpu: 40%\n  gpu: {devices: [\"cuda:0\"], weights: bf16}"));
  ASSERT_EQ(some.plan.moving.size(), 1u) << "three layers are hot, four cold, and one is split";
  EXPECT_EQ(some.plan.moving[0]->layer, 3u);
  const PlanAndJobs none = plan(policy("weights: bf16", "strategy: front-loading\n  on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"], weights: bf16}"));
  EXPECT_TRUE(none.plan.moving.empty());
  EXPECT_EQ(none.plan.update_every_tokens, 0u);
}

TEST_F(MovingTest, WithoutTheSplitNothingMoves) {
  auto module = lower(policy("weights: bf16", "on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"], weights: bf16}"), {"split-experts"});
  ASSERT_TRUE(module.ok()) << module.status().message();
  auto built = buildPlan(**module, model_);
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE(plan::verify_plan(built->plan).ok()) << plan::verify_plan(built->plan).message();
  EXPECT_TRUE(built->plan.moving.empty());
}

TEST_F(MovingTest, LateExpertsMoveToo) {
  const PlanAndJobs built = plan(policy("weights: int8", "on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"], weights: int8}",
                                        "defer: {max_per_token: 2, phases: [decode], scope: all}\n"));
  EXPECT_EQ(built.plan.moving.size(), 8u);
}

TEST_F(MovingTest, TwoFormatsAreRefused) {
  EXPECT_EQ(error(policy("weights: int8", "on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"], weights: bf16}")),
            "p.yaml:8:3: experts that move at run time need one format, but those of 'model.layers.0.mlp.experts' have two: found bf16 on "
            "cuda:0, expected int8, group row as on cpu; give experts.gpu the weights and group of the rule, or remove update");
  EXPECT_EQ(error(policy("weights: int4, group: 32", "on_gpu: 25%\n  gpu: {devices: [\"cuda:0\"], weights: int4, group: 128}")),
            "p.yaml:8:3: experts that move at run time need one format, but those of 'model.layers.0.mlp.experts' have two: found int4, "
            "group 128 on cuda:0, expected int4, group 32 as on cpu; give experts.gpu the weights and group of the rule, or remove update");
}

}  // namespace
}  // namespace ktc::compiler
