// Plans of a GPU and a CPU on the emulated device: against the CPU alone, and what must not change a bit.
#include "test/exec/hybrid_fixture.h"

namespace ktc::test {
namespace {

using exec::ExecutorOptions;
using exec::HandoffKind;

constexpr float kRounding = 1e-4f;

std::vector<HybridOptions> cases() {
  std::vector<HybridOptions> all;
  for (const bool mla : {false, true})
    for (const std::uint32_t hot : {0u, 2u})
      for (const Format record : {Format::f32, Format::bf16}) {
        HybridOptions o;
        o.tiny.mla = mla;
        o.hot = hot;
        o.record = record;
        o.skip_empty = hot != 0;
        all.push_back(o);
      }
  for (const bool all_experts : {false, true}) {
    HybridOptions o;
    o.hot = 3;
    o.late = 1;
    o.scope_all = all_experts;
    o.skip_empty = true;
    all.push_back(o);
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<HybridOptions>& info) {
  const HybridOptions& o = info.param;
  return std::string(o.tiny.mla ? "mla" : "gqa") + "_hot" + std::to_string(o.hot) + "_" + std::string(to_string(o.record)) + "_late" +
         std::to_string(o.late) + (o.scope_all ? "_all" : "");
}

class Hybrid : public testing::TestWithParam<HybridOptions> {
 protected:
  const HybridOnDisk disk_{GetParam()};
};

TEST_P(Hybrid, IsTheModelOfTheCpu) {
  if (GetParam().late != 0) GTEST_SKIP() << "late experts: another model";
  const auto hybrid = disk_.open(), cpu = disk_.cpu.open(2);
  ASSERT_TRUE(hybrid != nullptr && cpu != nullptr);
  const std::vector<std::int32_t> ids = random_ids(44, 3);
  const Logits expected = run_alone(*cpu, ids, {30}), found = run_alone(*hybrid, ids, {30});
  EXPECT_LT(distance({found.begin(), found.begin() + 30}, {expected.begin(), expected.begin() + 30}), kRounding);
  if (GetParam().record == Format::f32)
    EXPECT_LT(distance(found, expected), kRounding);
  else  // a record in bf16 rounds what it carries; after some tokens a router chooses otherwise
    EXPECT_LT(distance({found[30]}, {expected[30]}), 0.05f);
}

TEST_P(Hybrid, GraphsLaunchesDoorbellsHostNodesAndWorkersGiveTheSameBits) {
  const std::vector<std::int32_t> ids = random_ids(40, 5);
  Logits expected;
  for (const bool graphs : {true, false})
    for (const HandoffKind handoff : {HandoffKind::doorbell, HandoffKind::hostnode})
      for (const int threads : {2, 1}) {
        ExecutorOptions options = HybridOnDisk::defaults();
        options.graphs = graphs;
        options.handoff = handoff;
        options.threads = threads;
        const auto executor = disk_.open(options);
        ASSERT_NE(executor, nullptr);
        EXPECT_EQ(executor->handoff(), handoff);
        const Logits found = run_alone(*executor, ids, {25});
        if (expected.empty()) expected = found;
        EXPECT_TRUE(same_bits(found, expected)) << graphs << " " << exec::to_string(handoff) << " " << threads;
      }
}

// decode[8] with three live rows computes five of padding, and decode[1] none.
TEST_P(Hybrid, NeighboursAndPaddingChangeNothing) {
  if (GetParam().record != Format::f32) GTEST_SKIP() << "extend and decode round differently";
  const auto executor = disk_.open();
  ASSERT_NE(executor, nullptr);
  std::vector<Sequence> batch;
  const std::vector<std::size_t> lengths = {9, 1, 20};
  for (std::uint32_t i = 0; i < 3; ++i) batch.push_back(make_sequence(*executor, random_ids(lengths[i] + 6, 100 + i), i));
  step(*executor, batch, {9, 1, 0});
  step(*executor, batch, {1, 1, 20});
  for (int i = 0; i < 3; ++i) step(*executor, batch, {1, 1, 1});
  step(*executor, batch, {1, 0, 1});
  step(*executor, batch, {0, 1, 0});
  const auto fresh = disk_.open();
  ASSERT_NE(fresh, nullptr);
  for (const Sequence& sequence : batch) {
    const std::vector<std::int32_t> ids(sequence.ids.begin(), sequence.ids.begin() + static_cast<std::ptrdiff_t>(sequence.done));
    EXPECT_LT(distance(run_alone(*fresh, ids, {}), sequence.logits), kRounding);  // entries differ in the order of some sums
  }
}

INSTANTIATE_TEST_SUITE_P(All, Hybrid, testing::ValuesIn(cases()), name_of);

// Within one bucket the bits are those of the row alone, whoever is beside it.
TEST(HybridBits, RowsOfABucketDoNotDependOnEachOther) {
  HybridOptions o;
  o.hot = 2;
  const HybridOnDisk disk(o);
  const auto executor = disk.open();
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> ids = random_ids(20, 8);
  Logits expected;
  for (const std::size_t others : {1u, 2u, 7u}) {  // decode[8] serves them all
    std::vector<Sequence> batch = {make_sequence(*executor, ids, 0)};
    for (std::uint32_t i = 0; i < others; ++i) batch.push_back(make_sequence(*executor, random_ids(20, 50 + i), 1 + i));
    const std::vector<std::size_t> ones(batch.size(), 1);
    for (int i = 0; i < 12; ++i) step(*executor, batch, ones);
    if (expected.empty()) expected = batch[0].logits;
    EXPECT_TRUE(same_bits(batch[0].logits, expected)) << others;
  }
}

TEST(HybridSplit, HotAndColdExpertsTogetherAreAll) {
  const std::vector<std::int32_t> ids = random_ids(40, 17);
  HybridOptions o;
  Logits expected;
  for (const std::uint32_t hot : {0u, 2u, 3u, 4u}) {
    o.hot = hot;
    const HybridOnDisk disk(o);
    const auto executor = disk.open();
    ASSERT_NE(executor, nullptr);
    const Logits found = run_alone(*executor, ids, {20});
    if (expected.empty()) expected = found;
    EXPECT_LT(distance(found, expected), kRounding) << hot;
  }
}

// The flag is the token's: a prompt and what decode generated differ, and recomputing a token as generated gives the same again.
TEST(HybridLate, DeferralFollowsTheTokenAndNotTheEntry) {
  const auto run = [](const HybridOptions& options, std::uint32_t generated_from, const std::vector<std::size_t>& chunks) {
    const HybridOnDisk disk(options);
    const auto executor = disk.open();
    Logits logits;
    if (executor == nullptr) return logits;
    Sequence sequence = make_sequence(*executor, random_ids(24, 9), 0);
    for (const std::size_t chunk : chunks) {
      exec::StepSequence next = sequence.next(chunk);
      next.generated_from = generated_from;
      const auto result = executor->run(std::span(&next, 1));
      EXPECT_TRUE(result.ok()) << result.status().message();
      if (!result.ok()) return logits;
      for (std::uint32_t r = 0; r < result->rows; ++r) logits.emplace_back(result->row(r), result->row(r) + TinyModel::kVocabulary);
      sequence.done += chunk;
    }
    return logits;
  };
  HybridOptions plain, late;
  late.late = 1;
  constexpr std::uint32_t kNever = exec::StepSequence::kNothing;
  const std::vector<std::size_t> generated(8, 1);
  std::vector<std::size_t> chunks = {16};
  chunks.insert(chunks.end(), generated.begin(), generated.end());

  const Logits without = run(plain, 16, chunks), with = run(late, 16, chunks);
  ASSERT_EQ(with.size(), 24u);
  EXPECT_LT(distance({with.begin(), with.begin() + 16}, {without.begin(), without.begin() + 16}), kRounding) << "a prompt is not deferred";
  EXPECT_GT(distance({with.begin() + 16, with.end()}, {without.begin() + 16, without.end()}), 10 * kRounding);
  EXPECT_LT(distance(run(late, 16, {24}), with), kRounding) << "recomputed at once";
  EXPECT_LT(distance(run(late, 16, {7, 12, 5}), with), kRounding) << "recomputed in other pieces";
  EXPECT_LT(distance(run(late, kNever, chunks), without), kRounding) << "all of it a prompt";
  late.defer_prefill = true;
  EXPECT_LT(distance(run(late, kNever, {24}), run(late, 0, chunks)), kRounding) << "all of it deferred";
  late.defer_decode = false;
  EXPECT_LT(distance(run(late, 0, chunks), without), kRounding) << "prompts alone, and there is none";
  // scope `all`: late wherever experts live
  late.defer_decode = true;
  late.scope_all = true;
  const Logits all_on_cpu = run(late, 16, chunks);
  late.hot = 3;
  EXPECT_LT(distance(run(late, 16, chunks), all_on_cpu), kRounding);
}

TEST(HybridCounts, EveryPairOnceWhereverItsExpertIs) {
  const std::vector<std::int32_t> ids = random_ids(30, 4);
  std::vector<std::uint64_t> expected;
  for (const std::uint32_t hot : {0u, 2u, 4u}) {
    for (const std::uint32_t late : {0u, 1u}) {
      HybridOptions o;
      o.hot = hot;
      o.late = late;
      o.scope_all = true;
      o.defer_decode = false;  // late ops run and have no pairs
      const HybridOnDisk disk(o);
      std::vector<std::uint64_t> counts(TinyModel::kLayers * TinyModel::kExperts);
      ExecutorOptions options = HybridOnDisk::defaults();
      options.expert_counts = counts;
      const auto executor = disk.open(options);
      ASSERT_NE(executor, nullptr);
      run_alone(*executor, ids, {20});
      std::uint64_t sum = 0;
      for (const std::uint64_t count : counts) sum += count;
      EXPECT_EQ(sum, ids.size() * TinyModel::kTopK * TinyModel::kLayers);
      if (expected.empty()) expected = counts;
      EXPECT_EQ(counts, expected) << hot << " hot, " << late << " late";
    }
  }
}

TEST(HybridOpen, SaysWhatADeviceLacksBeforeItReadsWeights) {
  const HybridOnDisk disk{HybridOptions{}};
  ASSERT_NE(disk.plan, nullptr);
  std::filesystem::resize_file(disk.plan->folder / "all.weights", 0);  // nobody gets as far as that
  ExecutorOptions options = HybridOnDisk::defaults();
  options.emulated_memory = 100000;
  const Status status = exec::Executor::open(disk.plan, options).status();
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(status.message().starts_with("device cuda:0: not enough memory for the plan: weights ")) << status.message();
  EXPECT_NE(status.message().find("found 97.7 KiB free of 97.7 KiB on emulated, expected "), std::string::npos) << status.message();
  EXPECT_TRUE(status.message().ends_with("; end what else uses the device, or compile with fewer experts on it, a smaller kv_cache.tokens "
                                         "or fewer kv_cache.sequences"))
      << status.message();
  options.emulated_memory = 0;
  EXPECT_EQ(exec::Executor::open(disk.plan, options).status().code(), StatusCode::data_corrupt);
}

TEST(HybridOpen, FallsBackToHostNodesWithOneLine) {
  const HybridOnDisk disk{HybridOptions{}};
  std::vector<std::string> lines;
  ExecutorOptions options = HybridOnDisk::defaults();
  options.note = [](void* context, std::string_view line) { static_cast<std::vector<std::string>*>(context)->emplace_back(line); };
  options.note_context = &lines;
  options.open_device = [](const planfb::DeviceT&, std::uint64_t memory) { return device::open_emulated(memory, {.refuse_mapped = true}); };
  const auto executor = disk.open(options);
  ASSERT_NE(executor, nullptr);
  EXPECT_EQ(executor->handoff(), HandoffKind::hostnode);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("hand-off by host nodes, which is slower: ")) << lines[0];
  const std::vector<std::int32_t> ids = random_ids(12, 4);
  EXPECT_TRUE(same_bits(run_alone(*executor, ids, {8}), run_alone(*disk.open(), ids, {8})));
  options.handoff = HandoffKind::doorbell;
  EXPECT_EQ(exec::Executor::open(disk.plan, options).status().code(), StatusCode::unsupported);
}

}  // namespace
}  // namespace ktc::test
