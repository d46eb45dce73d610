// Strict JSON: duplicates, places, limits.
#include "models/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/support/fake_checkpoint.h"

namespace ktc::models {
namespace {

std::string error(std::string_view text) {
  return parse_json(text, "c.json").status().message();
}

TEST(Json, ReadsWhatIsThere) {
  auto json = parse_json(R"({"a": 1, "b": {"a": null}, "c": [{"a": 2}, {"a": 3}]})", "c.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(*find_key(*json, "a"), 1);
  EXPECT_EQ(find_key(*find_key(*json, "b"), "a"), nullptr);  // null is absent
  EXPECT_EQ(find_key(*json, "z"), nullptr);
  EXPECT_EQ(find_key(*find_key(*json, "c"), "a"), nullptr);  // not an object
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_EQ(error(R"({"a": 1, "b": 2, "a": 1})"),
            "c.json: duplicate key: found \"a\", expected every key once; remove one of the two");
  EXPECT_EQ(error(R"({"x": [{"a": {}}, {"b": {"k": 1, "k": 2}}]})"),
            "c.json: duplicate key: found \"k\", expected every key once; remove one of the two");
}

TEST(Json, SaysWhereItBreaks) {
  EXPECT_THAT(error("{\"a\": 1,\n  \"b\" 2}"), testing::StartsWith("c.json:2:7: not valid JSON: syntax error"));
  EXPECT_THAT(error(""), testing::StartsWith("c.json:1:1: not valid JSON: "));
  EXPECT_THAT(error("{\"a\": 1"), testing::StartsWith("c.json:1:8: not valid JSON: "));
  EXPECT_THAT(error("{\"a\": NaN}"), testing::StartsWith("c.json:1:7: not valid JSON: "));
  EXPECT_THAT(error("{\"a\": \"\xff\"}"), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{} {}"), testing::HasSubstr("not valid JSON"));
}

TEST(Json, BoundsDepthAndSize) {
  EXPECT_EQ(error(std::string(70, '[') + std::string(70, ']')),
            "c.json: nested too deeply: expected at most 64 levels");
  EXPECT_TRUE(parse_json(std::string(60, '[') + std::string(60, ']'), "c.json").ok());
  test::TemporaryFolder folder;
  test::write_text(folder.path() / "a.json", std::string(100, ' '));
  EXPECT_THAT(read_json(folder.path() / "a.json", 99).status().message(),
              testing::EndsWith("a.json: file too large: found 100 bytes, expected at most 99"));
  EXPECT_EQ(read_json(folder.path() / "b.json", 99).status().code(), StatusCode::not_found);
  EXPECT_THAT(read_json(folder.path(), 99).status().message(), testing::EndsWith(": cannot be read: expected a file"));
}

TEST(Json, ShowsValuesShortAndAsValidText) {
  EXPECT_EQ(show(Json{{"a", 1}}), "{\"a\":1}");
  EXPECT_EQ(show(Json(std::string(200, 'x'))).size(), 83u);
  EXPECT_EQ(show(Json("\xff")), "\"\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace ktc::models
