// Text from strangers never crashes or hangs the parsers, and never yields an error of several lines.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "placement/place.h"
#include "placement/policy.h"
#include "placement/target.h"
#include "test/placement/model_builder.h"

namespace ktc::placement {
namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string full_policy() {
  return R"(version: 1
rules:
  - match: {class: RoutedExperts, name: "model\\.layers\\.(1?[0-9])\\..*"}
    place: {device: cpu, weights: bf16, activations: f32, pin: true}
  - match: {class: "*"}
    place: {device: cuda:0, weights: int4, group: 64}
experts: {strategy: random, on_gpu: 10%, gpu: {devices: [cuda:0]}, seed: 3, update: {every_tokens: 256}}
defer: {max_per_token: 2, phases: [decode], scope: cpu}
kv_cache: {dtype: bf16, tokens: 32768, sequences: 8, page: 16}
batch: {decode: [1, 2, 4], chunk: 2048, stream_chunk: 8192}
limits: {cuda:0: 24GiB, cpu: 382GiB}
)";
}

// What a policy says must be usable or refused, never a reason to crash: everything that parses is also placed.
void judge(const std::string& text) {
  static const models::ModelDesc model = test::build_model({});
  static const Target target = *parse_target(
      "version: 1\nname: t\ncpu: {cores: 1, memory: 1GiB}\ngpus: [{device: cuda:0, name: g, sm: 80, memory: 1GiB}]\n",
      "t.yaml");
  const auto policy = parse_policy(text, "p.yaml");
  if (!policy.ok()) {
    EXPECT_FALSE(policy.status().message().empty());
    EXPECT_EQ(policy.status().message().find('\n'), std::string::npos);
    return;
  }
  const auto placement = place(model, *policy, target);
  if (placement.ok())
    EXPECT_EQ(placement->modules.size(), model.modules.size());
  else
    EXPECT_EQ(placement.status().message().find('\n'), std::string::npos);
}

TEST(HostileTextTest, TruncationAtEveryByte) {
  const std::string text = full_policy();
  ASSERT_TRUE(parse_policy(text, "p.yaml").ok());
  for (std::size_t length = 0; length < text.size(); ++length) judge(text.substr(0, length));
}

TEST(HostileTextTest, RandomChangesOfBytes) {
  std::mt19937 random(20240607);
  const std::string original = full_policy();
  for (int round = 0; round < 4000; ++round) {
    std::string text = original;
    for (int change = 0; change < 1 + round % 3; ++change) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 8); break;
        case 2: text.insert(at, 1, "{}[]:,-*&!|>'\"\\%@#0\n \t"[random() % 23]); break;
        default: text.insert(at, original, random() % original.size(), random() % 16); break;
      }
      if (text.empty()) text = "x";
    }
    judge(text);
  }
}

TEST(HostileTextTest, TruncatedTargets) {
  const std::string text = slurp(KTC_SOURCE_DIR "/placement/targets/emerald-rapids-16-cores-h200.yaml");
  ASSERT_TRUE(parse_target(text, "t.yaml").ok());
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto target = parse_target(text.substr(0, length), "t.yaml");
    if (!target.ok()) EXPECT_EQ(target.status().message().find('\n'), std::string::npos);
  }
}

TEST(HostileTextTest, DeepAndWideDocuments) {
  judge(std::string(100000, '['));
  judge(std::string(100000, '{'));
  judge("version: 1\nrules:\n" + std::string(5000, '-') + "\n");
  std::string wide = "version: 1\nrules:\n";
  for (int i = 0; i < 1024; ++i) wide += "  - {match: {class: Norm}, place: {device: cpu}}\n";
  judge(wide);
  EXPECT_TRUE(parse_policy(wide, "p.yaml").ok());
  wide += "  - {match: {class: Norm}, place: {device: cpu}}\n";
  EXPECT_EQ(parse_policy(wide, "p.yaml").status().message(),
            "p.yaml:3:3: rules: too many rules: found 1025, expected at most 1024; let patterns match several modules");
}

}  // namespace
}  // namespace ktc::placement
