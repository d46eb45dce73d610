// Files: what is written is read back, and what the system refuses is said.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "runtime/safetensors/safetensors.h"

namespace ktc::safetensors {
namespace {

class SafetensorsFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("ktc-safetensors-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string contents(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::filesystem::path folder_;
};

TEST_F(SafetensorsFile, WrittenTensorsAreReadBack) {
  std::vector<float> floats(6);
  std::iota(floats.begin(), floats.end(), 0.5f);
  const std::vector<std::int32_t> ids = {7, -1};
  const OutputTensor first{"logits", "F32", {2, 3}, std::as_bytes(std::span(floats))};
  const OutputTensor second{"\"ids\" é", "I32", {2}, std::as_bytes(std::span(ids))};
  const OutputTensor in_order[] = {first, second}, reversed[] = {second, first};
  const auto path = folder_ / "out.safetensors", again = folder_ / "again.safetensors";
  ASSERT_EQ(write_file(path, in_order).message(), "");
  ASSERT_EQ(write_file(again, reversed).message(), "");
  EXPECT_EQ(contents(path), contents(again));

  const auto header = read_header(path);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->file_bytes, contents(path).size());
  const auto logits = read_tensor(path, header->tensors.at("logits"));
  ASSERT_TRUE(logits.ok());
  ASSERT_EQ(logits->size(), 24u);
  EXPECT_EQ(std::memcmp(logits->data(), floats.data(), 24), 0);
  const auto read_ids = read_tensor(path, header->tensors.at("\"ids\" é"));
  ASSERT_TRUE(read_ids.ok());
  EXPECT_EQ(std::memcmp(read_ids->data(), ids.data(), 8), 0);
}

TEST_F(SafetensorsFile, RefusesWrongOutput) {
  const float value = 1;
  const auto data = std::as_bytes(std::span(&value, 1));
  const std::string path = (folder_ / "out").string();
  const auto message = [&](std::vector<OutputTensor> tensors) { return write_file(path, tensors).message(); };
  EXPECT_EQ(message({{"a", "F32", {2}, data}}),
            path + ": tensor \"a\": data: found 4 bytes, expected 8 bytes for its shape");
  EXPECT_EQ(message({{"a", "F32", {1ull << 32, 1ull << 32}, data}}),
            path + ": tensor \"a\": data: found 4 bytes, expected fewer than 2^64 bytes");
  EXPECT_EQ(message({{"a", "F3", {1}, data}}),
            path + ": tensor \"a\": dtype: found \"F3\", expected a safetensors dtype");
  EXPECT_EQ(message({{"a", "F32", {1}, data}, {"a", "F32", {1}, data}}),
            path + ": tensor \"a\": the name occurs twice");
  EXPECT_EQ(message({{"__metadata__", "F32", {1}, data}}),
            path + ": tensor name: found \"__metadata__\", expected another name");
  EXPECT_EQ(message({{"\xff", "F32", {1}, data}}),
            path + ": tensor \"\xff\": name: found bytes that are not UTF-8, expected UTF-8");
  const auto nowhere = folder_ / "none" / "out";
  EXPECT_EQ(write_file(nowhere, {}).message(),
            nowhere.string() + ": cannot write: found No such file or directory; check the free space");
}

TEST_F(SafetensorsFile, SaysWhatCannotBeOpened) {
  const auto missing = folder_ / "missing";
  EXPECT_EQ(read_header(missing).status().code(), StatusCode::not_found);
  EXPECT_EQ(read_header(missing).status().message(),
            missing.string() + ": cannot open: found No such file or directory; check that the checkpoint is complete");
  EXPECT_EQ(read_header(folder_).status().message(),
            folder_.string() + ": cannot read: found no regular file, expected a safetensors file");
}

TEST_F(SafetensorsFile, ACutFileIsAnErrorBeforeItsTensorsAreRead) {
  const std::vector<float> values(256);
  const OutputTensor tensors[] = {{"a", "F32", {256}, std::as_bytes(std::span(values))}};
  const auto path = folder_ / "cut";
  ASSERT_TRUE(write_file(path, tensors).ok());
  const auto header = read_header(path);
  ASSERT_TRUE(header.ok());
  const auto size = header->file_bytes;
  std::filesystem::resize_file(path, size - 1);
  EXPECT_EQ(read_header(path).status().message(),
            path.string() + ": the file is cut short: found " + std::to_string(size - 1) + " bytes, expected " +
                std::to_string(size) + " bytes (incomplete download?); download the file again");
  EXPECT_EQ(read_tensor(path, header->tensors.at("a")).status().code(), StatusCode::data_corrupt);
  TensorInfo huge{"U8", {}, 1, UINT64_MAX};
  EXPECT_EQ(read_tensor(path, huge).status().code(), StatusCode::data_corrupt);
}

TEST(SafetensorsDemo, TheCommittedCheckpointIsReadable) {
  const std::filesystem::path demo = std::filesystem::path(KTC_SOURCE_DIR) / "models/demo";
  const auto header = read_header(demo / "reference/reference.safetensors");
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_TRUE(header->tensors.contains("eval_ids"));
  const auto ids = read_tensor(demo / "reference/reference.safetensors", header->tensors.at("eval_ids"));
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->size(), header->tensors.at("eval_ids").bytes);
  for (const char* shard : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    EXPECT_TRUE(read_header(demo / shard).ok()) << shard;
}

}  // namespace
}  // namespace ktc::safetensors
