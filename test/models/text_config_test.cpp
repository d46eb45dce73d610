// Begin and stop tokens, sampling defaults and text files: the stop set is the union of every source.
#include "models/text_config.h"

#include "model_test_support.h"

namespace ktc::models {
namespace {

using ktc::test::FakeCheckpoint;
using ktc::test::make_qwen3_moe;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(TextConfig, StopSetIsTheUnion) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config["eos_token_id"] = {5, 3};
  c.files["generation_config.json"] = R"({"eos_token_id": 7})";
  c.files["tokenizer.json"] = R"({"added_tokens": [{"id": 9, "content": "<|end|>"}, {"content": "x", "id": 2}],
      "model": {"vocab": {"content": 4, "added_tokens": [{"id": 63, "content": "<|end|>"}]}, "merges": ["a b"]}})";
  c.files["tokenizer_config.json"] = R"({"eos_token": {"content": "<|end|>", "special": true}})";
  const ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_THAT(o.warnings, IsEmpty());
  EXPECT_THAT(o.model->stop_tokens, ElementsAre(3, 5, 7, 9));
  EXPECT_EQ(o.model->bos_token, 0);
}

TEST(TextConfig, SamplingDefaults) {
  FakeCheckpoint c = make_qwen3_moe();
  ReadOutcome o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_EQ(o.model->sampling.temperature, 0.7f);
  EXPECT_EQ(o.model->sampling.top_p, 0.9f);
  EXPECT_EQ(o.model->sampling.top_k, 20);
  EXPECT_EQ(o.model->sampling.min_p, std::nullopt);
  EXPECT_EQ(o.model->sampling.repetition_penalty, std::nullopt);
  c.files["generation_config.json"] = R"({"do_sample": false, "temperature": 0.6, "top_k": -1, "top_p": null})";
  o = read(c);
  ASSERT_EQ(o.error, "");
  EXPECT_EQ(o.model->sampling.temperature, 0.0f);
  EXPECT_EQ(o.model->sampling.top_k, 0);
  EXPECT_EQ(o.model->sampling.top_p, std::nullopt);
  c.files["generation_config.json"] = R"({"top_p": 1.5})";
  EXPECT_EQ(read(c).error, "M/generation_config.json: top_p: found 1.5, expected a number from 0 to 1");
}

TEST(TextConfig, BeginToken) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config["bos_token_id"] = nullptr;
  c.files["tokenizer_config.json"] = R"({"bos_token": "<|turn|>"})";
  EXPECT_EQ(read(c).model->bos_token, 1);
  c.files["generation_config.json"] = R"({"bos_token_id": 4})";
  EXPECT_EQ(read(c).model->bos_token, 4);
  c.files.clear();
  EXPECT_EQ(read(c).model->bos_token, -1);
}

TEST(TextConfig, AddedTokensDecoderFillsGaps) {
  FakeCheckpoint c = make_qwen3_moe();
  c.files["tokenizer_config.json"] =
      R"({"eos_token": "<|other|>", "added_tokens_decoder": {"12": {"content": "<|other|>"}}})";
  EXPECT_THAT(read(c).model->stop_tokens, ElementsAre(0, 1, 12));
}

TEST(TextConfig, WarnsWhatIsMissing) {
  FakeCheckpoint c = make_qwen3_moe();
  c.files["tokenizer_config.json"] = R"({"eos_token": "<|nowhere|>"})";
  EXPECT_THAT(read(c).warnings,
              ElementsAre("M/tokenizer_config.json: token \"<|nowhere|>\" is not among the added tokens of "
                          "tokenizer.json: it is not used"));
  c.files.clear();
  c.config["eos_token_id"] = nullptr;
  EXPECT_THAT(read(c).warnings, ElementsAre("M: no tokenizer.json: plans of this model take and give token ids only",
                                            "M: no end-of-text token in config.json, generation_config.json or "
                                            "tokenizer_config.json: generation stops at "
                                            "its length limit only"));
}

TEST(TextConfig, ListsTheFilesThatExist) {
  FakeCheckpoint c = make_qwen3_moe();
  c.files["chat_template.jinja"] = "{{ messages }}";
  EXPECT_THAT(read(c).model->text_files, ElementsAre("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"));
}

TEST(TextConfig, RefusesDamage) {
  FakeCheckpoint c = make_qwen3_moe();
  c.config["eos_token_id"] = 64;
  EXPECT_EQ(read(c).error, "M/config.json: eos_token_id: found 64, expected a token id from 0 to 63");
  c.config["eos_token_id"] = "end";
  EXPECT_EQ(read(c).error, "M/config.json: eos_token_id: found \"end\", expected a token id from 0 to 63");
  c = make_qwen3_moe();
  c.files["tokenizer.json"] = R"({"added_tokens": [)";
  EXPECT_EQ(read(c).error, "M/tokenizer.json: not valid JSON; fetch the file again");
  c = make_qwen3_moe();
  c.files["generation_config.json"] = "[]";
  EXPECT_EQ(read(c).error, "M/generation_config.json: found [], expected an object");
  c.files["generation_config.json"] = "{\"top_k\": 1, \"top_k\": 2}";
  EXPECT_EQ(read(c).error,
            "M/generation_config.json: duplicate key: found \"top_k\", expected every key once; remove one of the two");
}

}  // namespace
}  // namespace ktc::models
