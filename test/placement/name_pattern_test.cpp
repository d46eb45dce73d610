#include "placement/name_pattern.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ktc::placement {
namespace {

bool matches(std::string_view pattern, std::string_view name) {
  const auto compiled = NamePattern::compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  return compiled.ok() && compiled->matches(name);
}

TEST(NamePatternTest, MatchesTheWholeName) {
  EXPECT_TRUE(matches("model\\.layers\\.[0-9]+\\.mlp", "model.layers.12.mlp"));
  EXPECT_FALSE(matches("model\\.layers\\.[0-9]+\\.mlp", "model.layers.12.mlp.experts"));
  EXPECT_FALSE(matches("layers", "model.layers"));
  EXPECT_TRUE(matches(".*", "anything"));
  EXPECT_TRUE(matches("a|bc", "bc"));
  EXPECT_TRUE(matches("model\\.layers\\.(1?[0-9])\\..*", "model.layers.19.mlp"));
  EXPECT_FALSE(matches("model\\.layers\\.(1?[0-9])\\..*", "model.layers.20.mlp"));
  EXPECT_TRUE(matches("(?:a|b){2,3}", "abb"));
  EXPECT_FALSE(matches("(?:a|b){2,3}", "abba"));
  EXPECT_TRUE(matches("[\\d]{1,2}", "42"));
}

// Patterns that take exponential time, or a stack frame per character, in a backtracking matcher.
TEST(NamePatternTest, NoPatternIsSlow) {
  const std::string name(kMaxNameLength, 'a');
  const auto start = std::chrono::steady_clock::now();
  for (const char* pattern : {"(a*)*b", "(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)b",
                              "(((a*)*)*)*b", "(a?){150}b", "([a-z]+)*[0-9]"})
    EXPECT_FALSE(matches(pattern, name)) << pattern;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(NamePatternTest, CostIsBoundedByThePattern) {
  EXPECT_TRUE(NamePattern::compile(std::string(kMaxPatternLength, 'a')).ok());
  EXPECT_FALSE(NamePattern::compile(std::string(kMaxPatternLength + 1, 'a')).ok());
  EXPECT_TRUE(NamePattern::compile("[0-9]{1,99}").ok());
  for (const char* pattern :
       {"a{1000000}", "(a{100}){100}", "a{99999999999999999999}", "((a{20}){20}){20}", "a{,5}", "a{5"}) {
    const auto compiled = NamePattern::compile(pattern);
    EXPECT_FALSE(compiled.ok()) << pattern;
    EXPECT_FALSE(compiled.status().message().empty());
  }
  EXPECT_FALSE(NamePattern::compile(std::string("a\0b", 3)).ok());
  // in a class these characters are ordinary
  EXPECT_TRUE(matches("[(?{]+", "(?{"));
}

TEST(NamePatternTest, LongNamesMatchNothing) {
  EXPECT_TRUE(matches("a*", std::string(kMaxNameLength, 'a')));
  EXPECT_FALSE(matches("a*", std::string(kMaxNameLength + 1, 'a')));
}

}  // namespace
}  // namespace ktc::placement
