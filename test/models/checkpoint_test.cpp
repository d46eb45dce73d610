// Files of a checkpoint: the index is authoritative, incomplete checkpoints are refused by name (user problem 6), and a
// thousand shards are read in seconds.
#include "models/checkpoint.h"

#include <functional>

#include "model_test_support.h"

namespace ktc::models {
namespace {

using ktc::test::FakeCheckpoint;
using ktc::test::make_qwen3_moe;
using ktc::test::shard_name;
using ktc::test::TemporaryFolder;
using testing::ElementsAre;
using testing::IsEmpty;

namespace fs = std::filesystem;

FakeCheckpoint three_shards() {
  FakeCheckpoint checkpoint = make_qwen3_moe();
  checkpoint.shards = 3;
  return checkpoint;
}

TEST(Checkpoint, SingleFileAndShardsGiveTheSameModel) {
  const ReadOutcome single = read(make_qwen3_moe()), sharded = read(three_shards());
  ASSERT_EQ(single.error, "");
  ASSERT_EQ(sharded.error, "");
  EXPECT_EQ(single.model->shards.size(), 1u);
  EXPECT_EQ(sharded.model->shards.size(), 3u);
  ASSERT_EQ(single.model->tensors.size(), sharded.model->tensors.size());
  for (std::size_t i = 0; i < single.model->tensors.size(); ++i) {
    EXPECT_EQ(single.model->tensors[i].name, sharded.model->tensors[i].name);
    EXPECT_EQ(single.model->tensors[i].shape, sharded.model->tensors[i].shape);
  }
}

TEST(Checkpoint, MissingShard) {
  TemporaryFolder folder;
  three_shards().write(folder.path());
  fs::remove(folder.path() / shard_name(1, 3));
  EXPECT_EQ(read_folder(folder.path()).error,
            "M: 1 of 3 shards missing: 'model-00002-of-00003.safetensors' with 15 tensors, the first of them "
            "'model.layers.0.mlp.experts.1.down_proj.weight', 'model.layers.0.mlp.experts.2.down_proj.weight', "
            "'model.layers.0.mlp.experts.2.gate_proj.weight', 'model.layers.0.mlp.experts.2.up_proj.weight', "
            "'model.layers.0.mlp.experts.3.down_proj.weight' and 10 more: expected every file that "
            "model.safetensors.index.json "
            "names; incomplete download? fetch the checkpoint again");
}

TEST(Checkpoint, LastShardMissing) {
  TemporaryFolder folder;
  three_shards().write(folder.path());
  fs::remove(folder.path() / shard_name(2, 3));
  EXPECT_THAT(read_folder(folder.path()).error,
              testing::AllOf(testing::HasSubstr("1 of 3 shards missing: 'model-00003-of-00003.safetensors'"),
                             testing::HasSubstr("'lm_head.weight'"), testing::HasSubstr("incomplete download?")));
}

TEST(Checkpoint, TruncatedShardSaysFoundAndExpected) {
  TemporaryFolder folder;
  three_shards().write(folder.path());
  const fs::path shard = folder.path() / shard_name(2, 3);
  const std::uint64_t size = fs::file_size(shard);
  fs::resize_file(shard, size - 1024);
  const std::string error = read_folder(folder.path()).error;
  EXPECT_THAT(error, testing::HasSubstr("model-00003-of-00003.safetensors"));
  EXPECT_THAT(error, testing::HasSubstr(std::to_string(size - 1024)));
  EXPECT_THAT(error, testing::HasSubstr(std::to_string(size)));
}

TEST(Checkpoint, NoFilesAtAll) {
  TemporaryFolder folder;
  three_shards().write(folder.path());
  fs::remove(folder.path() / "model.safetensors.index.json");
  EXPECT_EQ(read_folder(folder.path()).error,
            "M: no checkpoint: found 'model-00001-of-00003.safetensors', 'model-00002-of-00003.safetensors', "
            "'model-00003-of-00003.safetensors', expected model.safetensors.index.json or model.safetensors; the index "
            "is missing: "
            "incomplete download? fetch the checkpoint again");
  for (int i = 0; i < 3; ++i) fs::remove(folder.path() / shard_name(static_cast<std::size_t>(i), 3));
  EXPECT_EQ(read_folder(folder.path()).error,
            "M: no checkpoint: found no safetensors file, expected model.safetensors.index.json or model.safetensors; "
            "incomplete "
            "download? fetch the checkpoint again");
  ktc::test::write_text(folder.path() / "model-q4.gguf", "GGUF");
  EXPECT_EQ(read_folder(folder.path()).error,
            "M: no checkpoint: found 'model-q4.gguf', expected model.safetensors.index.json or model.safetensors; GGUF "
            "is not read: "
            "use the original safetensors checkpoint");
  EXPECT_EQ(read_folder(folder.path() / "nowhere").error,
            "M: no checkpoint folder: expected a folder with config.json and safetensors files");
}

TEST(Checkpoint, StrayFilesAreIgnoredWithAWarning) {
  TemporaryFolder folder;
  three_shards().write(folder.path());
  fs::copy_file(folder.path() / shard_name(0, 3), folder.path() / "consolidated.safetensors");
  ReadOutcome outcome = read_folder(folder.path());
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(
      outcome.warnings,
      ElementsAre("M: 1 safetensors file is not part of the checkpoint and ignored: 'consolidated.safetensors'"));
  expect_exact_cover(*outcome.model);
}

TEST(Checkpoint, ATensorInTwoShards) {
  TemporaryFolder folder;
  three_shards().write(folder.path());
  fs::remove(folder.path() / shard_name(1, 3));
  fs::copy_file(folder.path() / shard_name(0, 3), folder.path() / shard_name(1, 3));
  EXPECT_EQ(read_folder(folder.path()).error,
            "M: 'model.embed_tokens.weight': found it in 'model-00001-of-00003.safetensors' and in "
            "'model-00002-of-00003.safetensors', expected every tensor in one file; remove the superseded file, or "
            "download the "
            "checkpoint again");
}

void edit_index(const fs::path& folder, const std::function<void(nlohmann::json&)>& edit) {
  const fs::path path = folder / "model.safetensors.index.json";
  nlohmann::json index = nlohmann::json::parse(ktc::test::read_text(path));
  edit(index);
  ktc::test::write_text(path, index.dump());
}

TEST(Checkpoint, IndexAndHeadersMustAgree) {
  auto outcome_of = [](const std::function<void(nlohmann::json&)>& edit) {
    TemporaryFolder folder;
    three_shards().write(folder.path());
    edit_index(folder.path(), edit);
    return read_folder(folder.path()).error;
  };
  EXPECT_EQ(outcome_of([](auto& index) { index["weight_map"]["model.ghost.weight"] = shard_name(1, 3); }),
            "M/model-00002-of-00003.safetensors: 1 tensors of the index are missing: 'model.ghost.weight': expected "
            "every tensor that "
            "the index lists for the file; incomplete download? fetch the checkpoint again");
  EXPECT_EQ(outcome_of([](auto& index) { index["weight_map"].erase("model.norm.weight"); }),
            "M/model-00003-of-00003.safetensors: tensors that the index does not list: found 'model.norm.weight', "
            "expected every "
            "tensor of the file in model.safetensors.index.json; download the checkpoint again");
  EXPECT_EQ(outcome_of([](auto& index) { index["weight_map"]["model.norm.weight"] = shard_name(0, 3); }),
            "M/model.safetensors.index.json: 'model.norm.weight': found it in 'model-00003-of-00003.safetensors', "
            "expected it in "
            "'model-00001-of-00003.safetensors', as the index says; download the checkpoint again");
  for (const char* hostile : {"../secret.safetensors", "/etc/passwd", "", "..", "a\\b"})
    EXPECT_EQ(outcome_of([&](auto& index) { index["weight_map"]["model.norm.weight"] = hostile; }),
              "M/model.safetensors.index.json: weight_map.model.norm.weight: found " + nlohmann::json(hostile).dump() +
                  ", expected the name of a file in this folder; download the index again");
  EXPECT_EQ(outcome_of([](auto& index) { index.erase("weight_map"); }),
            "M/model.safetensors.index.json: weight_map: found nothing, expected an object of tensor names and file "
            "names; download "
            "the index again");
}

TEST(Checkpoint, AThousandShardsAndAHundredThousandTensors) {
  FakeCheckpoint checkpoint = make_qwen3_moe({.layers = 64, .experts = 520, .intermediate = 256});
  checkpoint.shards = 1000;
  ASSERT_GT(checkpoint.tensors.size(), 100'000u);
  TemporaryFolder folder;
  checkpoint.write(folder.path());
  const Stopwatch reading;
  const ReadOutcome outcome = read_folder(folder.path());
  EXPECT_LT(reading.seconds(), 5.0);
  ASSERT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.model->shards.size(), 1000u);
  EXPECT_EQ(outcome.model->tensors.size(), checkpoint.tensors.size());

  // a gap among them is found as quickly
  fs::remove(folder.path() / shard_name(998, 1000));
  const Stopwatch failing;
  EXPECT_THAT(read_folder(folder.path()).error,
              testing::HasSubstr("1 of 1000 shards missing: 'model-00999-of-01000.safetensors'"));
  EXPECT_LT(failing.seconds(), 2.0);
}

}  // namespace
}  // namespace ktc::models
