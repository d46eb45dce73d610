// Ids and texts against the `tokenizers` package (make_fixtures.py wrote what is expected).
#include <gtest/gtest.h>

#include <chrono>

#include "runtime/text/unicode.h"
#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

using testing::demo_tokenizer;
using testing::fixture;
using testing::ids_of;

std::string fnv1a(const std::vector<std::int32_t>& ids) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (std::int32_t id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      h = (h ^ (static_cast<std::uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

void expect_case(const Tokenizer& tokenizer, const std::string& text, const nlohmann::json& c) {
  const auto ids = tokenizer.encode(text, false, true);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(*ids, ids_of(c["ids"])) << nlohmann::json(text);
  const auto with_special = tokenizer.encode(text, true, true);
  ASSERT_TRUE(with_special.ok());
  EXPECT_EQ(*with_special, ids_of(c.contains("with_special") ? c["with_special"] : c["ids"])) << nlohmann::json(text);
  const auto plain = tokenizer.encode(text, false, false);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(*plain, ids_of(c.contains("plain") ? c["plain"] : c["ids"])) << nlohmann::json(text);
  const std::string decoded = tokenizer.decode(ids_of(c["ids"]), false);
  EXPECT_EQ(decoded, c["decoded"].get<std::string>());
  EXPECT_EQ(find_invalid_utf8(decoded), std::string::npos);
  EXPECT_EQ(tokenizer.decode(ids_of(c["ids"]), true),
            (c.contains("decoded_skip") ? c["decoded_skip"] : c["decoded"]).get<std::string>());
}

TEST(TokenizerGolden, WholeEvalTextOfTheDemo) {
  const auto expected = fixture("tokenizer_demo_eval.json");
  const std::string text = testing::read_file(std::string(KTC_SOURCE_DIR) + "/models/demo/eval.txt");
  const auto ids = demo_tokenizer().encode(text, false, true);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(ids->size(), expected["count"].get<std::size_t>());
  EXPECT_EQ(std::vector<std::int32_t>(ids->begin(), ids->begin() + 64), ids_of(expected["first"]));
  EXPECT_EQ(fnv1a(*ids), expected["fnv1a"].get<std::string>());
  EXPECT_EQ(demo_tokenizer().decode(*ids, false), text);
}

TEST(TokenizerGolden, LinesOfTheEvalText) {
  const auto expected = fixture("tokenizer_demo_eval.json");
  const std::string text = testing::read_file(std::string(KTC_SOURCE_DIR) + "/models/demo/eval.txt");
  std::vector<std::string> lines(1);
  for (char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  ASSERT_GT(expected["lines"].size(), 500u);
  for (const auto& entry : expected["lines"]) {
    const auto row = entry.get<std::vector<std::int32_t>>();
    const auto ids = demo_tokenizer().encode(lines.at(static_cast<std::size_t>(row[0])), false, true);
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(ids->size(), static_cast<std::size_t>(row[1])) << "line " << row[0];
    for (std::size_t i = 2; i < row.size(); ++i) EXPECT_EQ((*ids)[i - 2], row[i]) << "line " << row[0];
  }
}

TEST(TokenizerGolden, TwoHundredStrings) {
  const auto expected = fixture("tokenizer_demo_strings.json");
  ASSERT_EQ(expected["cases"].size(), 200u);
  for (const auto& c : expected["cases"]) expect_case(demo_tokenizer(), c["text"].get<std::string>(), c);
}

TEST(TokenizerGolden, RandomIdsDecodeLikeTheReference) {
  const auto expected = fixture("tokenizer_demo_strings.json");
  ASSERT_EQ(expected["decodes"].size(), 60u);
  for (const auto& c : expected["decodes"]) {
    EXPECT_EQ(demo_tokenizer().decode(ids_of(c["ids"]), false), c["text"].get<std::string>()) << c["ids"];
    EXPECT_EQ(demo_tokenizer().decode(ids_of(c["ids"]), true), c["skip"].get<std::string>()) << c["ids"];
  }
}

TEST(TokenizerGolden, PromptsOfTheReference) {
  const auto reference =
      nlohmann::json::parse(testing::read_file(std::string(KTC_SOURCE_DIR) + "/models/demo/reference/reference.json"));
  ASSERT_EQ(reference["greedy"].size(), 8u);
  for (const auto& entry : reference["greedy"]) {
    const auto prompt = entry["prompt"].get<std::string>();
    const auto ids = demo_tokenizer().encode(prompt, true, true);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, ids_of(entry["prompt_ids"])) << prompt;
    std::vector<std::int32_t> all = *ids;
    for (std::int32_t id : ids_of(entry["greedy_ids"])) all.push_back(id);
    EXPECT_TRUE(demo_tokenizer().decode(all, false).starts_with(prompt));
  }
}

TEST(TokenizerGolden, VariantsOfEveryOption) {
  const auto fixtures = fixture("tokenizer_variants.json");
  ASSERT_GE(fixtures["variants"].size(), 50u);
  for (const auto& variant : fixtures["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    nlohmann::json json = fixtures["bases"][variant["base"].get<std::string>()];
    json.merge_patch(variant["patch"]);
    const auto tokenizer = testing::parse_tokenizer(json);
    ASSERT_NE(tokenizer, nullptr);
    for (const auto& c : variant["cases"])
      expect_case(*tokenizer, fixtures["texts"][c["text"].get<std::size_t>()].get<std::string>(), c);
  }
}

TEST(TokenizerGolden, TokenFacts) {
  const Tokenizer& t = demo_tokenizer();
  EXPECT_EQ(t.vocab_size(), 4096);
  EXPECT_EQ(t.id_of("<|im_end|>"), 2);
  EXPECT_EQ(t.id_of("no such token"), std::nullopt);
  EXPECT_TRUE(t.is_special(0));
  EXPECT_FALSE(t.is_special(3));
  EXPECT_FALSE(t.is_special(-1));
  EXPECT_EQ(t.eos_token(), "<|endoftext|>");
  EXPECT_EQ(t.eos_id(), 0);
  EXPECT_EQ(t.bos_token(), std::nullopt);
  EXPECT_EQ(t.pad_token(), "<|endoftext|>");
  EXPECT_EQ(t.token_bytes(465), "The");
  EXPECT_EQ(t.token_text(1242), "\xC4\xA0Linux");
  EXPECT_EQ(t.token_bytes(1242), " Linux");
  for (std::int32_t outside : {-1, 4096, 1 << 30, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(t.token_bytes(outside), "");
    EXPECT_EQ(t.token_text(outside), std::nullopt);
    EXPECT_EQ(t.decode(std::vector<std::int32_t>{465, outside, 1242}, false), "The Linux");
  }
}

// The bytes of single tokens, joined, are the text: byte-level tokens hide nothing.
TEST(TokenizerGolden, TokenBytesJoinToTheText) {
  const auto expected = fixture("tokenizer_demo_strings.json");
  for (const auto& c : expected["cases"]) {
    std::string joined;
    for (std::int32_t id : ids_of(c["ids"])) joined += demo_tokenizer().token_bytes(id);
    EXPECT_EQ(joined, c["decoded"].get<std::string>());
  }
  const auto small = testing::parse_tokenizer(testing::small_tokenizer_json("sentencepiece"));
  EXPECT_EQ(small->token_bytes(3 + 0xE4), "\xE4");
  EXPECT_EQ(small->token_bytes(*small->id_of("▁the")), " the");
}

}  // namespace
}  // namespace ktc::text
