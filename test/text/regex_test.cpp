// Oniguruma patterns on PCRE2: the same pieces as the reference, and refusals where there is no way to say it.
#include "runtime/text/regex.h"

#include <gtest/gtest.h>

#include "runtime/text/pre_tokenizer.h"
#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

TEST(Regex, PublishedPatternsCutLikeTheReference) {
  const auto fixtures = testing::fixture("tokenizer_patterns.json");
  ASSERT_GE(fixtures["patterns"].size(), 17u);
  RegexScratch scratch;
  for (const auto& pattern : fixtures["patterns"]) {
    nlohmann::json steps = nlohmann::json::array();
    for (const auto& regex : pattern["regexes"])
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
    const nlohmann::json json = {{"type", "Sequence"}, {"pretokenizers", steps}};
    auto pre_tokenizer = PreTokenizer::load(JsonNode(json, "pre_tokenizer"));
    ASSERT_TRUE(pre_tokenizer.ok()) << pattern["name"] << ": " << pre_tokenizer.status().message();
    for (std::size_t i = 0; i < fixtures["texts"].size(); ++i) {
      std::string text = fixtures["texts"][i].get<std::string>();
      std::vector<Span> words;
      ASSERT_TRUE(pre_tokenizer->apply(text, scratch, words).ok());
      std::vector<std::size_t> sizes;
      for (const Span& word : words) sizes.push_back(word.end - word.begin);
      EXPECT_EQ(sizes, pattern["piece_bytes"][i].get<std::vector<std::size_t>>())
          << pattern["name"] << " on text " << i << ": " << nlohmann::json(text);
    }
  }
}

std::string error_of(std::string_view pattern) {
  auto compiled = Regex::compile(pattern);
  return compiled.ok() ? "" : compiled.status().message();
}

TEST(Regex, RefusesWhatItCannotCarryOver) {
  EXPECT_EQ(error_of("[a[bc]]"), "regular expression, byte 2: found a nested class (\"[a[bc]]\"), expected a flat one");
  EXPECT_EQ(error_of("[\\p{L}&&\\p{Lu}]"),
            "regular expression, byte 6: found a class intersection (\"[\\p{L}&&\\p{Lu}]\"), expected a flat class");
  EXPECT_EQ(error_of("\\xE4"),
            "regular expression, byte 0: found \\xE4 (\"\\xE4\"), expected \\x{HHHH} for characters above 7F");
  EXPECT_EQ(error_of("(?x: a)"),
            "regular expression, byte 0: found the group (?x (\"(?x: a)\"), expected (?:, look-around, or options of i "
            "and m");
  EXPECT_EQ(
      error_of("a|(?i)b"),
      "regular expression, byte 2: found options without a group inside the pattern (\"a|(?i)b\"), expected (?i:...)");
  EXPECT_EQ(error_of("\\yb"),
            "regular expression, byte 0: found the escape \\y (\"\\yb\"), expected one that this translation knows");
  EXPECT_EQ(error_of("a)"),
            "regular expression, byte 1: found a ')' without '(' (\"a)\"), expected balanced parentheses");
  EXPECT_EQ(error_of("(a"),
            "regular expression, byte 2: found a '(' without ')' (\"(a\"), expected balanced parentheses");
  EXPECT_EQ(
      error_of("\\p{sc=Han}"),
      "regular expression, byte 0: found the property 'sc=Han' (\"\\p{sc=Han}\"), expected a category or a script");
  EXPECT_EQ(error_of("*a"),
            "regular expression: found quantifier does not follow a repeatable item (\"*a\"), expected a pattern that "
            "PCRE2 can run");
  EXPECT_EQ(error_of("a\\"), "regular expression, byte 1: found a backslash at the end (\"a\\\"), expected an escape");
  EXPECT_EQ(error_of("[ab"), "regular expression, byte 0: found a class without ']' (\"[ab\"), expected [...]");
}

TEST(Regex, CatastrophicPatternEndsWithAnError) {
  auto regex = Regex::compile("(?:a|aa)+b");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  std::vector<Span> matches;
  const Status status = regex->find_all(std::string(200, 'a') + "!b", scratch, matches);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(),
            "splitting the text: found match limit exceeded at byte 0; shorten the text or break it into paragraphs");
}

TEST(Regex, RandomPatternsNeverCrash) {
  const std::string alphabet = "ab\\[](){}*+?|^$.:<=!>#-,&pPLsSdwWhux012{N}\xC3\xA9";
  std::uint32_t state = 12345;
  auto next = [&state] { return state = state * 1664525u + 1013904223u, state >> 8; };
  RegexScratch scratch;
  std::vector<Span> matches;
  int compiled = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string pattern;
    for (std::uint32_t n = next() % 12; n > 0; --n) pattern += alphabet[next() % (alphabet.size() - 2)];
    auto regex = Regex::compile(pattern);
    if (!regex.ok()) continue;
    ++compiled;
    (void)regex->find_all("ab Ab1é\n{N}x", scratch, matches);
    for (const Span& m : matches) ASSERT_LE(m.begin, m.end);
  }
  EXPECT_GT(compiled, 500);
}

TEST(SplitByMatches, CoversTheTextUnlessMatchesAreRemoved) {
  std::uint32_t state = 1;
  auto next = [&state](std::uint32_t n) { return state = state * 1664525u + 1013904223u, (state >> 8) % n; };
  for (int round = 0; round < 2000; ++round) {
    const std::size_t size = next(20);
    std::vector<Span> matches;
    for (std::size_t at = next(3); at < size;) {
      const std::size_t end = std::min<std::size_t>(size, at + next(4));
      matches.push_back({at, end});
      at = end + (end == at) + next(3);
    }
    for (const auto behavior : {SplitBehavior::isolated, SplitBehavior::removed, SplitBehavior::merged_with_previous,
                                SplitBehavior::merged_with_next, SplitBehavior::contiguous})
      for (const bool invert : {false, true}) {
        std::vector<Span> words;
        split_by_matches(size, matches, behavior, invert, words);
        std::size_t at = 0, total = 0;
        for (const Span& word : words) {
          ASSERT_LT(word.begin, word.end);
          ASSERT_GE(word.begin, at);
          at = word.end;
          total += word.end - word.begin;
        }
        std::size_t removed = 0;
        for (const Span& m : matches) removed += m.end - m.begin;
        if (invert) removed = size - removed;
        EXPECT_EQ(total, behavior == SplitBehavior::removed ? size - removed : size);
      }
  }
}

}  // namespace
}  // namespace ktc::text
