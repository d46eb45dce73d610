#include "tools/ktc/run_ids.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/safetensors/safetensors.h"
#include "tools/ktc/text_file.h"

namespace ktc::run {
namespace {

using Ids = std::vector<std::int32_t>;

class RunIds : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name) { return std::filesystem::path(testing::TempDir()) / name; }

  TensorPath write(const std::string& tensor, const char* dtype, std::vector<std::uint64_t> shape, const Ids& ids) {
    const safetensors::OutputTensor out{
        .name = tensor, .dtype = dtype, .shape = std::move(shape), .data = std::as_bytes(std::span(ids))};
    const TensorPath path{file("run_ids.safetensors"), tensor};
    const Status status = safetensors::write_file(path.file, std::span(&out, 1));
    EXPECT_TRUE(status.ok()) << status.message();
    return path;
  }

  std::string error(const TensorPath& path) {
    const Expected<IdRows> rows = read_id_rows("--ids", path, 10);
    return rows.ok() ? "accepted" : rows.status().message();
  }
};

TEST_F(RunIds, ReadsRows) {
  const Expected<IdRows> rows = read_id_rows("--ids", write("t", "I32", {2, 3}, {1, 2, 3, 4, 5, 6}), 10);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows->rows, 2u);
  EXPECT_EQ(rows->columns, 3u);
  EXPECT_EQ(Ids(rows->row(1).begin(), rows->row(1).end()), (Ids{4, 5, 6}));
  const Expected<IdRows> one = read_id_rows("--ids", write("t", "I32", {4}, {1, 2, 3, 9}), 10);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->rows, 1u);
  EXPECT_EQ(one->columns, 4u);
}

TEST_F(RunIds, RefusesWhatIsNoRowsOfIds) {
  const std::string place = "--ids " + file("run_ids.safetensors").string();
  TensorPath path = write("t", "I32", {2, 2}, {1, 2, 3, 10});
  EXPECT_EQ(error(path), place + ":t: token id outside the vocabulary: found 10 in row 1, column 1, expected 0 to 9");
  path.tensor = "u";
  EXPECT_EQ(error(path), place + ":u: no such tensor: found t, expected u");
  EXPECT_EQ(error(write("t", "I32", {1}, {-1})),
            place + ":t: token id outside the vocabulary: found -1 in row 0, column 0, expected 0 to 9");
  EXPECT_EQ(error(write("t", "F32", {2}, {1, 2})), place + ":t: wrong type: found F32, expected I32");
  EXPECT_EQ(error(write("t", "I32", {1, 1, 2}, {1, 2})),
            place + ":t: wrong shape: found [1, 1, 2], expected [rows, tokens], not empty");
  EXPECT_EQ(error(write("t", "I32", {0, 2}, {})),
            place + ":t: wrong shape: found [0, 2], expected [rows, tokens], not empty");
  EXPECT_NE(error({file("absent.safetensors"), "t"}), "accepted");
}

TEST_F(RunIds, ReadsTextWhole) {
  const std::string text = std::string(100000, 'x') + "\n\xff\0end" + std::string(1, '\0');
  std::ofstream(file("text"), std::ios::binary) << text;
  const Expected<std::string> read = tools::read_text_file("--prompt-file", file("text"));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, text);
  EXPECT_EQ(tools::read_text_file("--prompt-file", file("absent")).status().message(),
            "--prompt-file " + file("absent").string() +
                ": cannot read: found No such file or directory, expected a text file");
  EXPECT_EQ(tools::read_text_file("--perplexity", testing::TempDir()).status().message(),
            "--perplexity " + testing::TempDir() + ": found a folder, expected a text file");
}

}  // namespace
}  // namespace ktc::run
