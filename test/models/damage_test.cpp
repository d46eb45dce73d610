// Damaged files: truncations at every byte and random flips of config.json, the index and a family file end in a value
// or a Status, never a crash, and never in a large allocation.
#include <random>

#include "model_test_support.h"
#include "models/config.h"
#include "models/family.h"

namespace ktc::models {
namespace {

using ktc::test::make_deepseek_v3;
using ktc::test::make_qwen3_moe;
using ktc::test::read_text;
using ktc::test::TemporaryFolder;
using ktc::test::write_text;

std::string flip(std::string text, std::mt19937& random) {
  for (unsigned n = 1 + random() % 3; n > 0 && !text.empty(); --n)
    text[random() % text.size()] = static_cast<char>(random() % 256);
  return text;
}

TEST(Damage, ConfigJson) {
  for (const auto& [name, checkpoint] :
       {std::pair{"qwen3_moe.yaml", make_qwen3_moe()}, std::pair{"deepseek_v3.yaml", make_deepseek_v3()}}) {
    const auto family = parse_family(read_text(kFamilies / name), name);
    ASSERT_TRUE(family.ok());
    const std::string good = checkpoint.config.dump(1);
    auto read = [&](const std::string& text) {
      auto json = parse_json(text, "config.json");
      std::vector<std::string> warnings;
      if (!json.ok()) return false;
      auto config = read_config(*family, *json, "config.json", &warnings);
      if (config.ok()) (void)config->enter_layer(1);
      return config.ok();
    };
    EXPECT_TRUE(read(good));
    for (std::size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(read(good.substr(0, n))) << n;
    std::mt19937 random(3);
    for (int round = 0; round < 5000; ++round) (void)read(flip(good, random));

    // and through the whole reader
    TemporaryFolder folder;
    checkpoint.write(folder.path());
    for (std::size_t n = 0; n < good.size(); n += 31) {
      write_text(folder.path() / "config.json", good.substr(0, n));
      EXPECT_FALSE(read_model(folder.path(), kFamilies).ok()) << n;
    }
    for (int round = 0; round < 150; ++round) {
      write_text(folder.path() / "config.json", flip(good, random));
      (void)read_model(folder.path(), kFamilies);
    }
  }
}

// Numbers of any size in place of the right ones.
TEST(Damage, ConfigNumbers) {
  auto checkpoint = make_deepseek_v3();
  TemporaryFolder folder;
  checkpoint.write(folder.path());
  const nlohmann::json values[] = {0,
                                   -1,
                                   1,
                                   2,
                                   3,
                                   7,
                                   255,
                                   65536,
                                   2147483647,
                                   2147483648,
                                   INT64_MAX,
                                   UINT64_MAX,
                                   1e308,
                                   -1e308,
                                   0.5,
                                   true,
                                   nullptr,
                                   "x",
                                   nlohmann::json::array(),
                                   nlohmann::json::object(),
                                   {1, 2}};
  for (const auto& [key, value] : checkpoint.config.items())
    for (const nlohmann::json& other : values) {
      nlohmann::json config = checkpoint.config;
      config[key] = other;
      write_text(folder.path() / "config.json", config.dump());
      (void)read_model(folder.path(), kFamilies);
    }
}

TEST(Damage, DeeplyNestedJson) {
  TemporaryFolder folder;
  make_qwen3_moe().write(folder.path());
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  write_text(folder.path() / "config.json", deep);
  EXPECT_FALSE(read_model(folder.path(), kFamilies).ok());
  for (int i = 0; i < 100'000; ++i) deep += ']';
  write_text(folder.path() / "config.json", deep + "}");
  EXPECT_EQ(read_folder(folder.path()).error, "M/config.json: nested too deeply: expected at most 64 levels");
}

TEST(Damage, Index) {
  auto checkpoint = make_qwen3_moe({.layers = 1, .experts = 2});
  checkpoint.shards = 2;
  TemporaryFolder folder;
  checkpoint.write(folder.path());
  const auto path = folder.path() / "model.safetensors.index.json";
  const std::string good = read_text(path);
  std::mt19937 random(5);
  for (std::size_t n = 0; n < good.size(); n += 7) {
    write_text(path, good.substr(0, n));
    EXPECT_FALSE(read_model(folder.path(), kFamilies).ok()) << n;
  }
  for (int round = 0; round < 200; ++round) {
    write_text(path, flip(good, random));
    (void)read_model(folder.path(), kFamilies);
  }
}

TEST(Damage, FamilyFile) {
  for (const char* name : {"qwen3_moe.yaml", "deepseek_v3.yaml"}) {
    const std::string good = read_text(kFamilies / name);
    std::mt19937 random(9);
    for (std::size_t n = 0; n < good.size(); n += 7) (void)parse_family(std::string_view(good).substr(0, n), name);
    const auto config = std::string(name) == "qwen3_moe.yaml" ? make_qwen3_moe().config : make_deepseek_v3().config;
    for (int round = 0; round < 400; ++round) {
      auto family = parse_family(flip(good, random), name);
      if (!family.ok()) continue;
      std::vector<std::string> warnings;
      auto read = read_config(*family, config, "config.json", &warnings);
      if (read.ok()) (void)read->enter_layer(1);
    }
  }
}

}  // namespace
}  // namespace ktc::models
