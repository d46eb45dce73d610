// What plans of a GPU and a CPU need besides: formats of a GPU, statistics of experts, the lines of the account.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "placement/device_formats.h"
#include "placement/expert_statistics.h"
#include "placement/memory.h"
#include "placement/place.h"
#include "runtime/formats/expert_statistics.h"
#include "runtime/formats/gpu_rows.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;
using test::build_model;
using test::module_named;
using testing::ElementsAre;

constexpr char kTarget[] =
    "version: 1\nname: box\ncpu: {cores: 4, memory: 64GiB}\n"
    "gpus: [{device: cuda:0, name: g, sm: 80, memory: 8GiB, context: 100MiB}]\n";

Expected<Placement> place_text(const ModelDesc& model, const std::string& rules, const std::string& rest = {}) {
  const auto policy = parse_policy("version: 1\nrules:\n" + rules + rest, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return place(model, *policy, *parse_target(kTarget, "t.yaml"));
}
std::uint64_t bytes_of(const Placement& placement, std::string_view device, std::string_view category, std::string_view name = {}) {
  std::uint64_t sum = 0;
  for (const MemoryLine& line : placement.memory)
    if (line.device == device && line.category == category && (name.empty() || line.name == name)) sum += line.bytes;
  return sum;
}

constexpr char kHybrid[] =
    "  - {match: {class: RoutedExperts}, place: {device: cpu, weights: int4}}\n"
    "  - {match: {class: \"*\"}, place: {device: cuda:0, weights: int8}}\n";

TEST(HybridTest, AGpuTakesEveryWeightFormatWithF32OrBf16Activations) {
  for (const Format format : {Format::f32, Format::bf16, Format::fp8, Format::int8, Format::int4}) {
    EXPECT_TRUE(takes(formats_of("cuda:0").weights, format));
    EXPECT_EQ(default_activations("cuda:0", format), format == Format::f32 ? Format::f32 : Format::bf16);
    EXPECT_TRUE(takes(activations_for("cuda:0", format), Format::f32)) << "exact mode";
    EXPECT_EQ(takes(activations_for("cpu", format), Format::f32), !has_scales(format)) << "exact mode";
    EXPECT_TRUE(has_panels(format, default_activations("cpu", format)) || format == Format::f32);
    EXPECT_EQ(has_panels(format, Format::f32), has_scales(format)) << "rows in exact mode";
  }
  EXPECT_FALSE(takes(formats_of("cuda:0").activations, Format::int8));
  EXPECT_FALSE(takes(formats_of("cuda:0").caches, Format::int8));
}

TEST(HybridTest, WeightsOfAGpuAreInTheirPacking) {
  const ModelDesc model = build_model({.layers = 1, .shared_expert = true});
  const auto placed = place_text(model, kHybrid);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  const auto rows = [](std::uint64_t count, std::uint64_t columns) { return gpu_rows_layout(Format::int8, 0, count, columns)->matrix_bytes; };
  EXPECT_EQ(bytes_of(*placed, "cuda:0", "weights", "model.layers.0.mlp.shared_experts"), rows(64, 64) + rows(64, 32)) << "gate and up are one slot";
  EXPECT_EQ(bytes_of(*placed, "cuda:0", "weights", "model.embed_tokens"), 256u * 128) << "a lookup reads rows";
  EXPECT_EQ(bytes_of(*placed, "cuda:0", "weights", "lm_head"), rows(256, 64));
  EXPECT_EQ(bytes_of(*placed, "cpu", "weights"), 8u * 4 * (64 + 32 * 32));
}

TEST(HybridTest, HotExpertsHaveTheirOwnFormatAndGroup) {
  const ModelDesc model = build_model({.layers = 2});
  const auto placed = place_text(model, kHybrid, "experts: {on_gpu: 3, gpu: {devices: [cuda:0], weights: int4, group: 32}}\n");
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  ASSERT_EQ(placed->hot.size(), 2u);
  EXPECT_EQ(placed->hot[0].group, 32u);
  EXPECT_EQ(placed->hot[0].weights, Format::int4);
  EXPECT_EQ(placed->hot[0].activations, Format::bf16);
  const std::uint64_t expert = gpu_rows_layout(Format::int4, 32, 64, 64)->matrix_bytes + gpu_rows_layout(Format::int4, 32, 64, 32)->matrix_bytes;
  EXPECT_EQ(bytes_of(*placed, "cuda:0", "hot-experts"), 2u * 3 * expert);
  EXPECT_EQ(bytes_of(*placed, "cpu", "weights"), 2u * 5 * 4 * (64 + 32 * 32));
  const auto exact = place_text(model, kHybrid, "experts: {on_gpu: 3, gpu: {devices: [cuda:0], weights: f32, activations: f32}}\n");
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  EXPECT_EQ(exact->hot[0].activations, Format::f32);
  const ModelDesc fp8 = build_model({.layers = 1, .type = models::TensorType::f8_e4m3});
  EXPECT_EQ(place_text(fp8, kHybrid, "experts: {on_gpu: 3, gpu: {devices: [cuda:0]}}\n")->hot[0].weights, Format::fp8);
  EXPECT_EQ(place_text(fp8, kHybrid, "experts: {on_gpu: 3, gpu: {devices: [cuda:0], activations: f32}}\n")->hot[0].weights, Format::bf16);
}

TEST(HybridTest, EveryStrategyPlacesItsShare) {
  const ModelDesc model = build_model({.layers = 3});
  for (const char* strategy : {"uniform", "front-loading", "random"}) {
    const auto placed = place_text(model, kHybrid, std::string("experts: {strategy: ") + strategy + ", on_gpu: 50%, gpu: {devices: [cuda:0]}}\n"
                                   "defer: {max_per_token: 1, phases: [prefill, decode], scope: all}\n");
    ASSERT_TRUE(placed.ok()) << placed.status().message();
    std::size_t hot = 0;
    for (const HotExperts& layer : placed->hot) hot += layer.ids.size();
    EXPECT_EQ(hot, 12u) << strategy;
  }
}

TEST(HybridTest, AccountHasWhatTheHandOffAndTheDriverTake) {
  const ModelDesc model = build_model({.layers = 2});
  const std::string batch = "batch: {decode: [1, 4], chunk: 32}\nkv_cache: {tokens: 64, sequences: 4, page: 16}\n";
  const auto placed = place_text(model, kHybrid, batch);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  EXPECT_EQ(bytes_of(*placed, "cuda:0", "context"), 100u << 20);
  // 32 tokens are 128 bytes in six lists of which rows are 32 too; four sequences of four pages; and a block for each half of 16 tokens
  EXPECT_EQ(bytes_of(*placed, "cuda:0", "step-block"), 2u * 64 + 5 * 128 + 3 * 64 + 128 + 2 * (2u * 64 + 4 * 64 + 3 * 64 + 128));
  // per layer: x of 64 bf16 are 128 bytes, ids and weights of a token fill a line; two panels of six cells
  EXPECT_EQ(bytes_of(*placed, "cpu", "records"), 2u * ((64 + 64 + 64 + 128) + (64 + 64 + 64 + 4 * 128) + 5 * 2 * 6 * 16));
  EXPECT_EQ(bytes_of(*placed, "cpu", "context") + bytes_of(*placed, "cpu", "step-block"), 0u);
  const auto all_hot = place_text(model, kHybrid, batch + "experts: {on_gpu: 100%, gpu: {devices: [cuda:0]}}\n");
  EXPECT_EQ(bytes_of(*all_hot, "cpu", "records"), 0u) << "no layer needs the CPU";
  const auto cpu = place_text(model, "  - {match: {class: \"*\"}, place: {device: cpu}}\n", batch);
  for (const char* category : {"records", "context", "step-block"})
    EXPECT_EQ(bytes_of(*cpu, "cpu", category) + bytes_of(*cpu, "cuda:0", category), 0u) << category;
}

TEST(ExpertStatisticsTest, WhatIsWrittenIsRead) {
  const ExpertStatistics written{4096, {{3, {17, 0, 512}}, {11, {1, 2, 3}}}};
  EXPECT_EQ(to_json(written), "{\"tokens\": 4096, \"layers\": {\n\"3\": [17, 0, 512],\n\"11\": [1, 2, 3]\n}}\n");
  const auto read = parse_expert_statistics(to_json(written), "s.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, written.layers);
}

TEST(ExpertStatisticsTest, ErrorsSayWhatIsWrong) {
  const auto error = [](const char* text) { return parse_expert_statistics(text, "s.json").status().message(); };
  EXPECT_EQ(error("[]"), "s.json: expert statistics: found [], expected an object of layers and tokens; record it again with ktc-run --record-experts");
  EXPECT_EQ(error("{\"tokens\": 1}"), "s.json: layers: found nothing, expected an object of at least one layer; record it again with ktc-run --record-experts");
  EXPECT_THAT(error("{\"layers\": {\"x\": [1]}}"), testing::HasSubstr("s.json: layers: found key \"x\", expected numbers of layers"));
  EXPECT_THAT(error("{\"layers\": {\"01\": [1]}}"), testing::HasSubstr("expected numbers of layers"));
  EXPECT_THAT(error("{\"layers\": {\"1\": []}}"), testing::HasSubstr("s.json: layer 1: found [], expected a list of counts"));
  EXPECT_THAT(error("{\"layers\": {\"1\": [-1]}}"), testing::HasSubstr("s.json: layer 1: found -1, expected integers from 0"));
  EXPECT_THAT(error("{\"layers\": {\"1\": [1.5]}}"), testing::HasSubstr("expected integers from 0"));
  EXPECT_THAT(error("{\"layers\": {\"1\": [18446744073709551615, 1]}}"), testing::HasSubstr("s.json: sum of the counts"));
  EXPECT_THAT(error("{\"layer\": 1}"), testing::HasSubstr("s.json: unknown key: found \"layer\""));
  EXPECT_FALSE(parse_expert_statistics("{", "s.json").ok());
  EXPECT_EQ(read_expert_statistics("/nowhere/s.json").status().code(), StatusCode::not_found);
}

TEST(ExpertStatisticsTest, APolicyReadsThemFromItsFolder) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("ktc_statistics_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "p.yaml") << "version: 1\nrules:\n" << kHybrid
                                   << "experts: {strategy: frequency, statistics: s.json, on_gpu: 25%, gpu: {devices: [cuda:0]}}\n";
  const auto missing = read_policy(folder / "p.yaml");
  EXPECT_THAT(missing.status().message(), testing::HasSubstr("p.yaml:5:44: "));
  EXPECT_THAT(missing.status().message(), testing::HasSubstr("s.json"));
  std::ofstream(folder / "s.json") << to_json({100, {{0, {0, 0, 9, 0, 0, 0, 0, 8}}, {1, {1, 0, 0, 7, 0, 6, 0, 0}}}});
  const auto policy = read_policy(folder / "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  const auto placed = place(build_model({.layers = 2}), *policy, *parse_target(kTarget, "t.yaml"));
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  ASSERT_EQ(placed->hot.size(), 2u);
  EXPECT_THAT(placed->hot[0].ids, ElementsAre(2, 7));
  EXPECT_THAT(placed->hot[1].ids, ElementsAre(3, 5));
  const auto other = place(build_model({.layers = 3}), *policy, *parse_target(kTarget, "t.yaml"));
  EXPECT_EQ(other.status().message(),
            "p.yaml:5:44: expert statistics: counts of 'model.layers.2.mlp.experts': found none, expected layer 2; record them with "
            "this model");
  const auto fewer = place(build_model({.layers = 2, .experts = 4}), *policy, *parse_target(kTarget, "t.yaml"));
  EXPECT_THAT(fewer.status().message(), testing::HasSubstr("found 8, expected 4, one for each expert"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ktc::placement
