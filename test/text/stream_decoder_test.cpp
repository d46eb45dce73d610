// Streaming: the deltas are whole characters and together equal the decode of all ids.
#include "runtime/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/text/unicode.h"
#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

void expect_stream_equals_decode(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (const bool skip : {false, true}) {
    StreamDecoder stream(tokenizer, skip);
    std::string text;
    for (std::int32_t id : ids) {
      const std::string delta = stream.push(id);
      ASSERT_EQ(find_invalid_utf8(delta), std::string::npos);
      text += delta;
    }
    text += stream.finish();
    ASSERT_EQ(text, tokenizer.decode(ids, skip));
    // a finished decoder is a new one
    std::string again;
    for (std::int32_t id : ids) again += stream.push(id);
    again += stream.finish();
    ASSERT_EQ(again, text);
  }
}

TEST(StreamDecoder, RandomIdsOfTheDemo) {
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int32_t> ids(1 + rng() % 30);
    for (auto& id : ids)
      id = rng() % 2 ? static_cast<std::int32_t>(3 + rng() % 256) : static_cast<std::int32_t>(rng() % 4200) - 50;
    expect_stream_equals_decode(testing::demo_tokenizer(), ids);
  }
}

TEST(StreamDecoder, EveryVariantOfDecoder) {
  const auto fixtures = testing::fixture("tokenizer_variants.json");
  std::mt19937 rng(4);
  for (const auto& variant : fixtures["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    nlohmann::json json = fixtures["bases"][variant["base"].get<std::string>()];
    json.merge_patch(variant["patch"]);
    const auto tokenizer = testing::parse_tokenizer(json);
    for (const auto& c : variant["cases"]) expect_stream_equals_decode(*tokenizer, testing::ids_of(c["ids"]));
    for (int round = 0; round < 50; ++round) {
      std::vector<std::int32_t> ids(1 + rng() % 20);
      for (auto& id : ids) id = static_cast<std::int32_t>(rng() % static_cast<unsigned>(tokenizer->vocab_size()));
      expect_stream_equals_decode(*tokenizer, ids);
    }
  }
}

// Every way to cut a text into tokens of single bytes and pairs: text leaves as soon as its characters are complete.
TEST(StreamDecoder, NothingIsHeldBackButAnIncompleteCharacter) {
  const auto tokenizer = testing::parse_tokenizer(testing::small_tokenizer_json("byte_level"));
  const std::string text = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80z";
  StreamDecoder stream(*tokenizer, false);
  std::string shown, pushed;
  for (char c : text) {
    pushed += c;
    shown += stream.push(static_cast<unsigned char>(c));  // this vocabulary's first 256 ids are the bytes
    std::size_t complete = find_invalid_utf8(pushed);
    EXPECT_EQ(shown, pushed.substr(0, complete));
  }
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, ByteFallbackShowsCharactersAsTheyCome) {
  const auto tokenizer = testing::parse_tokenizer(testing::small_tokenizer_json("sentencepiece"));
  StreamDecoder stream(*tokenizer, false);
  auto byte = [](int b) { return 3 + b; };
  EXPECT_EQ(stream.push(*tokenizer->id_of("▁the")), "the");  // Strip takes the first space
  EXPECT_EQ(stream.push(byte(0xF0)), "");
  EXPECT_EQ(stream.push(byte(0x9F)), "");
  EXPECT_EQ(stream.push(byte(0x98)), "");
  EXPECT_EQ(stream.push(byte(0x80)), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push(byte(0xE4)), "");
  EXPECT_EQ(stream.push(byte('x')), "\xEF\xBF\xBDx");  // the incomplete character is given up
  EXPECT_EQ(stream.push(byte(0xE4)), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{byte(0xE4), byte(0xB8)}, false), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(StreamDecoder, SpecialTokensAreSkippedOnRequest) {
  StreamDecoder skipping(testing::demo_tokenizer(), true), showing(testing::demo_tokenizer(), false);
  EXPECT_EQ(skipping.push(2), "");
  EXPECT_EQ(showing.push(2), "<|im_end|>");
}

}  // namespace
}  // namespace ktc::text
