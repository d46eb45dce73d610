#include "runtime/base/status.h"

#include <gmock/gmock.h>

#include <memory>

namespace ktc {
namespace {

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::ok);
  EXPECT_EQ(status.message(), "");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::vector<std::string> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::internal); ++code) {
    const std::string name = to_string(static_cast<StatusCode>(code));
    EXPECT_NE(name, "unknown status");
    EXPECT_THAT(names, ::testing::Not(::testing::Contains(name)));
    names.push_back(name);
  }
  EXPECT_STREQ(to_string(static_cast<StatusCode>(200)), "unknown status");
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  const Status status =
      Status(StatusCode::not_found, "no such key").with_context("policy.yaml").with_context("compile");
  EXPECT_EQ(status.code(), StatusCode::not_found);
  EXPECT_EQ(status.message(), "compile: policy.yaml: no such key");
  EXPECT_TRUE(Status().with_context("compile").ok());
  EXPECT_EQ(Status().with_context("compile").message(), "");
}

struct ErrorCase {
  ErrorParts parts;
  std::string message;
};

TEST(MakeError, RendersThePartsThatExist) {
  const ErrorCase cases[] = {
      {{"a.yaml:3:7", "device", "gpu:0", "cpu or cuda:N", "name a device of the target"},
       "a.yaml:3:7: device: found gpu:0, expected cpu or cuda:N; name a device of the target"},
      {{"a.yaml", "device", "", "cpu", ""}, "a.yaml: device: expected cpu"},
      {{"a.yaml", "", "gpu", "", ""}, "a.yaml: found gpu"},
      {{"", "out of memory", "", "", "lower kv_cache.tokens"}, "out of memory; lower kv_cache.tokens"},
      {{"", "", "3", "4", ""}, "found 3, expected 4"},
      {{}, ""},
  };
  for (const ErrorCase& c : cases) {
    const Status status = make_error(StatusCode::invalid_argument, c.parts);
    EXPECT_EQ(status.message(), c.message);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  }
}

TEST(MakeError, IsOneLineWhateverIsQuoted) {
  const Status status = make_error(StatusCode::invalid_argument, {"a\nb", "c\r\nd", "\n", "e\rf", "g\n"});
  EXPECT_THAT(status.message(),
              ::testing::Not(::testing::AnyOf(::testing::HasSubstr("\n"), ::testing::HasSubstr("\r"))));
}

Expected<int> half(int value) {
  if (value % 2 != 0) return Status(StatusCode::invalid_argument, "odd");
  return value / 2;
}

Expected<int> quarter(int value) {
  KTC_ASSIGN_OR_RETURN(const int once, half(value));
  KTC_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

Status check_quarter(int value) {
  KTC_RETURN_IF_ERROR(quarter(value).status());
  return Status();
}

TEST(Expected, HoldsAValueOrTheReasonForNone) {
  EXPECT_TRUE(half(4).ok());
  EXPECT_EQ(*half(4), 2);
  EXPECT_TRUE(half(4).status().ok());
  EXPECT_FALSE(half(3).ok());
  EXPECT_FALSE(static_cast<bool>(half(3)));
  EXPECT_EQ(half(3).status().message(), "odd");
}

TEST(Expected, MacrosReturnTheFirstFailure) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(3).status().message(), "odd");
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_TRUE(check_quarter(8).ok());
  EXPECT_EQ(check_quarter(6).code(), StatusCode::invalid_argument);
}

TEST(Expected, MovesValuesThatCannotBeCopied) {
  Expected<std::unique_ptr<int>> made = std::make_unique<int>(5);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(**made, 5);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 5);
}

}  // namespace
}  // namespace ktc
