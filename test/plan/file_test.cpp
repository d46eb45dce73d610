// plan.ktp as bytes: what is read back, what is refused and how.
#include <gtest/gtest.h>

#include <cstring>

#include "test/plan/small_plan.h"

namespace ktc::plan {
namespace {

std::vector<std::byte> with_new_digest(std::vector<std::byte> bytes) {
  const std::uint64_t digest = digest64(std::span(bytes).first(bytes.size() - 16));
  for (int i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(digest >> (8 * i));
  return bytes;
}

std::string message(const std::vector<std::byte>& bytes) {
  return parse_plan(bytes, "plan.ktp").status().message();
}

TEST(PlanFile, TheSmallPlanIsReadBackAsItWasWritten) {
  const auto plan = parse_plan(test::small_plan_bytes(), "plan.ktp");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(serialise_plan(*plan), test::small_plan_bytes());
  EXPECT_EQ(serialise_plan(*plan), serialise_plan(*plan));
  EXPECT_EQ(dump(*plan), dump(test::small_plan()));
}

TEST(PlanFile, BytesMayStartAnywhere) {
  const auto& bytes = test::small_plan_bytes();
  for (std::size_t shift = 1; shift < 8; ++shift) {
    std::vector<std::byte> moved(bytes.size() + shift);
    std::memcpy(moved.data() + shift, bytes.data(), bytes.size());
    EXPECT_TRUE(parse_plan(std::span(moved).subspan(shift), "plan.ktp").ok());
  }
}

TEST(PlanFile, TheFooterIsTheMagicAndTheDigestInLittleEndian) {
  const auto& bytes = test::small_plan_bytes();
  ASSERT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(std::memcmp(bytes.data() + 4, "KTP1", 4), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + bytes.size() - 16, "KTPDIGST", 8), 0);
  EXPECT_EQ(with_new_digest(bytes), bytes);
}

TEST(PlanFile, TheDigestIsXxh3) {
  // published test vector of XXH3-64 without a seed: the empty input
  EXPECT_EQ(digest64({}), 0x2d06800538d394c2u);
}

TEST(PlanFile, AnotherVersionIsNamedBeforeAnythingElseIsLookedAt) {
  auto bytes = test::small_plan_bytes();
  bytes[7] = std::byte{'2'};
  const auto plan = parse_plan(bytes, "demo.ktp/plan.ktp");
  EXPECT_EQ(plan.status().code(), StatusCode::incompatible);
  EXPECT_EQ(plan.status().message(),
            "demo.ktp/plan.ktp: plan of another version: found \"KTP2\", expected \"KTP1\"; compile the model again "
            "with this ktc");
  bytes.resize(24);
  EXPECT_EQ(
      message(bytes),
      "plan.ktp: plan of another version: found \"KTP2\", expected \"KTP1\"; compile the model again with this ktc");
}

TEST(PlanFile, WhatIsNoPlanIsRefused) {
  const std::string remedy = "; compile the plan again, or copy it again if the copy was cut short";
  EXPECT_EQ(message({}), "plan.ktp: too short for a plan: found 0 bytes, expected at least 24" + remedy);
  auto bytes = test::small_plan_bytes();
  bytes[4] = std::byte{'"'};
  bytes[5] = std::byte{0};
  EXPECT_EQ(message(bytes),
            "plan.ktp: not a plan: identifier: found \"\\x22\\x00P1\", expected \"KTP1\"; name the folder that ktc "
            "compile wrote");
  bytes = test::small_plan_bytes();
  bytes[bytes.size() - 16] = std::byte{'k'};
  EXPECT_EQ(message(bytes),
            "plan.ktp: no footer: found \"kTPDIGST\", expected \"KTPDIGST\" 16 bytes before the end" + remedy);
  bytes = test::small_plan_bytes();
  std::memset(bytes.data() + bytes.size() - 8, 0, 8);
  char expected[200];
  std::snprintf(expected, sizeof expected,
                "plan.ktp: the bytes do not match their digest: found %016llx, expected %016d",
                static_cast<unsigned long long>(digest64(std::span(bytes).first(bytes.size() - 16))), 0);
  EXPECT_EQ(message(bytes), expected + remedy);
}

TEST(PlanFile, ALengthThatIsNoMultipleOfEightIsRefused) {
  auto bytes = test::small_plan_bytes();
  bytes.insert(bytes.end() - 16, std::byte{0});
  EXPECT_EQ(message(with_new_digest(bytes)),
            "plan.ktp: length: found " + std::to_string(bytes.size()) +
                " bytes, expected a multiple of 8; compile the plan again, or copy it again if the copy was cut short");
}

TEST(PlanFile, UnknownFeaturesAreRefused) {
  auto plan = test::small_plan();
  plan.required_features = 9;
  const auto parsed = parse_plan(serialise_plan(plan), "plan.ktp");
  EXPECT_EQ(parsed.status().code(), StatusCode::incompatible);
  EXPECT_EQ(parsed.status().message(),
            "plan.ktp: required_features: found bits 0x9, expected none outside 0x7; use the ktc that compiled it, or "
            "compile "
            "the model again with this one");
}

TEST(PlanFile, FailuresOfMeaningNameTheFile) {
  auto plan = test::small_plan();
  plan.model->vocab_size = 0;
  EXPECT_EQ(message(serialise_plan(plan)),
            "plan.ktp: model: vocab_size: found 0, expected at least 1; compile the model again");
}

const char* const kUnsound =
    "plan.ktp: structure: found offsets or lengths that leave the file or repeat each other, expected a FlatBuffer of "
    "schema "
    "plan.fbs; compile the plan again, or copy it again if the copy was cut short";

template <typename T>
flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<T>>> none(flatbuffers::FlatBufferBuilder& builder) {
  return builder.CreateVector(std::vector<flatbuffers::Offset<T>>());
}

TEST(PlanFile, ManyOffsetsToOneStringAreRefusedBeforeTheyAreUnpacked) {
  // 20,000 lines that share one name of a megabyte would unpack to 20 GB
  flatbuffers::FlatBufferBuilder builder;
  const auto name = builder.CreateString(std::string(1 << 20, 'x'));
  std::vector<flatbuffers::Offset<planfb::AccountLine>> lines;
  for (int i = 0; i < 20000; ++i) lines.push_back(planfb::CreateAccountLine(builder, 0, name, name, 0));
  const auto account = builder.CreateVector(lines);
  const auto model = planfb::CreateModel(builder, name, name);
  builder.Finish(
      planfb::CreatePlan(builder, 0, name, model, none<planfb::Device>(builder), account,
                         none<planfb::WeightFile>(builder), none<planfb::Weight>(builder), none<planfb::Rope>(builder),
                         none<planfb::Cache>(builder), none<planfb::Entry>(builder), none<planfb::TextFile>(builder)),
      "KTP1");
  std::vector<std::byte> bytes((builder.GetSize() + 7) / 8 * 8 + 16);
  std::memcpy(bytes.data(), builder.GetBufferPointer(), builder.GetSize());
  std::memcpy(bytes.data() + bytes.size() - 16, "KTPDIGST", 8);
  EXPECT_EQ(message(with_new_digest(bytes)), kUnsound);
}

}  // namespace
}  // namespace ktc::plan
