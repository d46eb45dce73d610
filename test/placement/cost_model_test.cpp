// The cost model against figures that were computed or measured elsewhere, and properties that every prediction keeps.
#include "placement/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;

const test::ModelShape kQwen30{.layers = 48, .hidden = 2048, .vocab = 151936, .heads = 32, .kv_heads = 4, .head_dim = 128,
                               .experts = 128, .top_k = 8, .intermediate = 768};

// Rates of the roofline tables: 160 GB/s, 4300 GB/s, 6 us a hand-off; everything else at its limit.
Target roofline() {
  Target target;
  target.name = "roofline";
  target.cpu.cores = 1;  // one thread reads logits at the whole rate
  target.cpu.read_gb_per_s = 160, target.cpu.vnni_tops = 1e6, target.cpu.kernel_us = 1e-9;
  target.cpu.cache_gb_per_s = 160, target.cpu.attention_tflops = 1e6, target.cpu.value_ns = 1e-9, target.cpu.step_us = 1e-9;
  GpuTarget gpu;
  gpu.device = "cuda:0", gpu.name = "g", gpu.sm = 90, gpu.memory = std::uint64_t{139} << 30;
  gpu.read_gb_per_s = 4300, gpu.pcie_gb_per_s = 1e6, gpu.bf16_tflops = 592, gpu.kernel_us = 1e-9, gpu.handoff_us = 6;
  gpu.attention_tflops = 592, gpu.attention_efficiency = 1, gpu.handoff_gb_per_s = 1e6, gpu.step_us = gpu.column_ns = 1e-9;
  gpu.prefill_kernel_us = gpu.prefill_column_ns = 1e-9;
  for (const Format f : {Format::f32, Format::bf16, Format::fp8, Format::int8, Format::int4})
    target.cpu.read_efficiency[f] = target.cpu.many_rows_efficiency[f] = target.cpu.matrix_efficiency[f] = gpu.read_efficiency[f] = gpu.matrix_efficiency[f] = 1;
  target.gpus.push_back(gpu);
  return target;
}

struct Plan {
  ModelDesc model;
  Policy policy;
  std::vector<ModulePlacement> modules;
  std::vector<HotExperts> hot;
  Target target = roofline();
  ExpertCounts counts;

  explicit Plan(const test::ModelShape& shape, Format experts = Format::int4, const std::string& dense_device = "cuda:0")
      : model(test::build_model(shape)) {
    policy.kv_cache.tokens = 8192;
    for (const models::Module& module : model.modules) {
      ModulePlacement placed;
      const bool routed = module.cls == models::ModuleClass::RoutedExperts;
      placed.device = routed ? "cpu" : dense_device;
      placed.weights = routed ? experts : Format::bf16;
      placed.group = placed.weights == Format::int4 ? 64 : 0;
      placed.activations = placed.weights == Format::bf16 ? Format::bf16 : Format::int8;
      modules.push_back(placed);
    }
  }
  // The first `n` ids of every MoE layer.
  Plan& with_hot(std::uint32_t n, const std::string& device = "cuda:0") {
    hot.clear();
    for (std::uint32_t i = 0; i < model.modules.size() && n > 0; ++i) {
      if (model.modules[i].cls != models::ModuleClass::RoutedExperts) continue;
      HotExperts layer{i, device, modules[i].weights, Format::bf16, {}, modules[i].group};
      layer.ids.resize(n);
      std::iota(layer.ids.begin(), layer.ids.end(), 0u);
      hot.push_back(std::move(layer));
    }
    return *this;
  }
  Prediction predict() const {
    auto model_of = CostModel::create(model, modules, policy, target, counts);
    EXPECT_TRUE(model_of.ok()) << model_of.status().message();
    auto prediction = model_of->predict(hot);
    EXPECT_TRUE(prediction.ok()) << prediction.status().message();
    return *prediction;
  }
  StepCost first() const { return predict().steps.front(); }
};

// The limits of a 30B model with 3B active, context 4096, INT4 experts and BF16 elsewhere, computed by hand from the sizes:
// 6.02 ms of CPU, 0.67 ms of dense work, 48 hand-offs of 6 us; half of the experts hot; and all of them.
TEST(CostModelTest, RooflineOfAThirtyBillionModel) {
  Plan plan(kQwen30);
  EXPECT_NEAR(plan.first().tokens_per_second, 143, 143 * 0.02);
  EXPECT_NEAR(plan.first().parts.cpu_experts, 6020, 60);
  EXPECT_EQ(plan.first().bound, Bound::cpu_read);
  EXPECT_NEAR(plan.with_hot(64).first().tokens_per_second, 252, 252 * 0.03);
  EXPECT_NEAR(plan.with_hot(128).first().tokens_per_second, 1124, 1124 * 0.03);
  EXPECT_EQ(plan.first().bound, Bound::gpu_read);
  EXPECT_NEAR(plan.first().hit_rate, 1, 1e-9);
  EXPECT_NEAR(plan.first().cold_experts, 0, 1e-9);
  Plan int8(kQwen30, Format::int8), bf16(kQwen30, Format::bf16);
  EXPECT_NEAR(int8.first().tokens_per_second, 81, 81 * 0.03);
  EXPECT_NEAR(bf16.first().tokens_per_second, 42, 42 * 0.03);
}

// Batches: 143, 173, 249 tokens a second at 1, 4 and 16 rows.
TEST(CostModelTest, RooflineOfBatches) {
  Plan plan(kQwen30);
  plan.policy.batch.decode = {1, 4, 16};
  const Prediction p = plan.predict();
  ASSERT_EQ(p.steps.size(), 4u);
  EXPECT_EQ(p.steps[1].entry, "decode[4]");
  EXPECT_NEAR(p.steps[1].tokens_per_second, 173, 173 * 0.04);
  EXPECT_NEAR(p.steps[2].tokens_per_second, 249, 249 * 0.04);
  EXPECT_NEAR(p.steps[1].cold_experts, 128 * (1 - std::pow(1 - 8.0 / 128, 4)), 1e-6);
}

// Every expert late: the longer of CPU and GPU, and what cannot overlap at both ends.
TEST(CostModelTest, DeferralTendsToTheLongerChain) {
  Plan plan(kQwen30);
  const StepCost serial = plan.first();
  double last = serial.us;
  for (std::uint32_t late = 1; late <= 8; ++late) {
    plan.policy.defer.max_per_token = late;
    const StepCost step = plan.first();
    EXPECT_LE(step.us, last * (1 + 1e-9)) << late;
    EXPECT_GE(step.us, step.parts.cpu_experts);
    last = step.us;
  }
  EXPECT_NEAR(1e6 / last, 166, 166 * 0.05);
  // with few hot experts on a slow CPU no more than the GPU's share can be hidden
  EXPECT_GE(last, serial.us - serial.parts.gpu_attention - serial.parts.gpu_dense - serial.parts.head - serial.parts.handoff - 1);
}

// Expert layers as ktc-bench measured them on the 16-core Emerald Rapids, one scale of activations per 64: us at so many tokens per
// expert. The rates are those of the same call; the efficiencies of tiles are those that ktc probe makes of 64 tokens.
TEST(CostModelTest, MeasuredExpertLayers) {
  struct Case {
    Format format;
    double us[8];
  };
  const Case cases[] = {{Format::int8, {272.3, 282.0, 294.2, 322.2, 2851.8, 3583.3, 5339.8, 9101.2}},
                        {Format::int4, {161.0, 162.0, 175.1, 221.3, 2081.0, 3065.5, 5215.5, 9186.5}}};
  const std::uint32_t per_expert[] = {1, 2, 4, 8, 16, 32, 64, 128};
  const auto shipped = read_target(KTC_SOURCE_DIR "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  ASSERT_TRUE(shipped.ok()) << shipped.status().message();
  for (const Case& c : cases)
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t experts = per_expert[i] >= 16 ? 64 : 8;
      Plan plan({.layers = 1, .hidden = 2048, .experts = experts, .top_k = experts, .intermediate = 768}, c.format);
      plan.policy.batch.decode = {per_expert[i]};
      plan.target = *shipped;
      plan.target.cpu.l3_bytes = 0;  // the benchmark's weights are gigabytes
      plan.target.cpu.read_gb_per_s = 149.3, plan.target.cpu.vnni_tops = 6.8, plan.target.cpu.amx_int8_tops = 33.2;
      plan.target.cpu.read_efficiency[Format::int8] = 0.948, plan.target.cpu.read_efficiency[Format::int4] = 0.829;
      plan.target.cpu.matrix_efficiency[Format::int8] = 0.307, plan.target.cpu.matrix_efficiency[Format::int4] = 0.287;
      plan.target.cpu.many_rows_efficiency = plan.target.cpu.matrix_efficiency;
      EXPECT_NEAR(plan.first().parts.cpu_experts, c.us[i], c.us[i] * 0.15) << to_string(c.format) << " " << per_expert[i];
    }
}

// docs/performance.md, 64 experts of Qwen3-30B in int8: 0.69 of the read rate at 16 tokens and 8.2 TOPS at 256 with a scale per 64
// inputs, 0.80 to 0.85 and 13.1 TOPS with a scale per row.
TEST(CostModelTest, ShippedRatesAreThoseOfTheTables) {
  const auto shipped = read_target(KTC_SOURCE_DIR "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  ASSERT_TRUE(shipped.ok()) << shipped.status().message();
  Plan plan({.layers = 1, .hidden = 2048, .experts = 64, .top_k = 64, .intermediate = 768}, Format::int8);
  plan.target = *shipped;
  plan.target.cpu.l3_bytes = 0;  // the benchmark's weights are gigabytes
  plan.policy.batch.decode = {16, 256};
  const double parameters = 64.0 * 3 * 2048 * 768;
  for (const std::uint32_t group : {64u, 0u}) {
    plan.policy.activation_group = group;
    const Prediction p = plan.predict();
    const double of_read = parameters / (p.steps[0].parts.cpu_experts * shipped->cpu.read_gb_per_s * 1e3);
    const double tops = 2 * 256 * parameters / p.steps[1].parts.cpu_experts / 1e6;
    EXPECT_NEAR(of_read, group == 64 ? 0.69 : 0.82, 0.12);
    EXPECT_NEAR(tops, group == 64 ? 8.2 : 13.1, 1.7);
  }
}

TEST(CostModelTest, CountsDecideHitsAndExpertsTouched) {
  Plan plan({.layers = 2, .experts = 4, .top_k = 2});
  plan.counts = {{6, 2, 0, 0}, {1, 1, 1, 1}};
  plan.with_hot(1);
  // layer 0: expert 0 is taken by every token (6/8 of two picks, at most 1), expert 1 by half; layer 1: all by half
  const StepCost step = plan.first();
  EXPECT_NEAR(step.hit_rate, (1.0 + 0.5) / (1.5 + 2), 1e-9);
  EXPECT_NEAR(step.cold_experts, (0.5 + 1.5) / 2, 1e-9);
}

TEST(CostModelTest, PropertiesOfEveryPrediction) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    test::ModelShape shape;
    shape.layers = 1 + random() % 5, shape.experts = 2 + random() % 30;
    shape.mla = random() % 2, shape.shared_expert = random() % 2;
    shape.top_k = 1 + random() % shape.experts;
    shape.hidden = 64 << random() % 4;
    shape.dense_layers = random() % shape.layers;
    Plan plan(shape, random() % 2 ? Format::int8 : Format::int4, random() % 4 == 0 ? "cpu" : "cuda:0");
    plan.policy.batch.decode = {1, 2, 5};
    plan.policy.batch.stream_chunk = random() % 2 ? 0 : 1024;
    plan.policy.defer.max_per_token = random() % 3;
    plan.policy.defer.extend = random() % 2;
    plan.target.cpu.read_gb_per_s = 1 + random() % 500;
    plan.target.gpus[0].read_gb_per_s = 100 + random() % 4000;
    plan.target.gpus[0].kernel_us = 1, plan.target.cpu.kernel_us = 1;
    plan.target.gpus[0].pcie_gb_per_s = 1 + random() % 50;
    for (std::uint32_t l = shape.dense_layers; l < shape.layers; ++l) {
      auto& row = plan.counts.emplace_back();
      for (std::uint32_t e = 0; e < shape.experts; ++e) row.push_back(random() % 100);
    }
    plan.with_hot(random() % shape.experts);
    const Prediction p = plan.predict();
    EXPECT_TRUE(p.notes.empty()) << p.notes.front();
    for (const StepCost& step : p.steps) {
      SCOPED_TRACE(step.entry);
      EXPECT_GT(step.us, 0);
      EXPECT_TRUE(std::isfinite(step.us));
      EXPECT_NEAR(std::accumulate(step.critical.begin(), step.critical.end(), 0.0), step.us, step.us * 1e-9);
      EXPECT_NEAR(step.tokens_per_second, step.rows * 1e6 / step.us, 1e-6 * step.tokens_per_second);
      for (const double part : step.critical) EXPECT_LE(part, step.critical[static_cast<std::size_t>(step.bound)]);
      EXPECT_GE(step.hit_rate, 0);
      EXPECT_LE(step.hit_rate, 1 + 1e-12);
    }
    // more rows take longer, and less per token
    for (std::size_t i = 1; i < 3; ++i) {
      EXPECT_GE(p.steps[i].us, p.steps[i - 1].us * (1 - 1e-9));
      EXPECT_GE(p.steps[i].cold_experts, p.steps[i - 1].cold_experts - 1e-9);
    }
    // a faster machine is not slower, deferral never costs
    Plan faster = plan;
    faster.target.cpu.read_gb_per_s *= 2, faster.target.gpus[0].read_gb_per_s *= 2;
    Plan undeferred = plan;
    undeferred.policy.defer.max_per_token = 0;
    const Prediction f = faster.predict(), u = undeferred.predict();
    for (std::size_t i = 0; i < p.steps.size(); ++i) {
      EXPECT_LE(f.steps[i].us, p.steps[i].us * (1 + 1e-9));
      EXPECT_LE(p.steps[i].us, u.steps[i].us * (1 + 1e-9)) << plan.policy.defer.max_per_token;
    }
  }
}

// Nothing gets faster by more to read, to compute or to look at: bytes of the weights, rows, context, layers, width.
TEST(CostModelTest, MoreWorkTakesLonger) {
  std::mt19937 random(11);
  const auto shipped = read_target(KTC_SOURCE_DIR "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  ASSERT_TRUE(shipped.ok()) << shipped.status().message();
  for (int round = 0; round < 60; ++round) {
    test::ModelShape shape;
    shape.layers = 1 + random() % 4, shape.experts = 4 + random() % 30, shape.top_k = 1 + random() % 4;
    shape.mla = random() % 2, shape.hidden = 128 << random() % 4, shape.intermediate = 64 << random() % 4;
    const std::string device = random() % 3 == 0 ? "cpu" : "cuda:0";
    const auto made = [&](const test::ModelShape& of, Format format, std::uint32_t context, std::uint32_t chunk) {
      Plan plan(of, format, device);
      plan.target = *shipped;
      plan.target.cpu.l3_bytes = random() % 2 ? 0 : std::uint64_t{64} << 20;
      plan.policy.kv_cache.tokens = 2 * context;
      plan.policy.batch.chunk = chunk;
      return plan;
    };
    const std::uint64_t seed = random();
    const auto us = [&](const test::ModelShape& of, Format format, std::uint32_t context, std::uint32_t chunk) {
      random.seed(static_cast<std::mt19937::result_type>(seed));  // the same cache
      const Prediction p = made(of, format, context, chunk).predict();
      return std::pair{p.steps.front().us, p.steps.back().us};
    };
    const auto base = us(shape, Format::int4, 1000, 256);
    const auto at_least = [&](std::pair<double, double> more, const char* what) {
      EXPECT_GE(more.first, base.first * (1 - 1e-9)) << what;
      EXPECT_GE(more.second, base.second * (1 - 1e-9)) << what;
    };
    EXPECT_GT(us(shape, Format::int4, 9000, 256).first, base.first);
    EXPECT_GT(us(shape, Format::int4, 1000, 512).second, base.second);
    EXPECT_GE(us(shape, Format::int8, 1000, 256).first, base.first * (1 - 1e-9));
    test::ModelShape more = shape;
    ++more.layers;
    at_least(us(more, Format::int4, 1000, 256), "layers");
    more = shape, more.intermediate *= 2;
    at_least(us(more, Format::int4, 1000, 256), "intermediate");
    more = shape, more.hidden *= 2;
    at_least(us(more, Format::int4, 1000, 256), "hidden");
    random.seed(static_cast<std::mt19937::result_type>(seed + 1));
  }
}

// Many rows of one expert and few of the others: the same pairs, other kernels, and fewer experts to read.
TEST(CostModelTest, RowsOfEveryExpertDecide) {
  Plan even({.layers = 1, .hidden = 2048, .experts = 64, .top_k = 4, .intermediate = 768}, Format::int8);
  even.policy.batch.chunk = 256;
  Plan uneven = even;
  uneven.counts = {std::vector<std::uint64_t>(64, 1)};
  for (int e = 0; e < 4; ++e) uneven.counts[0][e] = 1000;
  const StepCost a = even.predict().steps.back(), b = uneven.predict().steps.back();
  EXPECT_NEAR(a.cold_experts, 64, 0.1);
  EXPECT_LT(b.cold_experts, 50);
  EXPECT_LT(b.parts.cpu_experts, a.parts.cpu_experts);
  uneven.counts = {std::vector<std::uint64_t>(64, 7)};
  EXPECT_NEAR(uneven.predict().steps.back().us, a.us, 1e-6 * a.us);
}

// A model that a cache holds is read from there, one that is a little larger is not.
TEST(CostModelTest, CachesHoldSmallModels) {
  Plan plan({.layers = 4, .hidden = 512, .experts = 16, .top_k = 4, .intermediate = 256}, Format::int8, "cpu");
  plan.target.cpu.cache_gb_per_s = 1600;
  const double from_memory = plan.first().us;
  plan.target.cpu.l3_bytes = std::uint64_t{1} << 30;
  EXPECT_NEAR(plan.first().us, from_memory / 10, from_memory * 0.02);
  plan.target.cpu.l3_bytes = std::uint64_t{8} << 20;
  EXPECT_NEAR(plan.first().us, from_memory, from_memory * 1e-6);
}

// Fixed times: of every kernel, more where rows are wide, those of prompts for themselves, and one of the step.
TEST(CostModelTest, FixedTimesAreThoseOfTheStep) {
  Plan plan({.layers = 8, .hidden = 1024, .experts = 8, .top_k = 2, .intermediate = 64}, Format::bf16);
  plan.with_hot(8);
  GpuTarget& gpu = plan.target.gpus[0];
  const Prediction none = plan.predict();
  gpu.kernel_us = 2, gpu.column_ns = 1;
  const Prediction few = plan.predict();
  const double kernels = few.steps[0].parts.kernels - none.steps[0].parts.kernels;
  EXPECT_NEAR(few.steps[0].us - none.steps[0].us, kernels, 1e-6 * kernels);
  EXPECT_NEAR(few.steps.back().us, none.steps.back().us, 1e-6 * none.steps.back().us);
  EXPECT_NEAR(std::remainder(kernels, 2 + 1.024), 0, 1e-4);
  gpu.prefill_kernel_us = 2 + 1.024;
  const Prediction launched = plan.predict();
  EXPECT_NEAR(launched.steps.back().us - none.steps.back().us, kernels, 1e-6 * kernels);  // as many kernels
  gpu.prefill_kernel_us = 1e-9, gpu.prefill_column_ns = 1000;  // the routers', longer than what they compute
  EXPECT_NEAR(plan.predict().steps.back().us - none.steps.back().us, 8 * 1024, 8 * 10);
  gpu.prefill_column_ns = 1e-3;  // shorter
  const Prediction many = plan.predict();
  EXPECT_LT(many.steps.back().us - none.steps.back().us, 1);
  gpu.step_us = 77;
  const Prediction step = plan.predict();
  for (std::size_t i = 0; i < step.steps.size(); ++i) EXPECT_NEAR(step.steps[i].us - many.steps[i].us, 77, 1e-6);
}

// The bytes of records and results at their own rate: 2 and 16 / 6 a column.
TEST(CostModelTest, WorkersWaitAtTheEndsOfProductsOfFewRows) {
  Plan plan(kQwen30);
  plan.policy.batch.decode = {1, 4};
  const Prediction before = plan.predict();
  plan.target.cpu.product_us = 7;
  const Prediction after = plan.predict();
  // experts are two products one behind the other, in each of 48 layers; prompts keep theirs in their efficiencies
  EXPECT_NEAR(after.steps[0].us - before.steps[0].us, 48 * 2 * 7, 1e-6);
  EXPECT_NEAR(after.steps[1].us - before.steps[1].us, 48 * 2 * 7, 1e-6);
  EXPECT_EQ(after.steps[2].us, before.steps[2].us);
  // never more than the products take by themselves
  plan.target.cpu.product_us = 1e6;
  EXPECT_NEAR(plan.first().parts.cpu_experts, 2 * before.steps[0].parts.cpu_experts, 1e-6);
  // on a CPU alone: attention's two, the router, the experts' two and the head
  Plan alone(kQwen30, Format::int8, "cpu");
  const double without = alone.first().us;
  alone.target.cpu.product_us = 0.5;
  EXPECT_NEAR(alone.first().us - without, 48 * 5 * 0.5 + 0.5, 1e-6);
}

TEST(CostModelTest, PromptsPrepareTheirRowsOnceForAllExperts) {
  Plan plan(kQwen30);
  plan.policy.batch.chunk = 512;
  plan.target.cpu.isa = {"amx_tile", "amx_int8"};
  plan.target.cpu.amx_int8_tops = 30;
  const double before = plan.predict().steps.back().parts.cpu_experts;
  plan.target.cpu.value_ns = 2;  // tiles' values are part of their efficiency, so this is all of it, on one core
  EXPECT_NEAR(plan.predict().steps.back().parts.cpu_experts - before, 48 * 512 * 2048 * 2e-3, 1);
  const Plan half = plan.with_hot(64);
  EXPECT_GT(half.predict().steps.back().parts.cpu_experts, before / 2 + 48 * 512 * 2048 * 2e-3 - 1);
}

TEST(CostModelTest, LinearLayersHaveAnEfficiencyOfTheirOwn) {
  Plan plan(kQwen30, Format::int8, "cpu");
  for (ModulePlacement& module : plan.modules) module.weights = module.activations = Format::int8;
  plan.policy.batch.chunk = 256;
  plan.target.cpu.isa = {"amx_tile", "amx_int8"};
  plan.target.cpu.amx_int8_tops = 30;
  const Prediction before = plan.predict();
  plan.target.cpu.linear_efficiency[Format::int8] = 0.25;
  const Prediction after = plan.predict();
  EXPECT_EQ(after.steps[0].us, before.steps[0].us);  // one row: not in tiles
  EXPECT_EQ(after.steps[1].parts.cpu_experts, before.steps[1].parts.cpu_experts);
  // q, k, v and o: 2048 x (4096 + 2 x 512) and 4096 x 2048, and the router; at 30 TOPS, eight rows of a tile's start
  const double us = 48.0 * 256 * 2 * 2048 * (4096 + 1024 + 4096 + 128) / 30e6 * (256 + 8) / 256;
  EXPECT_NEAR(after.steps[1].parts.cpu_other - before.steps[1].parts.cpu_other, 3 * us, 1e-3 * us);
}

TEST(CostModelTest, AWorkerChoosesTheExpertsOfARow) {
  Plan plan(kQwen30, Format::int8, "cpu");
  plan.target.cpu.value_ns = 10;
  const StepCost one = plan.first();
  plan.target.cpu.cores = 16;  // and all else equal: values of products are shared by sixteen, the choice is not
  const StepCost sixteen = plan.first();
  EXPECT_GT(one.parts.cpu_other, sixteen.parts.cpu_other);
  EXPECT_GT(sixteen.parts.cpu_other, 48 * 128 * 12 * 10e-3);
}

TEST(CostModelTest, WideRowsAreHandedOffLonger) {
  Plan plan({.layers = 3, .hidden = 2048, .experts = 8, .top_k = 2, .intermediate = 64}, Format::int4);
  const double fast = plan.first().us;
  plan.target.gpus[0].handoff_gb_per_s = 2;
  EXPECT_NEAR(plan.first().us - fast, 3 * 2048 * (2 + 16.0 / 6) / 2000, 0.1);
}

TEST(CostModelTest, WithoutDeferralLayersAddUp) {
  Plan plan({.layers = 4, .experts = 8, .top_k = 2});
  plan.policy.batch.decode = {1, 4};
  plan.with_hot(3);
  const auto model = CostModel::create(plan.model, plan.modules, plan.policy, plan.target, {});
  ASSERT_TRUE(model.ok());
  auto layers = [&](const std::vector<HotExperts>& hot) {
    double sum = 0;
    for (const HotExperts& layer : hot) sum += model->layer_us_per_token(layer.module, {layer}, *model->hot_expert_bytes(layer));
    return sum;
  };
  const std::vector<HotExperts> three = plan.hot, five = plan.with_hot(5).hot;
  EXPECT_NEAR(*model->us_per_token(three) - *model->us_per_token(five), layers(three) - layers(five), 1e-9);
}

// In prompts as well: the CPU begins with its rows while the GPU computes hot experts.
TEST(CostModelTest, HotAndColdExpertsOfAPromptRunBesideEachOther) {
  Plan plan(kQwen30);
  plan.policy.batch.chunk = 2048;
  const StepCost prompt = plan.with_hot(64).predict().steps.back();
  const StepParts& p = prompt.parts;
  ASSERT_GT(p.gpu_hot, prompt.us / 100);
  const double one_by_one = p.cpu_experts + p.cpu_other + p.gpu_attention + p.gpu_dense + p.gpu_hot + p.head + p.handoff + p.pcie + p.kernels;
  EXPECT_LT(prompt.us, one_by_one - 0.9 * std::min(p.gpu_hot, p.cpu_experts));
}

TEST(CostModelTest, BoundsNameWhatIsSlow) {
  Plan plan(kQwen30);
  plan.target.gpus[0].handoff_us = 1000;
  EXPECT_EQ(plan.first().bound, Bound::handoff);
  plan.target = roofline();
  plan.target.gpus[0].read_gb_per_s = 10;
  EXPECT_EQ(plan.first().bound, Bound::gpu_read);
  plan.target = roofline();
  plan.target.cpu.vnni_tops = 0.01;
  EXPECT_EQ(plan.first().bound, Bound::cpu_compute);
  plan.target = roofline();
  plan.target.gpus[0].kernel_us = 100;
  EXPECT_EQ(plan.first().bound, Bound::kernels);
  plan.target = roofline();
  plan.target.gpus[0].pcie_gb_per_s = 55;
  plan.policy.batch.stream_chunk = 2048;
  const Prediction p = plan.predict();
  EXPECT_EQ(p.steps.back().entry, "stream[2048]");
  EXPECT_EQ(p.steps.back().bound, Bound::pcie);
  EXPECT_NEAR(p.steps.back().tokens_per_second, 7380, 7380 * 0.03);  // 15.4 GB over 55.5 GB/s for 2048 tokens
  plan.target.gpus[0].bf16_tflops = 1;
  EXPECT_EQ(plan.predict().steps.back().bound, Bound::gpu_compute);
}

TEST(CostModelTest, ACpuAloneHasNoHandOff) {
  Plan plan(kQwen30, Format::int4, "cpu");
  const StepCost step = plan.first();
  EXPECT_EQ(step.parts.handoff, 0);
  EXPECT_EQ(step.parts.pcie, 0);
  EXPECT_EQ(step.parts.gpu_dense, 0);
  EXPECT_NEAR(step.us, step.parts.cpu_experts + step.parts.cpu_other + step.parts.head + step.parts.kernels, 1e-6 * step.us);
}

TEST(CostModelTest, TwoGpusShareALayersExperts) {
  Plan plan({.layers = 2, .hidden = 1024, .experts = 16, .top_k = 8, .intermediate = 512}, Format::bf16);
  plan.target.gpus.push_back(plan.target.gpus[0]);
  plan.target.gpus[1].device = "cuda:1";
  plan.target.gpus[0].read_gb_per_s = plan.target.gpus[1].read_gb_per_s = 20;  // reading decides
  plan.target.gpus[0].handoff_us = plan.target.gpus[1].handoff_us = 1;
  plan.with_hot(16);
  const double one = plan.first().us;
  std::vector<HotExperts> both;
  for (HotExperts layer : plan.hot) {
    HotExperts other = layer;
    other.device = "cuda:1";
    other.ids.assign(layer.ids.begin() + 8, layer.ids.end());
    layer.ids.resize(8);
    both.push_back(layer);
    both.push_back(other);
  }
  plan.hot = both;
  EXPECT_LT(plan.first().us, one);
  EXPECT_NEAR(plan.first().hit_rate, 1, 1e-9);
}

TEST(CostModelTest, AssumedRatesAreNoted) {
  Plan plan({.layers = 1});
  plan.target.cpu.read_gb_per_s = 0;
  plan.target.cpu.kernel_us = 0;
  plan.target.gpus[0].read_efficiency.erase(Format::int4);
  const Prediction p = plan.predict();
  ASSERT_EQ(p.notes.size(), 2u);
  EXPECT_EQ(p.notes[0],
            "the target states no read_gb_per_s, kernel_us of cpu: predictions assume some; ktc probe measures them");
  EXPECT_EQ(p.notes[1],
            "the target states no read_efficiency of cuda:0: predictions assume some; ktc probe measures them");
}

}  // namespace
}  // namespace ktc::placement
