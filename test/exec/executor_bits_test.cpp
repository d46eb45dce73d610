// What must not change a single bit: how a prompt is cut, which sequences share a step, how many workers there are, which pages
// are used and what they held before.
#include "runtime/kernels/cpu/kernels.h"
#include "test/exec/executor_fixture.h"

namespace ktc::test {
namespace {

struct Case {
  bool mla;
  Format weights, cache;
  std::uint32_t page_tokens;
  IsaLevel isa;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const IsaLevel isa : kernels::available_levels(host_cpu_features())) {
    all.push_back({false, Format::bf16, Format::f32, 16, isa});
    all.push_back({false, Format::f32, Format::bf16, 1, isa});
    all.push_back({true, Format::f32, Format::f32, 1, isa});
    all.push_back({true, Format::bf16, Format::bf16, 16, isa});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.mla ? "mla_" : "gqa_") + std::string(to_string(info.param.weights)) + "_" +
         std::string(to_string(info.param.cache)) + "_" + std::to_string(info.param.page_tokens) + "_" +
         std::string(to_string(info.param.isa));
}

class ExecutorBits : public testing::TestWithParam<Case> {
 protected:
  static TinyOptions options() {
    TinyOptions o;
    o.mla = GetParam().mla;
    o.weights = GetParam().weights;
    o.cache = GetParam().cache;
    o.page_tokens = GetParam().page_tokens;
    return o;
  }
  std::unique_ptr<exec::Executor> open(int threads) const { return tiny_.open(threads, GetParam().isa); }
  const OnDisk tiny_{options()};
};

TEST_P(ExecutorBits, PromptInOneStepInChunksAndTokenByToken) {
  const auto executor = open(2);
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> ids = random_ids(44, 3);
  const Logits at_once = run_alone(*executor, ids, {44});
  EXPECT_TRUE(same_bits(run_alone(*executor, ids, {7, 1, 24, 12}, 1), at_once));
  EXPECT_TRUE(same_bits(run_alone(*executor, ids, {}, 2), at_once));
  EXPECT_TRUE(same_bits(run_alone(*executor, ids, {25}, 3), at_once));  // then 19 decodes
}

TEST_P(ExecutorBits, BatchOfEightEqualsEachAlone) {
  const auto executor = open(2);
  ASSERT_NE(executor, nullptr);
  const std::vector<std::size_t> lengths = {9, 1, 30, 17, 2, 5, 23, 12};
  std::vector<Sequence> batch;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    batch.push_back(make_sequence(*executor, random_ids(lengths[i] + 6, static_cast<std::uint32_t>(100 + i)),
                                  static_cast<std::uint32_t>(i)));
  // prompts two by two, then a ragged mix of a chunk and decodes, then decodes of all, some and one
  for (std::size_t i = 0; i < 6; i += 2) {
    std::vector<std::size_t> counts(8, 0);
    counts[i] = lengths[i];
    counts[i + 1] = lengths[i + 1];
    step(*executor, batch, counts);
  }
  step(*executor, batch, {1, 1, 1, 1, 1, 1, 23, 12});
  for (int i = 0; i < 3; ++i) step(*executor, batch, std::vector<std::size_t>(8, 1));
  step(*executor, batch, {1, 0, 1, 0, 1, 0, 1, 1});
  step(*executor, batch, {0, 0, 0, 0, 0, 0, 1, 0});

  const auto fresh = open(2);
  ASSERT_NE(fresh, nullptr);
  for (const Sequence& sequence : batch) {
    const std::vector<std::int32_t> ids(sequence.ids.begin(), sequence.ids.begin() + static_cast<std::ptrdiff_t>(sequence.done));
    EXPECT_TRUE(same_bits(run_alone(*fresh, ids, {}), sequence.logits));
  }
}

TEST_P(ExecutorBits, AnyNumberOfWorkers) {
  const std::vector<std::int32_t> ids = random_ids(40, 11);
  const auto one = open(1);
  ASSERT_NE(one, nullptr);
  const Logits expected = run_alone(*one, ids, {31});
  for (const int threads : {2, 3, 7}) {
    const auto executor = open(threads);
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(executor->threads(), threads);
    EXPECT_TRUE(same_bits(run_alone(*executor, ids, {31}), expected)) << threads << " threads";
  }
}

// The same prompt and decodes, and two sequences at once, on any split over nodes.
TEST_P(ExecutorBits, AnyNumberOfNodes) {
  const std::vector<std::int32_t> ids = random_ids(40, 12);
  const auto one = open(1);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->nodes(), 1);
  const Logits expected = run_alone(*one, ids, {31});
  for (const int nodes : {2, 3}) {
    for (const int threads : {1, 2, 3, 7}) {
      exec::ExecutorOptions split;
      split.threads = threads;
      split.nodes = nodes;
      split.isa = GetParam().isa;
      const auto executor = tiny_.open(split);
      ASSERT_NE(executor, nullptr);
      EXPECT_EQ(executor->threads(), threads);
      EXPECT_EQ(executor->nodes(), std::min(nodes, threads));
      EXPECT_TRUE(same_bits(run_alone(*executor, ids, {31}), expected)) << threads << " threads, " << nodes << " nodes";
    }
  }
}

// Keys are taken in parts: by one worker in prefill, by several in decode, and by however many there are.
TEST_P(ExecutorBits, ContextsOfSeveralParts) {
  TinyOptions long_options = options();
  long_options.tokens_per_sequence = 1100;
  long_options.sequences = 2;
  const OnDisk tiny(long_options);
  const std::vector<std::int32_t> ids = random_ids(1066, 61);
  const auto one = tiny.open(1, GetParam().isa);
  ASSERT_NE(one, nullptr);
  const Logits expected = run_alone(*one, ids, std::vector<std::size_t>(22, 48));  // the last ten one by one
  for (const int threads : {2, 7}) {
    const auto executor = tiny.open(threads, GetParam().isa);
    ASSERT_NE(executor, nullptr);
    std::vector<std::size_t> chunks(threads == 2 ? 35 : 31, threads == 2 ? 29 : 33);
    EXPECT_TRUE(same_bits(run_alone(*executor, ids, chunks, 1), expected)) << threads << " threads";
  }
}

TEST_P(ExecutorBits, PagesAreReused) {
  const auto executor = open(2);
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> before = random_ids(60, 21), ids = random_ids(35, 22);
  const Logits expected = run_alone(*executor, ids, {35}, 4);
  run_alone(*executor, before, {48, 12}, 0);
  EXPECT_TRUE(same_bits(run_alone(*executor, ids, {20, 15}, 0), expected));
}

// Two sequences that begin alike may share the pages of what they have in common.
TEST_P(ExecutorBits, SequencesShareTheirFirstPages) {
  const auto executor = open(2);
  ASSERT_NE(executor, nullptr);
  const std::size_t common = 32;  // whole pages at every page size
  std::vector<std::int32_t> a = random_ids(40, 31), b = random_ids(40, 32);
  std::copy_n(a.begin(), common, b.begin());
  Sequence first = make_sequence(*executor, a, 0);
  step(*executor, {&first, 1}, {40});
  Sequence second = make_sequence(*executor, b, 1);
  std::copy_n(first.pages.begin(), common / executor->page_tokens(), second.pages.begin());
  second.done = common;
  step(*executor, {&second, 1}, {8});
  const Logits alone = run_alone(*executor, b, {40}, 2);
  EXPECT_TRUE(same_bits(second.logits, Logits(alone.begin() + static_cast<std::ptrdiff_t>(common), alone.end())));
}

// A plan may run its last experts on the rows that need logits alone.
TEST_P(ExecutorBits, LastExpertsOnSomeRows) {
  TinyOptions early_options = options();
  early_options.select_early = true;
  const OnDisk early(early_options);
  const auto executor = early.open(2, GetParam().isa), all = open(2);
  ASSERT_TRUE(executor != nullptr && all != nullptr);
  const std::vector<std::int32_t> ids = random_ids(40, 51);
  Logits expected = run_alone(*all, ids, {33});
  EXPECT_TRUE(same_bits(run_alone(*executor, ids, {33}, 1), expected));
  const std::vector<std::uint32_t> pages = make_sequence(*executor, ids, 2).pages;
  const std::vector<exec::StepSequence> step = {{ids, 0, pages, 38}};
  const auto result = executor->run(step);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->rows, 2u);
  EXPECT_TRUE(same_bits({{result->row(0), result->row(0) + TinyModel::kVocabulary},
                         {result->row(1), result->row(1) + TinyModel::kVocabulary}},
                        {expected[38], expected[39]}));
  const std::vector<exec::StepSequence> silent = {{ids, 0, pages, 40}};
  EXPECT_TRUE(executor->run(silent).ok());
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorBits, testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace ktc::test
