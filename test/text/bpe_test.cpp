// The merge procedure against the plainest possible one, and its cost.
#include "runtime/text/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>

#include "runtime/text/unicode.h"
#include "test/text/fixtures.h"

namespace ktc::text {
namespace {

// Over the letters a..d: every pair of known tokens may merge, ranks are random.
struct RandomModel {
  nlohmann::json json;
  std::map<std::pair<std::string, std::string>, int> rank;
};

RandomModel random_model(std::mt19937& rng) {
  RandomModel model;
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  nlohmann::json vocab, merges = nlohmann::json::array();
  for (const auto& t : tokens) vocab[t] = vocab.size();
  for (int i = 0; i < 60; ++i) {
    const std::string a = tokens[rng() % tokens.size()], b = tokens[rng() % tokens.size()];
    if (a.size() + b.size() > 12 || model.rank.contains({a, b})) continue;
    model.rank[{a, b}] = static_cast<int>(merges.size());
    merges.push_back({a, b});
    if (!vocab.contains(a + b)) {
      vocab[a + b] = vocab.size();
      tokens.push_back(a + b);
    }
  }
  model.json = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  return model;
}

std::vector<std::string> merge_plainly(const RandomModel& model, const std::string& word) {
  std::vector<std::string> parts;
  for (char c : word) parts.emplace_back(1, c);
  for (;;) {
    int best = INT32_MAX;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = model.rank.find({parts[i], parts[i + 1]});
      if (it != model.rank.end() && it->second < best) best = it->second, at = i;
    }
    if (best == INT32_MAX) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, EqualsThePlainProcedure) {
  std::mt19937 rng(11);
  for (int round = 0; round < 60; ++round) {
    const RandomModel model = random_model(rng);
    auto bpe = Bpe::load(JsonNode(model.json, "tokenizer.json"));
    ASSERT_TRUE(bpe.ok()) << bpe.status().message();
    Bpe::Scratch scratch;
    for (int i = 0; i < 40; ++i) {
      std::string word;
      for (std::size_t n = rng() % (i % 4 == 0 ? 200 : 30); n > 0; --n) word += static_cast<char>('a' + rng() % 4);
      std::vector<std::int32_t> ids;
      (*bpe)->encode_word(word, scratch, ids);
      std::vector<std::string> parts;
      for (std::int32_t id : ids) parts.push_back(*(*bpe)->token_of(id));
      ASSERT_EQ(parts, merge_plainly(model, word)) << word;
    }
  }
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bounds are generous (a sanitizer build on a busy machine passes); a quadratic procedure misses them by orders of
// magnitude.
TEST(Bpe, LongTextsTakeTimeInProportion) {
  const Tokenizer& t = testing::demo_tokenizer();
  std::string word, marks, spaces(1'000'000, ' ');
  std::mt19937 rng(5);
  while (word.size() < 1'000'000) word += static_cast<char>('a' + rng() % 26);
  while (marks.size() < 1'000'000)
    marks += rng() % 2 ? "\xCC\x81" : "\xCC\xA3";  // marks that normalisation has to sort
  for (const std::string& text :
       {word, std::string(1'000'000, 'a'), spaces, spaces + "x", marks, std::string(1'000'000, '\n')})
    EXPECT_LT(seconds([&] {
                const auto ids = t.encode(text, false, true);
                ASSERT_TRUE(ids.ok()) << ids.status().message();
                const std::string back = t.decode(*ids, false);
                if (text != marks) {
                  EXPECT_EQ(back, text);
                }
              }),
              20.0);
}

TEST(Bpe, MegabytesPerSecond) {
  const std::string text = testing::read_file(std::string(KTC_SOURCE_DIR) + "/models/demo/eval.txt");
  (void)testing::demo_tokenizer();
  const double s = seconds([&] { ASSERT_TRUE(testing::demo_tokenizer().encode(text, false, true).ok()); });
  RecordProperty("megabytes_per_second", std::to_string(static_cast<double>(text.size()) / 1e6 / s));
  std::printf("%.1f MB/s\n", static_cast<double>(text.size()) / 1e6 / s);
  EXPECT_LT(s, 5.0);
}

}  // namespace
}  // namespace ktc::text
