// What a header says, and what is said about a wrong one.
#include <gtest/gtest.h>

#include <chrono>

#include "runtime/safetensors/safetensors.h"
#include "test/safetensors/bytes.h"

namespace ktc::safetensors {
namespace {

Expected<Header> parse(std::string_view json, std::size_t data_bytes) {
  const auto bytes = test::safetensors_bytes(json, data_bytes);
  return parse_header(bytes, bytes.size(), "m.safetensors");
}

TEST(SafetensorsHeader, ReadsTensorsAndMetadata) {
  const auto header =
      parse(R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"__metadata__":{"format":"pt"},)"
            R"("a":{"data_offsets":[0,8],"shape":[4],"dtype":"BF16"}}   )",
            32);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 2u);
  const TensorInfo &a = header->tensors.at("a"), &b = header->tensors.at("b");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{4}));
  EXPECT_EQ(b.offset, a.offset + 8);
  EXPECT_EQ(b.bytes, 24u);
  EXPECT_EQ(b.offset + b.bytes, header->file_bytes);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, TakesScalarsEmptyTensorsAndHoles) {
  const auto header = parse(R"({"scalar":{"dtype":"I64","shape":[],"data_offsets":[8,16]},)"
                            R"("empty":{"dtype":"F32","shape":[0,9223372036854775808,4],"data_offsets":[12,12]}})",
                            64);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors.at("scalar").bytes, 8u);
  EXPECT_EQ(header->tensors.at("empty").bytes, 0u);
}

TEST(SafetensorsHeader, KnowsTheWidthOfEveryDtype) {
  for (const char* one : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"}) EXPECT_EQ(dtype_bytes(one), 1u) << one;
  for (const char* two : {"I16", "U16", "F16", "BF16"}) EXPECT_EQ(dtype_bytes(two), 2u) << two;
  for (const char* four : {"I32", "U32", "F32"}) EXPECT_EQ(dtype_bytes(four), 4u) << four;
  for (const char* eight : {"I64", "U64", "F64", "C64"}) EXPECT_EQ(dtype_bytes(eight), 8u) << eight;
  for (const char* none : {"", "f32", "F33", "F32 "}) EXPECT_EQ(dtype_bytes(none), 0u) << none;
}

TEST(SafetensorsHeader, ReadsSixtyThousandTensorsQuickly) {
  std::string json = "{";
  for (int i = 0; i < 60000; ++i)
    json += (i == 0 ? "" : ",") + ("\"model.layers." + std::to_string(i % 61) + ".mlp.experts." + std::to_string(i)) +
            ".gate_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[" + std::to_string(4 * i) + "," +
            std::to_string(4 * i + 4) + "]}";
  json += "}";
  const auto start = std::chrono::steady_clock::now();
  const auto header = parse(json, 240000);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->tensors.size(), 60000u);
  EXPECT_LT(seconds.count(), 5.0);  // 0.1 s; the margin is for sanitizers on a busy machine
}

struct Wrong {
  const char* json;
  std::size_t data_bytes;
  const char* message;
};
const char* const kDamaged = "; the file is damaged or not a safetensors file; download it again";

class SafetensorsWrongHeader : public testing::TestWithParam<Wrong> {};

TEST_P(SafetensorsWrongHeader, IsRefusedByName) {
  const auto header = parse(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  std::string expected = GetParam().message;
  const std::string again = "download the file again";
  if (expected.find(again) == std::string::npos && expected.find("convert") == std::string::npos) expected += kDamaged;
  EXPECT_EQ(header.status().message(), expected);
}

#define KTC_T(dtype, shape, offsets) "\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets
INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsWrongHeader,
    testing::Values(
        Wrong{"", 0, "m.safetensors: header is not valid JSON: found nothing, expected an object"},
        Wrong{"  {}", 0, "m.safetensors: header is not valid JSON: found no { at byte 8, expected an object"},
        Wrong{"{]", 0, "m.safetensors: header is not valid JSON: found \"{]\" at byte 10"},
        Wrong{"{} x", 0, "m.safetensors: header is not valid JSON: found \"{} x\" at byte 12"},
        Wrong{"{\"a\":[]}", 0, "m.safetensors: tensor \"a\": value: found an array, expected an object"},
        Wrong{"{\"a\":1}", 0, "m.safetensors: tensor \"a\": value: found the number 1, expected an object"},
        Wrong{"{\"a\":{}}", 0, "m.safetensors: tensor \"a\": key \"dtype\" is missing"},
        Wrong{"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0,
              "m.safetensors: tensor \"a\": key \"data_offsets\" is missing"},
        Wrong{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4,
              "m.safetensors: tensor \"a\": key \"shape\" is missing"},
        Wrong{"{\"a\":{\"dtype\":3}}", 0, "m.safetensors: tensor \"a\": dtype: found the number 3, expected a string"},
        Wrong{"{\"a\":{\"dtype\":[]}}", 0, "m.safetensors: tensor \"a\": dtype: found an array, expected a string"},
        Wrong{"{\"a\":{\"shape\":\"4\"}}", 0,
              "m.safetensors: tensor \"a\": shape: found the string \"4\", expected an array of integers"},
        Wrong{"{\"a\":{\"shape\":{}}}", 0,
              "m.safetensors: tensor \"a\": shape: found an object, expected an array of integers"},
        Wrong{"{\"a\":{\"shape\":[null]}}", 0, "m.safetensors: tensor \"a\": shape: found null, expected integers"},
        Wrong{"{\"a\":{\"shape\":[[1]]}}", 0, "m.safetensors: tensor \"a\": shape: found an array, expected integers"},
        Wrong{"{\"a\":{\"shape\":[-1]}}", 0,
              "m.safetensors: tensor \"a\": shape: found the number -1, expected an integer of 0 to 2^64 - 1"},
        Wrong{"{\"a\":{\"shape\":[1.5]}}", 0,
              "m.safetensors: tensor \"a\": shape: found the number 1.5, expected an integer of 0 to 2^64 - 1"},
        Wrong{"{\"a\":{\"data_offsets\":[18446744073709551616,0]}}", 0,
              "m.safetensors: tensor \"a\": data_offsets: found the number 18446744073709551616, expected an integer "
              "of 0 "
              "to 2^64 - 1"},
        Wrong{"{\"a\":{\"data_offsets\":[0]}}", 0,
              "m.safetensors: tensor \"a\": data_offsets: found fewer than two numbers, expected [begin, end]"},
        Wrong{"{\"a\":{\"data_offsets\":[0,1,2]}}", 0,
              "m.safetensors: tensor \"a\": data_offsets: found more than two numbers, expected [begin, end]"},
        Wrong{"{\"a\":{" KTC_T("F32", "[1]", "[4,0]") "}}", 8,
              "m.safetensors: tensor \"a\": data_offsets: found [4, 0], expected begin at most end"},
        Wrong{"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0,
              "m.safetensors: tensor \"a\": key \"dtype\": found it twice, expected every key once"},
        Wrong{"{\"a\":{\"size\":1}}", 0,
              "m.safetensors: tensor \"a\": key: found \"size\", expected dtype, shape or data_offsets"},
        Wrong{"{\"a\":{" KTC_T("F32", "[1]", "[0,4]") "},\"a\":{" KTC_T("F32", "[1]", "[4,8]") "}}", 8,
              "m.safetensors: tensor \"a\": the name occurs twice: expected every name once"},
        Wrong{"{\"__metadata__\":{},\"__metadata__\":{}}", 0,
              "m.safetensors: __metadata__: the name occurs twice: expected every name once"},
        Wrong{"{\"__metadata__\":{\"k\":1}}", 0,
              "m.safetensors: __metadata__: value of \"k\": found the number 1, expected a string"},
        Wrong{"{\"__metadata__\":{\"k\":{\"k\":{}}}}", 0,
              "m.safetensors: __metadata__: value of \"k\": found an object, expected a string"},
        Wrong{"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0,
              "m.safetensors: __metadata__: key \"k\": found it twice, expected every key once"},
        Wrong{"{\"a\":{" KTC_T("F31", "[1]", "[0,4]") "}}", 4,
              "m.safetensors: tensor \"a\": dtype: found \"F31\", expected one of BOOL, U8, I8, F8_E4M3, F8_E5M2, "
              "F8_E8M0, "
              "I16, U16, F16, BF16, I32, U32, F32, I64, U64, F64, C64; convert the checkpoint"},
        Wrong{"{\"a\":{" KTC_T("F32", "[2,3]", "[0,20]") "}}", 20,
              "m.safetensors: tensor \"a\": length of data_offsets: found 20 bytes, expected 24 bytes for F32 [2, 3]"},
        Wrong{"{\"a\":{" KTC_T("F32", "[4294967296,4294967296]", "[0,0]") "}}", 0,
              "m.safetensors: tensor \"a\": shape: found [4294967296, 4294967296], expected fewer than 2^64 bytes"},
        Wrong{"{\"a\":{" KTC_T("U8", "[1]", "[18446744073709551614,18446744073709551615]") "}}", 0,
              "m.safetensors: tensor \"a\": data_offsets end: found 18446744073709551615, expected at most 0"},
        Wrong{
            "{\"a\":{" KTC_T("U8", "[16]", "[0,16]") "},\"b\":{" KTC_T("U8", "[8]", "[15,23]") "}}", 23,
            "m.safetensors: tensor \"b\": data begin: found byte 132, expected byte 133 or later, behind tensor \"a\""},
        Wrong{
            "{\"a\":{" KTC_T("U8", "[16]", "[0,16]") "},\"b\":{" KTC_T("U8", "[16]", "[0,16]") "}}", 16,
            "m.safetensors: tensor \"b\": data begin: found byte 117, expected byte 133 or later, behind tensor \"a\""},
        Wrong{"{\"a\":{" KTC_T("U8", "[16]", "[0,16]") "}}", 10,
              "m.safetensors: the file is cut short: found 73 bytes, expected 79 bytes (incomplete download?); "
              "download the "
              "file again"}));

TEST(SafetensorsHeader, RefusesAHeaderLengthBeyondTheFileOrTheFormat) {
  auto bytes = test::safetensors_bytes("{}", 0);
  bytes[0] = std::byte{100};
  EXPECT_EQ(
      parse_header(bytes, bytes.size(), "m").status().message(),
      "m: the file is cut short: found 10 bytes, expected 108 bytes (incomplete download?); download the file again");
  bytes[7] = std::byte{0xff};
  EXPECT_EQ(parse_header(bytes, bytes.size(), "m").status().message(),
            "m: header length: found 18374686479671623780 bytes, expected at most 100000000 bytes; the file is damaged "
            "or not "
            "a safetensors file; download it again");
  EXPECT_EQ(
      parse_header(std::span(bytes).first(3), 3, "m").status().message(),
      "m: too short for a safetensors file: found 3 bytes, expected at least 8 bytes (incomplete download?); download "
      "the file again");
}

TEST(SafetensorsHeader, CutsALongNameInMessages) {
  const std::string name(100000, 'x');
  const auto header = parse("{\"" + name + "\":{}}", 0);
  ASSERT_FALSE(header.ok());
  EXPECT_LT(header.status().message().size(), 400u);
}

}  // namespace
}  // namespace ktc::safetensors
