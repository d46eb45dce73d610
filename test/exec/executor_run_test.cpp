// What run() refuses, which entry it takes, and what it tells observers.
#include <functional>

#include "runtime/kernels/cpu/kernels.h"
#include "test/exec/executor_fixture.h"

namespace ktc::test {
namespace {

class ExecutorRun : public testing::Test {
 protected:
  void SetUp() override {
    executor_ = tiny_.open(2);
    ASSERT_NE(executor_, nullptr);
  }
  // The message of a refusal, or what went wrong with the test.
  std::string refusal(const std::vector<exec::StepSequence>& sequences, StatusCode code) {
    const auto result = executor_->run(sequences);
    if (result.ok()) return "not refused";
    if (result.status().code() != code) return std::string("code ") + to_string(result.status().code());
    return result.status().message();
  }
  static exec::StepSequence sequence(const std::vector<std::int32_t>& ids, std::uint32_t position,
                                     const std::vector<std::uint32_t>& pages, std::uint32_t logits_from = 0) {
    return {ids, position, pages, logits_from};
  }
  const OnDisk tiny_{TinyOptions{}};  // pages of 16, 70 tokens per sequence, 8 sequences: 40 pages
  std::unique_ptr<exec::Executor> executor_;
  const std::vector<std::uint32_t> pages_ = {0, 1, 2, 3, 4};
};

TEST_F(ExecutorRun, StatesItsLimits) {
  EXPECT_EQ(executor_->extend_limits().max_tokens, 64u);
  EXPECT_EQ(executor_->extend_limits().max_rows, 48u);
  EXPECT_EQ(executor_->extend_limits().max_sequences, 8u);
  EXPECT_EQ(executor_->decode_limits().max_tokens, 8u);
  EXPECT_EQ(executor_->decode_limits().max_sequences, 8u);
  EXPECT_EQ(executor_->page_tokens(), 16u);
  EXPECT_EQ(executor_->page_count(), 40u);
  EXPECT_EQ(executor_->tokens_per_sequence(), 70u);
  EXPECT_EQ(&executor_->plan(), tiny_.plan.get());
}

TEST_F(ExecutorRun, RefusesAStepWithoutSequencesOrIds) {
  EXPECT_EQ(refusal({}, StatusCode::invalid_argument), "step: no sequences: found 0, expected at least 1");
  const std::vector<std::int32_t> one = {1}, none;
  EXPECT_EQ(refusal({sequence(one, 0, pages_), sequence(none, 0, pages_)}, StatusCode::invalid_argument),
            "sequence 1: no ids: found 0, expected at least 1");
}

TEST_F(ExecutorRun, RefusesIdsOutsideTheVocabulary) {
  for (const std::int32_t id : {203, -1, INT32_MAX, INT32_MIN}) {
    const std::vector<std::int32_t> ids = {202, 0, id};
    EXPECT_EQ(refusal({sequence(ids, 0, pages_)}, StatusCode::invalid_argument),
              "sequence 0: id outside the vocabulary: found " + std::to_string(id) +
                  ", expected 0 to 202; use the tokenizer of this plan");
  }
}

TEST_F(ExecutorRun, RefusesPositionsBehindTheCache) {
  const std::vector<std::int32_t> ids = {1, 2};
  EXPECT_EQ(refusal({sequence(ids, 69, pages_)}, StatusCode::invalid_argument),
            "sequence 0: longer than the KV cache: found 71 tokens, expected at most 70; compile with a larger kv_cache.tokens");
  EXPECT_EQ(refusal({sequence(ids, UINT32_MAX, pages_)}, StatusCode::invalid_argument),
            "sequence 0: longer than the KV cache: found 4294967297 tokens, expected at most 70; compile with a larger "
            "kv_cache.tokens");
  EXPECT_EQ(refusal({sequence(ids, 68, pages_)}, StatusCode::invalid_argument), "not refused");
}

TEST_F(ExecutorRun, RefusesPagesThatAreTooFewOrNotThere) {
  const std::vector<std::int32_t> ids = {1, 2};
  const std::vector<std::uint32_t> one = {0}, wrong = {0, 40, 1}, unused = {0, 1, 40};
  EXPECT_EQ(refusal({sequence(ids, 15, one)}, StatusCode::invalid_argument),
            "sequence 0: too few pages for 17 tokens: found 1, expected at least 2");
  EXPECT_EQ(refusal({sequence(ids, 15, wrong)}, StatusCode::invalid_argument),
            "sequence 0: page outside the pool: found 40, expected less than 40");
  EXPECT_EQ(refusal({sequence(ids, 15, unused)}, StatusCode::invalid_argument), "not refused");  // never looked at
}

TEST_F(ExecutorRun, RefusesLogitsOfNoId) {
  const std::vector<std::int32_t> ids = {1, 2};
  EXPECT_EQ(refusal({sequence(ids, 0, pages_, 3)}, StatusCode::invalid_argument),
            "sequence 0: logits from behind the last id: found 3, expected at most 2");
}

TEST_F(ExecutorRun, RefusesMoreThanTheLargestEntryTakes) {
  const std::vector<std::int32_t> many = random_ids(65, 1), rows = random_ids(49, 2), one = {1};
  EXPECT_EQ(refusal({sequence(many, 0, pages_, 65)}, StatusCode::resource_exhausted),
            "step: too many tokens: found 65, expected at most 64; cut the step into smaller ones");
  EXPECT_EQ(refusal({sequence(rows, 0, pages_)}, StatusCode::resource_exhausted),
            "step: too many rows of logits: found 49, expected at most 48; cut the step into smaller ones");
  EXPECT_EQ(refusal(std::vector<exec::StepSequence>(9, sequence(one, 0, pages_)), StatusCode::resource_exhausted),
            "step: too many sequences: found 9, expected at most 8; cut the step into smaller ones");
}

TEST_F(ExecutorRun, GivesRowsOnlyWhereTheyAreWanted) {
  const std::vector<std::int32_t> ids = random_ids(12, 5), other = random_ids(5, 6);
  const std::vector<std::uint32_t> other_pages = {7};
  const Logits all = run_alone(*executor_, ids, {12}, 2), all_other = run_alone(*executor_, other, {5}, 3);
  const std::vector<exec::StepSequence> step = {sequence(ids, 0, pages_, 10), sequence(other, 0, other_pages, 5)};
  auto result = executor_->run(step);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->rows, 2u);
  EXPECT_GE(result->row_stride, TinyModel::kVocabulary);
  EXPECT_TRUE(same_bits({{result->row(0), result->row(0) + TinyModel::kVocabulary},
                         {result->row(1), result->row(1) + TinyModel::kVocabulary}},
                        {all[10], all[11]}));
  // the second sequence is in the cache although it had no row
  const std::vector<std::int32_t> next = {3};
  const std::vector<exec::StepSequence> decode = {sequence(next, 5, other_pages)};
  result = executor_->run(decode);
  ASSERT_TRUE(result.ok());
  std::vector<std::int32_t> longer = other;
  longer.push_back(3);
  const Logits expected = run_alone(*executor_, longer, {6}, 3);
  EXPECT_TRUE(same_bits({{result->row(0), result->row(0) + TinyModel::kVocabulary}}, {expected[5]}));
  // no row at all
  const std::vector<exec::StepSequence> silent = {sequence(ids, 0, pages_, 12)};
  result = executor_->run(silent);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->rows, 0u);
}

struct Seen {
  std::vector<std::uint32_t> entries;
  std::vector<std::string> names;
  static void report(void* context, std::uint32_t entry, std::uint32_t step, std::string_view name, std::uint64_t) {
    Seen& seen = *static_cast<Seen*>(context);
    EXPECT_EQ(step, seen.names.size());
    seen.entries.push_back(entry);
    seen.names.emplace_back(name);
  }
};

TEST_F(ExecutorRun, TakesTheSmallestEntryThatFits) {
  Seen seen;
  exec::ExecutorOptions options;
  options.threads = 1;
  options.observer = {&Seen::report, &seen};
  const auto executor = tiny_.open(options);
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> one = {1}, some = random_ids(24, 1), many = random_ids(25, 1);
  const auto entry = [&](const std::vector<exec::StepSequence>& step) {
    seen = {};
    const auto result = executor->run(step);
    if (!result.ok()) return result.status().message();
    const planfb::EntryT& e = *tiny_.plan->plan.entries[seen.entries.at(0)];
    EXPECT_EQ(seen.names.size(), e.steps.size());
    for (std::size_t i = 0; i < seen.names.size(); ++i) EXPECT_EQ(seen.names[i], e.steps[i]->name);
    return e.name;
  };
  const exec::StepSequence decode = sequence(one, 0, pages_), silent = sequence(one, 0, pages_, 1);
  EXPECT_EQ(entry({decode}), "decode[1]");
  EXPECT_EQ(entry({decode, decode}), "decode[8]");
  EXPECT_EQ(entry(std::vector<exec::StepSequence>(8, decode)), "decode[8]");
  EXPECT_EQ(entry({silent}), "extend[24]");          // no logits wanted
  EXPECT_EQ(entry({decode, silent}), "extend[24]");
  EXPECT_EQ(entry({sequence(some, 0, pages_)}), "extend[24]");
  EXPECT_EQ(entry({sequence(many, 0, pages_)}), "extend[64]");
  EXPECT_EQ(entry({decode, silent, decode, decode, silent}), "extend[64]");  // five sequences, extend[24] takes four
}

TEST_F(ExecutorRun, CountsTheTokensOfEachExpert) {
  for (const bool mla : {false, true}) {
    TinyOptions tiny_options;
    tiny_options.mla = mla;
    const OnDisk tiny(tiny_options);
    std::vector<std::uint64_t> counts(TinyModel::kLayers * tiny.model.experts(), 0);
    exec::ExecutorOptions options;
    options.threads = 2;
    options.expert_counts = counts;
    const auto executor = tiny.open(options);
    ASSERT_NE(executor, nullptr);
    run_alone(*executor, random_ids(40, 3), {30});
    std::uint64_t per_layer[TinyModel::kLayers] = {};
    for (std::size_t i = 0; i < counts.size(); ++i) per_layer[i / tiny.model.experts()] += counts[i];
    EXPECT_EQ(per_layer[0], mla ? 0u : 40u * tiny.model.top_k());  // mla: a dense layer
    EXPECT_EQ(per_layer[1], 40u * tiny.model.top_k());
  }
  std::vector<std::uint64_t> short_counts(3);
  exec::ExecutorOptions options;
  options.expert_counts = short_counts;
  const auto refused = exec::Executor::open(tiny_.plan, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "expert counts: wrong size: found 3, expected 12");
}

// NaN in, NaN out: routing finds nothing sensible and must not write outside of its areas.
TEST(ExecutorHostile, WeightsThatAreNotNumbers) {
  for (const bool mla : {false, true}) {
    TinyOptions options;
    options.mla = mla;
    OnDisk tiny(options);
    auto broken = std::make_shared<plan::OpenPlan>();
    broken->folder = tiny.plan->folder;
    broken->plan = *plan::parse_plan(plan::serialise_plan(tiny.plan->plan), "copy");
    for (const auto& weight : broken->plan.weights) {
      if (weight->name != "layers.1.router") continue;
      weight->source = planfb::WeightSource::splat;
      weight->splat_value = std::numeric_limits<float>::quiet_NaN();
    }
    tiny.plan = broken;
    const auto executor = tiny.open(2);
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(run_alone(*executor, random_ids(30, 1), {20}).size(), 30u);
  }
}

}  // namespace
}  // namespace ktc::test
