// What the tests of this folder share: fixture files and the two small tokenizers that the variants start from.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace ktc::text::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline nlohmann::json fixture(const std::string& name) {
  return nlohmann::json::parse(read_file(std::string(KTC_SOURCE_DIR) + "/test/text/fixtures/" + name));
}

inline const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto opened = Tokenizer::open(std::string(KTC_SOURCE_DIR) + "/models/demo");
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(*opened) : nullptr;
  }();
  return *tokenizer;
}

// "byte_level" or "sentencepiece" of tokenizer_variants.json.
inline const nlohmann::json& small_tokenizer_json(const std::string& base) {
  static const nlohmann::json bases = fixture("tokenizer_variants.json")["bases"];
  return bases.at(base);
}

inline std::unique_ptr<Tokenizer> parse_tokenizer(const nlohmann::json& json) {
  auto parsed = Tokenizer::parse(json.dump(), "tokenizer.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? std::move(*parsed) : nullptr;
}

inline std::vector<std::int32_t> ids_of(const nlohmann::json& json) {
  return json.get<std::vector<std::int32_t>>();
}

}  // namespace ktc::text::testing
