// Every truncation and every flipped byte of a small file: an error or a header whose ranges lie in the file, never
// more.
#include <gtest/gtest.h>

#include "runtime/safetensors/safetensors.h"
#include "test/safetensors/bytes.h"

namespace ktc::safetensors {
namespace {

const std::vector<std::byte>& small_file() {
  static const auto bytes = test::safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"model.norm.weight":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
      R"("model.embed.weight":{"dtype":"BF16","shape":[4,2],"data_offsets":[16,32]}})",
      32);
  return bytes;
}

void expect_sound(const Header& header, std::uint64_t file_bytes) {
  for (const auto& [name, info] : header.tensors) {
    EXPECT_LE(info.offset, file_bytes);
    EXPECT_LE(info.bytes, file_bytes - info.offset);
    EXPECT_NE(dtype_bytes(info.dtype), 0u);
  }
}

TEST(SafetensorsHostile, EveryTruncationIsAnError) {
  const auto& bytes = small_file();
  ASSERT_TRUE(parse_header(bytes, bytes.size(), "m").ok());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(length));  // exact heap block
    const auto header = parse_header(cut, length, "m");
    EXPECT_FALSE(header.ok()) << length;
    EXPECT_NE(header.status().message().find("incomplete download?"), std::string::npos) << header.status().message();
  }
}

TEST(SafetensorsHostile, EveryFlippedByteIsHandled) {
  const auto& original = small_file();
  int accepted = 0;
  for (std::size_t at = 0; at < original.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      auto bytes = original;
      bytes[at] = static_cast<std::byte>(value);
      const auto header = parse_header(bytes, bytes.size(), "m");
      if (!header.ok()) {
        EXPECT_EQ(header.status().message().find('\n'), std::string::npos);
        continue;
      }
      ++accepted;
      expect_sound(*header, bytes.size());
    }
  }
  EXPECT_GT(accepted, 0);  // the unflipped value, names and data
}

TEST(SafetensorsHostile, DeepNestingIsRefusedWithoutDepth) {
  const auto bytes = test::safetensors_bytes("{\"a\":" + std::string(1000000, '['), 0);
  EXPECT_EQ(
      parse_header(bytes, bytes.size(), "m").status().message(),
      "m: tensor \"a\": value: found an array, expected an object; the file is damaged or not a safetensors file; "
      "download it again");
}

}  // namespace
}  // namespace ktc::safetensors
