// What a policy means: the whole schema, its defaults, and the shipped files.
#include "placement/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "placement/target.h"

namespace ktc::placement {
namespace {

using testing::ElementsAre;

Policy parse(const std::string& text) {
  auto policy = parse_policy(text, "p.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return policy.ok() ? *policy : Policy();
}

// The example of the design, key by key.
TEST(PolicyTest, ReadsTheWholeSchema) {
  const Policy policy = parse(R"(version: 1
rules:                                   # first match wins
  - match: {class: RoutedExperts, name: "model\\.layers\\.(1?[0-9])\\..*"}
    place: {device: cpu, weights: int4, group: 64}
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: int8, activations: int8, group: row}
  - match: {class: Attention}
    place: {device: cuda:0, weights: bf16, pin: true}
  - match: {class: "*"}
    place: {device: cuda:0, weights: int8}
experts:
  strategy: frequency
  on_gpu: 10%
  gpu: {devices: [cuda:0, cuda:1], weights: int4, group: 128}
  statistics: stats.json
  seed: 7
  update: {every_tokens: 256}
defer: {max_per_token: 2, phases: [prefill, decode], scope: all}
kv_cache: {dtype: f32, tokens: 32768, sequences: 8, page: 32}
batch: {decode: [1, 2, 4, 8, 16], chunk: 2048, stream_chunk: 8192, stream_from: 700, stream_share: false}
limits: {cuda:0: 24GiB, cpu: 382GiB}
)");
  ASSERT_EQ(policy.rules.size(), 4u);
  EXPECT_EQ(policy.rules[0].cls, models::ModuleClass::RoutedExperts);
  EXPECT_EQ(policy.rules[0].name, R"(model\.layers\.(1?[0-9])\..*)");
  EXPECT_EQ(policy.rules[0].place.weights.word, "int4");
  EXPECT_EQ(policy.rules[0].place.group, 64u);
  EXPECT_EQ(to_string(policy.rules[0].position), "p.yaml:3:5");
  EXPECT_EQ(to_string(policy.rules[0].place.device_position), "p.yaml:4:21");
  EXPECT_EQ(to_string(policy.rules[0].place.weights.position), "p.yaml:4:35");
  EXPECT_EQ(policy.rules[1].place.activations.word, "int8");
  EXPECT_EQ(policy.rules[1].place.group, kGroupRow);
  EXPECT_TRUE(policy.rules[2].place.pin);
  EXPECT_FALSE(policy.rules[2].place.activations.stated());
  EXPECT_EQ(policy.rules[3].cls, std::nullopt);
  EXPECT_EQ(policy.rules[3].place.device, "cuda:0");
  EXPECT_EQ(policy.experts.strategy, Strategy::frequency);
  EXPECT_EQ(policy.experts.on_gpu.kind, ExpertBudget::Kind::share);
  EXPECT_DOUBLE_EQ(policy.experts.on_gpu.share, 0.1);
  EXPECT_THAT(policy.experts.gpu_devices, ElementsAre("cuda:0", "cuda:1"));
  EXPECT_EQ(policy.experts.gpu_weights.word, "int4");
  EXPECT_EQ(policy.experts.gpu_group, 128u);
  EXPECT_EQ(policy.experts.statistics, "stats.json");
  EXPECT_EQ(policy.experts.seed, 7u);
  EXPECT_EQ(policy.experts.update_every_tokens, 256u);
  EXPECT_EQ(policy.defer.max_per_token, 2u);
  EXPECT_TRUE(policy.defer.decode);
  EXPECT_TRUE(policy.defer.extend);
  EXPECT_EQ(policy.defer.scope, DeferScope::all);
  EXPECT_EQ(policy.kv_cache.dtype, Format::f32);
  EXPECT_EQ(policy.kv_cache.tokens, 32768u);
  EXPECT_EQ(policy.kv_cache.sequences, 8u);
  EXPECT_EQ(policy.kv_cache.page, 32u);
  EXPECT_THAT(policy.batch.decode, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_EQ(policy.batch.chunk, 2048u);
  EXPECT_EQ(policy.batch.stream_chunk, 8192u);
  EXPECT_EQ(policy.batch.stream_from, 700u);
  EXPECT_FALSE(policy.batch.stream_share);
  EXPECT_EQ(policy.limits.at("cuda:0").bytes, std::uint64_t{24} << 30);
  EXPECT_EQ(policy.limits.at("cpu").bytes, std::uint64_t{382} << 30);
  EXPECT_EQ(policy.file, "p.yaml");
}

TEST(PolicyTest, ReadsTheGroupOfActivations) {
  const std::string rules = "version: 1\nrules:\n  - match: {class: \"*\"}\n    place: {device: cpu}\n";
  for (const auto& [word, group] : {std::pair{"64", 64u}, {"128", 128u}, {"row", 0u}}) {
    const auto policy = parse_policy(rules + "activation_group: " + word + "\n", "p.yaml");
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    EXPECT_EQ(policy->activation_group, group);
  }
  const auto wrong = parse_policy(rules + "activation_group: 32\n", "p.yaml");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.status().message(), ::testing::HasSubstr("p.yaml:5:19"));
  EXPECT_EQ(parse_policy(rules, "p.yaml")->activation_group, 64u);
}

TEST(PolicyTest, DefaultsAreTheDocumentedOnes) {
  const Policy policy = parse("version: 1\nrules: [{match: {name: \".*\"}, place: {device: cpu}}]\n");
  EXPECT_EQ(policy.rules[0].cls, std::nullopt);
  EXPECT_FALSE(policy.rules[0].place.weights.stated());
  EXPECT_FALSE(policy.rules[0].place.pin);
  EXPECT_EQ(policy.rules[0].place.group, 0u);
  EXPECT_EQ(policy.experts.strategy, Strategy::uniform);
  EXPECT_TRUE(policy.experts.on_gpu.none());
  EXPECT_EQ(policy.experts.update_every_tokens, 0u);
  EXPECT_EQ(policy.defer.max_per_token, 0u);
  EXPECT_TRUE(policy.defer.decode);
  EXPECT_FALSE(policy.defer.extend);
  EXPECT_EQ(policy.defer.scope, DeferScope::cpu);
  EXPECT_EQ(policy.kv_cache.dtype, Format::bf16);
  EXPECT_EQ(policy.kv_cache.tokens, 4096u);
  EXPECT_EQ(policy.kv_cache.sequences, 1u);
  EXPECT_EQ(policy.kv_cache.page, 16u);
  EXPECT_THAT(policy.batch.decode, ElementsAre(1));
  EXPECT_EQ(policy.batch.chunk, 512u);
  EXPECT_EQ(policy.batch.stream_chunk, 0u);
  EXPECT_EQ(policy.batch.stream_from, 0u);
  EXPECT_TRUE(policy.batch.stream_share);
  EXPECT_TRUE(policy.limits.empty());
}

TEST(PolicyTest, ReadsAllThreeKindsOfExpertBudget) {
  auto budget = [](const std::string& value) {
    return parse(
               "version: 1\nrules: [{match: {class: \"*\"}, place: {device: cpu}}]\nexperts: {gpu: {devices: "
               "[cuda:0]}, on_gpu: " +
               value + "}\n")
        .experts.on_gpu;
  };
  EXPECT_EQ(budget("12.5%").kind, ExpertBudget::Kind::share);
  EXPECT_DOUBLE_EQ(budget("12.5%").share, 0.125);
  EXPECT_EQ(budget("12").kind, ExpertBudget::Kind::per_layer);
  EXPECT_EQ(budget("12").count, 12u);
  EXPECT_EQ(budget("{max: 1.5GiB}").kind, ExpertBudget::Kind::bytes);
  EXPECT_EQ(budget("{max: 1.5GiB}").bytes, std::uint64_t{3} << 29);
  EXPECT_TRUE(budget("0").none());
  EXPECT_TRUE(budget("0%").none());
}

TEST(PolicyTest, StrategiesAreSpeltAsTheyAreRead) {
  for (Strategy strategy : {Strategy::uniform, Strategy::front_loading, Strategy::random, Strategy::auto_}) {
    const Policy policy =
        parse("version: 1\nrules: [{match: {class: \"*\"}, place: {device: cpu}}]\nexperts: {strategy: " +
              std::string(to_string(strategy)) + "}\n");
    EXPECT_EQ(policy.experts.strategy, strategy);
  }
}

TEST(PolicyTest, EveryShippedPolicyParsesAndSaysWhatItIsFor) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KTC_SOURCE_DIR "/placement/policies")) {
    SCOPED_TRACE(entry.path().filename().string());
    ASSERT_EQ(entry.path().extension(), ".yaml");
    const auto policy = read_policy(entry.path());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    EXPECT_EQ(policy->file, entry.path().filename().string());
    std::ifstream file(entry.path());
    std::string first, second;
    std::getline(file, first);
    std::getline(file, second);
    EXPECT_TRUE(first.starts_with("# "));
    EXPECT_TRUE(second.starts_with("# For: ")) << "the second line says for which machine";
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(PolicyTest, ExactPolicyIsExactMode) {
  const auto policy = read_policy(KTC_SOURCE_DIR "/placement/policies/exact.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ(policy->kv_cache.dtype, Format::f32);
  for (const Rule& rule : policy->rules) {
    EXPECT_EQ(rule.place.device, "cpu");
    EXPECT_EQ(rule.place.activations.word, "f32");
  }
}

// docs/policy.md shows two files: a policy, then a target.
TEST(PolicyTest, TheDocumentedExamplesParse) {
  std::ifstream file(KTC_SOURCE_DIR "/docs/policy.md");
  std::vector<std::string> blocks;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      inside = line == "```yaml";
      if (inside) blocks.emplace_back();
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  ASSERT_EQ(blocks.size(), 3u);  // policies, then a target
  for (const std::string& block : {blocks[0], blocks[1]}) {
    const auto policy = parse_policy(block, "policy.md");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
  }
  const auto target = parse_target(blocks[2], "policy.md");
  EXPECT_TRUE(target.ok()) << target.status().message();
}

TEST(PolicyTest, FilesThatCannotBeReadAreNamed) {
  const auto missing = read_policy("no/such/p.yaml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().message(),
            "no/such/p.yaml: policy file: found no such file, expected a YAML file; check the path");
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  const auto folder = read_policy(KTC_SOURCE_DIR "/placement");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().message(),
            KTC_SOURCE_DIR "/placement: policy file: found a folder, expected a YAML file; name the file in it");
}

TEST(PolicyTest, AFileThatIsTooLargeIsRefusedUnread) {
  const auto path = std::filesystem::path(testing::TempDir()) / "huge_policy.yaml";
  std::ofstream(path) << std::string((1 << 20) + 1, ' ');
  const auto policy = read_policy(path);
  std::filesystem::remove(path);
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().message(),
            path.string() + ": policy file too large: found more than 1 MiB, expected at most 1 MiB");
}

}  // namespace
}  // namespace ktc::placement
