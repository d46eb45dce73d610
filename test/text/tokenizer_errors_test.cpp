// Every complaint about tokenizer.json, tokenizer_config.json and the text; files cut short and bent.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "runtime/text/stream_decoder.h"
#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

using nlohmann::json;

std::string error_of(const json& patch, const std::string& base = "byte_level") {
  json spec = testing::small_tokenizer_json(base);
  spec.merge_patch(patch);
  const auto parsed = Tokenizer::parse(spec.dump(), "tokenizer.json");
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(TokenizerErrors, UnsupportedComponents) {
  EXPECT_EQ(error_of({{"normalizer", {{"type", "BertNormalizer"}}}}),
            "tokenizer.json: normalizer.type: found \"BertNormalizer\", expected NFC, NFD, NFKC, NFKD, Sequence, "
            "Prepend, Replace, "
            "Lowercase or Strip");
  EXPECT_EQ(
      error_of(json::parse(R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]}})")),
      "tokenizer.json: normalizer.normalizers[1].type: found \"Nmt\", expected NFC, NFD, NFKC, NFKD, Sequence, "
      "Prepend, "
      "Replace, Lowercase or Strip");
  EXPECT_EQ(error_of({{"pre_tokenizer", {{"type", "Metaspace"}}}}),
            "tokenizer.json: pre_tokenizer.type: found \"Metaspace\", expected Split, ByteLevel, Digits or Sequence");
  EXPECT_EQ(error_of({{"post_processor", {{"type", "BertProcessing"}}}}),
            "tokenizer.json: post_processor.type: found \"BertProcessing\", expected TemplateProcessing, ByteLevel or "
            "Sequence");
  EXPECT_EQ(error_of({{"decoder", {{"type", "WordPiece"}}}}),
            "tokenizer.json: decoder.type: found \"WordPiece\", expected ByteLevel, ByteFallback, Fuse, Replace, Strip "
            "or Sequence");
  EXPECT_EQ(error_of({{"model", {{"type", "Unigram"}}}}),
            "tokenizer.json: model.type: found \"Unigram\", expected \"BPE\"");
  EXPECT_EQ(error_of({{"model", {{"continuing_subword_prefix", "##"}}}}),
            "tokenizer.json: model.continuing_subword_prefix: found \"##\", expected null");
  EXPECT_EQ(error_of({{"model", {{"end_of_word_suffix", "</w>"}}}}),
            "tokenizer.json: model.end_of_word_suffix: found \"</w>\", expected null");
  EXPECT_EQ(error_of({{"model", {{"dropout", 0.1}}}}), "tokenizer.json: model.dropout: found 0.1, expected null");
  EXPECT_EQ(error_of({{"version", "2.0"}}), "tokenizer.json: version: found \"2.0\", expected \"1.0\"");
}

TEST(TokenizerErrors, Model) {
  EXPECT_EQ(
      error_of({{"model", {{"merges", json::array({json::array({"a", "zz"})})}}}}),
      "tokenizer.json: model.merges[0]: found \"zz\", which model.vocab lacks, expected a merge of two tokens whose "
      "concatenation is a token");
  EXPECT_EQ(error_of({{"model", {{"merges", json::array({"a b c"})}}}}),
            "tokenizer.json: model.merges[0]: found \"a b c\", expected two tokens with a space between them");
  EXPECT_EQ(error_of({{"model", {{"merges", json::array({json::array({"h", "e"}), 7})}}}}),
            "tokenizer.json: model.merges[1]: found 7, expected a pair of tokens");
  EXPECT_EQ(error_of({{"model", {{"vocab", {{"zz", 97}}}}}}),
            "tokenizer.json: model.vocab: found id 97 for \"a\" and \"zz\", expected one token for each id");
  EXPECT_EQ(error_of({{"model", {{"vocab", {{"zz", -1}}}}}}),
            "tokenizer.json: model.vocab.zz: found -1, expected an integer of 0..4194303");
  EXPECT_EQ(error_of({{"model", {{"vocab", {{"zz", 1e300}}}}}}),
            "tokenizer.json: model.vocab.zz: found 1e+300, expected an integer of 0..4194303");
  EXPECT_EQ(error_of({{"model", {{"unk_token", "<nope>"}}}}),
            "tokenizer.json: model.unk_token: found \"<nope>\", expected a token of model.vocab");
  EXPECT_EQ(error_of({{"model", {{"fuse_unk", 1}}}}),
            "tokenizer.json: model.fuse_unk: found 1, expected true or false");
  EXPECT_EQ(error_of({{"model", 3}}), "tokenizer.json: model: found 3, expected an object");
  EXPECT_EQ(error_of({{"model", {{"vocab", nullptr}}}}),
            "tokenizer.json: model.vocab: found nothing, expected an object");
}

TEST(TokenizerErrors, Components) {
  EXPECT_EQ(
      error_of(json::parse(R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"[a[b]]"},"behavior":"Isolated"}})")),
      "tokenizer.json: pre_tokenizer.pattern.Regex: regular expression, byte 2: found a nested class (\"[a[b]]\"), "
      "expected "
      "a flat one");
  EXPECT_EQ(error_of(json::parse(R"({"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Glued"}})")),
            "tokenizer.json: pre_tokenizer.behavior: found \"Glued\", expected Isolated, Removed, MergedWithPrevious, "
            "MergedWithNext or Contiguous");
  EXPECT_EQ(error_of(json::parse(R"({"pre_tokenizer":{"type":"Split","pattern":" ","behavior":"Isolated"}})")),
            "tokenizer.json: pre_tokenizer.pattern: found \" \", expected an object");
  EXPECT_EQ(error_of(json::parse(R"({"decoder":{"type":"Replace","pattern":{"Regex":"a"},"content":"b"}})")),
            "tokenizer.json: decoder.pattern: found an object, expected {\"String\": \"...\"}");
  EXPECT_EQ(error_of(json::parse(R"({"decoder":{"type":"Strip","content":"ab","start":1,"stop":0}})")),
            "tokenizer.json: decoder.content: found \"ab\", expected one character");
  EXPECT_EQ(
      error_of(json::parse(R"({"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>"}}],
                                     "special_tokens":{}}})")),
      "tokenizer.json: post_processor.single[0].SpecialToken.id: found \"<x>\", expected a key of special_tokens");
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  EXPECT_NE(error_of({{"normalizer", nested}}).find("expected at most 16 sequences inside each other"),
            std::string::npos);
}

TEST(TokenizerErrors, AddedTokens) {
  EXPECT_EQ(error_of(json::parse(R"({"added_tokens":[{"id":5,"content":"a"}]})")),
            "tokenizer.json: added_tokens[0].id: found 5, expected 97, as in model.vocab");
  EXPECT_EQ(
      error_of(json::parse(R"({"added_tokens":[{"id":97,"content":"<x>"}]})")),
      "tokenizer.json: added_tokens[0].id: found 97, expected an id that model.vocab does not use (\"a\" has it)");
  EXPECT_EQ(error_of(json::parse(R"({"added_tokens":[{"id":900,"content":"<x>"},{"id":900,"content":"<y>"}]})")),
            "tokenizer.json: added_tokens[1].id: found 900, expected an id that no other added token has");
  EXPECT_EQ(error_of(json::parse(R"({"added_tokens":[{"id":900,"content":"<x>"},{"id":901,"content":"<x>"}]})")),
            "tokenizer.json: added_tokens[1].content: found \"<x>\", expected a text that no other added token has");
  EXPECT_EQ(error_of({{"added_tokens", {{{"id", 900}, {"content", std::string(2000, 'x')}}}}}),
            "tokenizer.json: added_tokens[0].content: found \"" + std::string(57, 'x') +
                "...\", expected at most 1024 bytes");
}

std::string config_error(const std::string& config) {
  const auto parsed = Tokenizer::parse(testing::small_tokenizer_json("byte_level").dump(), "tokenizer.json", config);
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(TokenizerConfig, TokensAsStringsAndObjects) {
  const auto parsed =
      Tokenizer::parse(testing::small_tokenizer_json("byte_level").dump(), "tokenizer.json",
                       R"({"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","pad_token":null})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ((*parsed)->bos_token(), "<s>");
  EXPECT_EQ((*parsed)->eos_id(), (*parsed)->id_of("</s>"));
  EXPECT_EQ((*parsed)->pad_token(), std::nullopt);
  EXPECT_EQ(config_error(R"({"bos_token":7})"),
            "tokenizer_config.json: bos_token: found 7, expected a string or an object with \"content\"");
  EXPECT_EQ(config_error(R"({"bos_token":{"content":7}})"),
            "tokenizer_config.json: bos_token.content: found 7, expected a string");
  EXPECT_EQ(config_error(R"({"add_bos_token":true})"),
            "tokenizer_config.json: bos_token: found nothing, expected a token of tokenizer.json, because "
            "add_bos_token is true");
}

TEST(TokenizerConfig, AddBosTokenDoesNotDoubleTheTemplate) {
  const std::string config = R"({"bos_token":"<s>","eos_token":"</s>","add_bos_token":true,"add_eos_token":true})";
  json spec = testing::small_tokenizer_json("byte_level");
  for (const bool with_template : {false, true}) {
    if (with_template)
      spec["post_processor"] = json::parse(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},
        {"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[)" +
                                           spec["added_tokens"][0]["id"].dump() + "]}}}");
    const auto parsed = Tokenizer::parse(spec.dump(), "tokenizer.json", config);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const auto ids = (*parsed)->encode("a", true, true);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, (std::vector<std::int32_t>{*(*parsed)->bos_id(), 'a', *(*parsed)->eos_id()}));
  }
}

TEST(TokenizerErrors, InvalidUtf8NamesTheByte) {
  const auto ids = testing::demo_tokenizer().encode("ab\xC3", false, true);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(ids.status().message(),
            "text: byte 2: found 0xC3, which begins no UTF-8 sequence that is complete, expected valid UTF-8; convert "
            "the text "
            "to UTF-8");
  for (std::string_view bad :
       {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5", "\xFF", "\xE4\xB8"})
    EXPECT_FALSE(testing::demo_tokenizer().encode(bad, false, true).ok());
}

TEST(TokenizerErrors, MissingFile) {
  const auto folder = std::filesystem::temp_directory_path() / "ktc_no_such_folder";
  const auto opened = Tokenizer::open(folder);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::not_found);
  EXPECT_EQ(opened.status().message(),
            (folder / "tokenizer.json").string() +
                ": found no such file, expected the tokenizer of the checkpoint; copy tokenizer.json "
                "into the folder");
}

TEST(TokenizerErrors, NotJson) {
  const auto parsed = Tokenizer::parse("{\"model\": ", "tokenizer.json");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), StatusCode::data_corrupt);
  EXPECT_TRUE(parsed.status().message().starts_with("tokenizer.json: byte 11: not JSON: found "))
      << parsed.status().message();
  EXPECT_TRUE(parsed.status().message().ends_with("; download the file again"));
}

// A tokenizer that uses every component, small enough to be cut at every byte.
std::string tiny() {
  return R"~({"version":"1.0","added_tokens":[{"id":6,"content":"<s>","special":true,"normalized":true,"lstrip":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace","pattern":{"String":"x"},"content":"a"},{"type":"Strip","strip_left":true,"strip_right":false}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}|[^\\s\\p{L}]+(?!b)"},"behavior":"MergedWithNext","invert":false},{"type":"Digits","individual_digits":true}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[6]}}},
"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"a"},"content":"A"},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]},
"model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,"vocab":{"a":0,"b":1,"ab":2,"?":3,"<0x20>":4,"<0x31>":5},"merges":["a b"]}})~";
}

void use(const Tokenizer& t) {
  for (const char* text : {"", "ab", " <s>x1 23é\xF0\x9F\x98\x80?", "aabb  b"}) {
    const auto ids = t.encode(text, true, true);
    if (!ids.ok()) continue;
    (void)t.decode(*ids, false);
    StreamDecoder stream(t, true);
    for (std::int32_t id : *ids) (void)stream.push(id);
    (void)stream.finish();
    (void)t.encode_with_ordinary(text, {{0, std::string_view(text).size()}}, false);
  }
}

TEST(TokenizerHostile, CutAtEveryByte) {
  const std::string whole = tiny();
  ASSERT_TRUE(Tokenizer::parse(whole, "t").ok()) << Tokenizer::parse(whole, "t").status().message();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const auto parsed = Tokenizer::parse(std::string_view(whole).substr(0, n), "t");
    EXPECT_FALSE(parsed.ok()) << n;
  }
}

TEST(TokenizerHostile, EveryByteFlipped) {
  const std::string whole = tiny();
  std::mt19937 rng(17);
  int loaded = 0;
  for (std::size_t n = 0; n < whole.size(); ++n)
    for (int k = 0; k < 4; ++k) {
      std::string bent = whole;
      bent[n] = k == 0 ? static_cast<char>(bent[n] ^ (1 << rng() % 8)) : "09\"[]{}:,ax\\-e"[rng() % 14];
      const auto parsed = Tokenizer::parse(bent, "t");
      if (parsed.ok()) ++loaded, use(**parsed);
    }
  EXPECT_GT(loaded, 100);
}

TEST(TokenizerHostile, DeepAndHugeValues) {
  EXPECT_FALSE(Tokenizer::parse(std::string(200000, '['), "t").ok());
  EXPECT_FALSE(Tokenizer::parse(R"({"model":{"type":"BPE","merges":[],"vocab":{"a":4194304}}})", "t").ok());
  const auto sparse = Tokenizer::parse(R"({"model":{"type":"BPE","merges":[],"vocab":{"a":4194303}}})", "t");
  ASSERT_TRUE(sparse.ok());
  EXPECT_EQ((*sparse)->vocab_size(), 4194304);
  use(**sparse);
}

}  // namespace
}  // namespace ktc::text
