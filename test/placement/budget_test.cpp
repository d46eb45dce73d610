// A small model on a card of 74 MiB: what fits is accounted to the byte, what does not is an error that says what
// would.
#include <gtest/gtest.h>

#include "placement/memory.h"
#include "placement/place.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

using models::ModelDesc;

constexpr std::uint64_t kMiB = 1 << 20;

// 4 layers of 8 experts of three 512 x 1024 bf16 matrices: 3 MiB an expert; 2 KV heads of 64: 2 KiB a token over all
// layers.
ModelDesc model() {
  return test::build_model({.layers = 4,
                            .hidden = 1024,
                            .vocab = 400,
                            .heads = 2,
                            .kv_heads = 2,
                            .head_dim = 64,
                            .experts = 8,
                            .top_k = 2,
                            .intermediate = 512});
}

constexpr char kTarget[] =
    "version: 1\nname: small card\ncpu: {cores: 4, memory: 8GiB}\ngpus: [{device: cuda:0, name: g, sm: 80, memory: "
    "74MiB, context: 1MiB}]\n";

std::string policy(int sequences, const std::string& rest = {}) {
  return "version: 1\n"
         "rules:\n"
         "  - {match: {class: RoutedExperts, name: \"model[.]layers[.]0[.].*\"}, place: {device: cuda:0, pin: true}}\n"
         "  - {match: {class: RoutedExperts}, place: {device: cpu}}\n"
         "  - {match: {class: \"*\"}, place: {device: cuda:0}}\n"
         "kv_cache: {dtype: bf16, tokens: 4096, sequences: " +
         std::to_string(sequences) +
         ", page: 16}\n"
         "batch: {decode: [1, 2, 4], chunk: 16}\n" +
         rest;
}

Expected<Placement> try_place(const std::string& text, const char* target = kTarget) {
  const auto parsed = parse_policy(text, "p.yaml");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return place(model(), *parsed, *parse_target(target, "t.yaml"));
}

struct Sums {
  std::uint64_t weights = 0, hot = 0, kv = 0, arena = 0, rest = 0, all = 0;
};
Sums sums(const Placement& placement, const std::string& device) {
  Sums s;
  for (const MemoryLine& line : placement.memory) {
    if (line.device != device) continue;
    s.all += line.bytes;
    if (line.category == "weights")
      s.weights += line.bytes;
    else if (line.category == "hot-experts")
      s.hot += line.bytes;
    else if (line.category == "kv-cache")
      s.kv += line.bytes;
    else if (line.category == "arena")
      s.arena += line.bytes;
    else if (line.category == "context" || line.category == "step-block" || line.category == "records")
      s.rest += line.bytes;
    else
      ADD_FAILURE() << line.category;
  }
  return s;
}

TEST(BudgetTest, FourSlotsFitWithThreeMoreExperts) {
  const auto placed = try_place(policy(4, "experts: {on_gpu: {max: 9MiB}, gpu: {devices: [cuda:0]}}\n"));
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  const Sums gpu = sums(*placed, "cuda:0"), cpu = sums(*placed, "cpu");
  EXPECT_EQ(gpu.kv, 32 * kMiB + 32 * 1024) << "and a page for padding tokens";
  EXPECT_EQ(gpu.hot, 9 * kMiB);
  const std::uint64_t dense = gpu.weights - 24 * kMiB;
  EXPECT_NEAR(static_cast<double>(dense) / kMiB, 5.6, 0.2);
  EXPECT_LE(gpu.all, 74 * kMiB);
  EXPECT_EQ(cpu.weights, (3 * 8 - 3) * 3 * kMiB);
  EXPECT_EQ(cpu.kv, 0u);
  EXPECT_EQ(gpu.rest, kMiB + 10 * 64 + 4160 + 2 * (9 * 64 + 4160))
      << "the driver; 4 sequences of 256 pages and one, and 10 lists of up to 16; for each half the same without rows";
  // cold experts of three layers in bf16, for 1, 2 and 4 tokens: header, ids, weights, x; 32 panels of 6 cells
  EXPECT_EQ(cpu.rest, 3 * (3 * (64 + 64 + 64) + 7 * (2048 + 32 * 6 * 16)));
}

// 24 MiB of layer 0's experts, 5.6 of dense parts, 32 of the cache and 2 of the rest.
TEST(BudgetTest, FourSlotsOnACardOf72MiB) {
  const char* card = "version: 1\nname: small card\ncpu: {cores: 4, memory: 8GiB}\ngpus: [{device: cuda:0, name: g, sm: 80, memory: "
                     "72MiB, context: 1MiB}]\n";
  const auto placed = try_place(policy(4), card);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  int lines = 0;
  for (const MemoryLine& line : placed->memory)
    if (line.device == "cuda:0" && line.category == "kv-cache" && line.name == "kv") {
      EXPECT_EQ(line.bytes, 32 * kMiB);
      ++lines;
    }
  EXPECT_EQ(lines, 1);
  const std::string message = try_place(policy(8), card).status().message();
  EXPECT_NE(message.find("kv_cache.sequences: 4 is the most that fits with tokens: 4096"), std::string::npos) << message;
  std::string nothing = policy(4);
  nothing.replace(nothing.find("layers[.]0"), 10, "layers[.]9");
  EXPECT_NE(try_place(nothing, card).status().message().find("a rule that matches nothing"), std::string::npos);
}

TEST(BudgetTest, EightSlotsNameTheLargestFit) {
  const auto placed = try_place(policy(8));
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(placed.status().message(),
            "p.yaml: cuda:0 is too small by 22.0 MiB: found 96.0 MiB (RoutedExperts 24.0 MiB, Attention 4.0 MiB, "
            "Embedding 800.0 KiB, Head 800.0 KiB, Router 64.0 KiB, Norm 36.0 KiB, kv-cache 64.0 MiB, context, step block and stream 1.0 MiB, arena at most 1.3 MiB), expected at most 74.0 MiB of target 'small card'; kv_cache.sequences: 5 is the most that fits "
            "with tokens: 4096, or kv_cache.tokens: 2672 is the most that fits with sequences: 8");
}

TEST(BudgetTest, ALimitOfThePolicyIsNamedByItsLine) {
  const auto placed = try_place(policy(4, "limits: {cuda:0: 48MiB}\n"));
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.status().message(),
            "p.yaml:8:18: cuda:0 is too small by 16.0 MiB: found 64.0 MiB (RoutedExperts 24.0 MiB, Attention 4.0 MiB, "
            "Embedding 800.0 KiB, Head 800.0 KiB, Router 64.0 KiB, Norm 36.0 KiB, kv-cache 32.0 MiB, context, step block and stream 1.0 MiB, arena at most 1.3 MiB), expected at most 48.0 MiB; kv_cache.sequences: 1 is the most that fits with tokens: 4096, or "
            "kv_cache.tokens: 2032 is the most that fits with sequences: 4");
}

TEST(BudgetTest, TooManyHotExpertsNameTheMostThatFit) {
  const auto placed = try_place(policy(4, "experts: {on_gpu: 100%, gpu: {devices: [cuda:0]}}\n"));
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.status().message(),
            "p.yaml: cuda:0 is too small by 62.0 MiB: found 136.0 MiB (RoutedExperts 24.0 MiB, Attention 4.0 MiB, "
            "Embedding 800.0 KiB, Head 800.0 KiB, Router 64.0 KiB, Norm 36.0 KiB, hot experts 72.0 MiB, kv-cache 32.0 "
            "MiB, context, step block and stream 1.0 MiB, arena at most 1.3 MiB), expected at most 74.0 MiB of target 'small card'; experts.on_gpu: {max: "
            "9MiB}, 3 experts, is the most that fits");
}

TEST(BudgetTest, WhenNothingHelpsItSaysSo) {
  const auto placed = try_place(policy(4, "limits: {cuda:0: 16MiB}\n"));
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.status().message(),
            "p.yaml:8:18: cuda:0 is too small by 48.0 MiB: found 64.0 MiB (RoutedExperts 24.0 MiB, Attention 4.0 MiB, "
            "Embedding 800.0 KiB, Head 800.0 KiB, Router 64.0 KiB, Norm 36.0 KiB, kv-cache 32.0 MiB, context, step block and stream 1.0 MiB, arena at most 1.3 MiB), expected at most 16.0 MiB; no KV cache fits: place modules elsewhere, take a smaller "
            "batch.chunk, or raise the limit of cuda:0");
}

TEST(BudgetTest, TheCpuHasABudgetToo) {
  const auto placed = try_place(policy(4),
                                "version: 1\nname: tiny\ncpu: {cores: 4, memory: 64MiB}\ngpus: [{device: cuda:0, name: "
                                "g, sm: 80, memory: 74MiB, context: 1MiB}]\n");
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.status().message(),
            "p.yaml: cpu is too small by 9.3 MiB: found 73.3 MiB (RoutedExperts 72.0 MiB, records 106.7 KiB, arena at most 1.2 MiB), "
            "expected at most 64.0 MiB of target 'tiny'; place modules elsewhere, take a smaller batch.chunk, or raise "
            "the limit of cpu");
}

// Activations of large chunks do not fit; the named chunk does, and one more does not.
TEST(BudgetTest, ChunksThatFitAreNamed) {
  auto with_chunk = [](std::uint32_t chunk) {
    std::string text = policy(1);
    text.replace(text.find("chunk: 16"), 9, "chunk: " + std::to_string(chunk));
    return try_place(text);
  };
  const std::string message = with_chunk(100000).status().message();
  const std::size_t at = message.find("batch.chunk: ");
  ASSERT_NE(at, std::string::npos) << message;
  const auto chunk = static_cast<std::uint32_t>(std::stoul(message.substr(at + 13)));
  EXPECT_TRUE(with_chunk(chunk).ok());
  EXPECT_FALSE(with_chunk(chunk + 1).ok());
}

// The sizes that a message names are true: they fit, and one more does not.
TEST(BudgetTest, NamedSizesAreTheLargestThatFit) {
  auto fits = [](int sequences, int tokens, const std::string& max) {
    std::string text =
        policy(sequences, max.empty() ? "" : "experts: {on_gpu: {max: " + max + "}, gpu: {devices: [cuda:0]}}\n");
    text.replace(text.find("tokens: 4096"), 12, "tokens: " + std::to_string(tokens));
    return try_place(text).ok();
  };
  EXPECT_TRUE(fits(5, 4096, ""));
  EXPECT_FALSE(fits(6, 4096, ""));
  const std::string message = try_place(policy(8)).status().message();
  const std::size_t at = message.find("kv_cache.tokens: ");
  ASSERT_NE(at, std::string::npos);
  const int tokens = std::stoi(message.substr(at + 17));
  EXPECT_TRUE(fits(8, tokens, ""));
  EXPECT_FALSE(fits(8, tokens + 1, "")) << "the next token needs one more page in every sequence";
}

}  // namespace
}  // namespace ktc::placement
