// Steps cut in halves, and what runs beside what in steps of prompts, on the emulated device.
#include "runtime/exec/halves.h"

#include <algorithm>
#include <thread>

#include "runtime/exec/emulated_kernels.h"
#include "test/exec/hybrid_fixture.h"
#include "test/support/wrapped_device.h"

namespace ktc::test {
namespace {

using exec::StepHalf;
using exec::StepSequence;
using exec::Track;

// ------------------------------------------------------------------------------------------------------------ the cut itself

TEST(CutStep, SequencesAreCutAtTheBorder) {
  const std::vector<std::int32_t> ids = random_ids(64, 1);
  const std::vector<std::uint32_t> pages(8, 3);
  const auto sequence = [&](std::size_t count, std::uint32_t position, std::uint32_t logits_from) {
    StepSequence s{std::span(ids).subspan(position, count), position, pages, logits_from};
    s.generated_from = 7;
    return s;
  };
  // 9 + 1 + 20 of 40: 15 each; the third one has rows from its eighth id on
  const std::vector<StepSequence> step = {sequence(9, 4, 8), sequence(1, 30, 0), sequence(20, 2, 7)};
  const std::array<StepHalf, 2> halves = exec::cut_step(step, 40);
  EXPECT_EQ(halves[0].tokens, 15u);
  EXPECT_EQ(halves[1].tokens, 15u);
  ASSERT_EQ(halves[0].sequences.size(), 3u);
  ASSERT_EQ(halves[1].sequences.size(), 1u);
  EXPECT_EQ(halves[0].rows, 2u);   // one of the first, one of the second; of the third the border is in front of its rows
  EXPECT_EQ(halves[1].rows, 13u);  // ids 7 to 19
  const StepSequence &before = halves[0].sequences[2], &behind = halves[1].sequences[0];
  EXPECT_EQ(before.ids.size(), 5u);
  EXPECT_EQ(before.position, 2u);
  EXPECT_EQ(behind.ids.data(), step[2].ids.data() + 5);
  EXPECT_EQ(behind.ids.size(), 15u);
  EXPECT_EQ(behind.position, 7u);
  EXPECT_EQ(behind.pages.data(), pages.data());
  EXPECT_EQ(behind.generated_from, 7u);
  for (const StepHalf& half : halves)
    for (const StepSequence& s : half.sequences) EXPECT_EQ(s.logits_from, s.ids.size());  // rows are the step's
}

TEST(CutStep, EveryTokenAndRowIsInOneHalf) {
  const std::vector<std::int32_t> ids = random_ids(64, 2);
  const std::vector<std::uint32_t> pages(8, 0);
  for (std::size_t first = 1; first <= 20; ++first)
    for (std::size_t second = 0; second <= 12; ++second)
      for (const std::size_t from : {std::size_t{0}, first / 2, first}) {
        std::vector<StepSequence> step = {{std::span(ids).first(first), 0, pages, static_cast<std::uint32_t>(from)}};
        if (second != 0) step.push_back({std::span(ids).subspan(20, second), 20, pages, 0});
        const auto halves = exec::cut_step(step, 32);
        EXPECT_EQ(halves[0].tokens + halves[1].tokens, first + second);
        EXPECT_EQ(halves[0].rows + halves[1].rows, first - from + second);
        EXPECT_EQ(halves[1].tokens == 0, first + second <= 16);
        EXPECT_EQ(halves[1].sequences.empty(), halves[1].tokens == 0);
        std::vector<std::int32_t> joined;
        for (const StepHalf& half : halves)
          for (const StepSequence& s : half.sequences) joined.insert(joined.end(), s.ids.begin(), s.ids.end());
        std::vector<std::int32_t> all(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(first));
        all.insert(all.end(), ids.begin() + 20, ids.begin() + 20 + static_cast<std::ptrdiff_t>(second));
        EXPECT_EQ(joined, all);
      }
}

// ------------------------------------------------------------------------------------------------------------- whole and cut

std::vector<HybridOptions> cases() {
  std::vector<HybridOptions> all;
  for (const bool mla : {false, true})
    for (const std::uint32_t hot : {0u, 2u}) {
      HybridOptions o;
      o.tiny.mla = mla;
      o.hot = hot;
      all.push_back(o);
    }
  for (const bool all_experts : {false, true}) {
    HybridOptions o;
    o.hot = 3;
    o.late = 1;
    o.scope_all = all_experts;
    o.defer_prefill = true;
    all.push_back(o);
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<HybridOptions>& info) {
  const HybridOptions& o = info.param;
  return std::string(o.tiny.mla ? "mla" : "gqa") + "_hot" + std::to_string(o.hot) + "_late" + std::to_string(o.late) +
         (o.scope_all ? "_all" : "");
}
HybridOptions cut(HybridOptions options) {
  options.halves = true;
  return options;
}

class Halves : public testing::TestWithParam<HybridOptions> {
 protected:
  const HybridOnDisk whole_{GetParam()}, cut_{cut(GetParam())};
};

// 24 and 64 tokens are the entries' bounds: steps that fill them, that have room in one half, that are odd, and of one token.
TEST_P(Halves, OfAPromptGiveTheBitsOfTheWhole) {
  const std::vector<std::int32_t> ids = random_ids(65, 3);
  for (const std::vector<std::size_t>& chunks : {std::vector<std::size_t>{48, 13, 1}, {33, 24, 2}, {23, 24, 12, 1}}) {
    const auto whole = whole_.open(), cut = cut_.open();
    ASSERT_TRUE(whole != nullptr && cut != nullptr);
    EXPECT_TRUE(same_bits(run_alone(*cut, ids, chunks), run_alone(*whole, ids, chunks)));
  }
}

TEST_P(Halves, OfARaggedMixGiveTheBitsOfTheWhole) {
  std::vector<std::vector<Sequence>> found;
  for (const HybridOnDisk* disk : {&whole_, &cut_}) {
    const auto executor = disk->open();
    ASSERT_NE(executor, nullptr);
    std::vector<Sequence> batch;
    const std::vector<std::size_t> lengths = {40, 12, 46, 9};
    for (std::uint32_t i = 0; i < 4; ++i) batch.push_back(make_sequence(*executor, random_ids(lengths[i], 100 + i), i));
    step(*executor, batch, {9, 1, 20, 0});   // the cut goes through the third
    step(*executor, batch, {1, 1, 20, 1});   // chunks and single tokens
    step(*executor, batch, {17, 1, 1, 1});
    step(*executor, batch, {1, 1, 1, 1});    // decode
    step(*executor, batch, {12, 5, 2, 6});
    found.push_back(batch);
  }
  for (std::size_t i = 0; i < found[0].size(); ++i) EXPECT_TRUE(same_bits(found[1][i].logits, found[0][i].logits)) << i;
}

// Rows of neither, one and both halves; choices are counted once.
TEST_P(Halves, HaveTheRowsAndCountsOfTheWhole) {
  const std::vector<std::int32_t> ids = random_ids(60, 9);
  std::vector<std::vector<std::uint64_t>> counts;
  std::vector<Logits> rows;
  for (const HybridOnDisk* disk : {&whole_, &cut_}) {
    std::vector<std::uint64_t> counted(disk->plan->plan.model->layers * disk->plan->plan.model->experts, 0);
    exec::ExecutorOptions options = HybridOnDisk::defaults();
    options.expert_counts = counted;
    const auto executor = disk->open(options);
    ASSERT_NE(executor, nullptr);
    std::fill(counted.begin(), counted.end(), 0);
    Logits all;
    std::uint32_t done = 0;
    for (const auto& [count, from] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{{30, 30}, {20, 19}, {8, 3}, {1, 1}, {1, 0}}) {
      const Sequence sequence = make_sequence(*executor, ids, 0);
      const StepSequence part{std::span(ids).subspan(done, count), done, sequence.pages, from};
      const auto result = executor->run({&part, 1});
      ASSERT_TRUE(result.ok()) << result.status().message();
      ASSERT_EQ(result->rows, count - from);
      for (std::uint32_t r = 0; r < result->rows; ++r) all.emplace_back(result->row(r), result->row(r) + TinyModel::kVocabulary);
      done += count;
    }
    rows.push_back(all);
    counts.push_back(counted);
  }
  EXPECT_TRUE(same_bits(rows[1], rows[0]));
  EXPECT_EQ(counts[1], counts[0]);
  EXPECT_NE(counts[0], std::vector<std::uint64_t>(counts[0].size(), 0));
}

INSTANTIATE_TEST_SUITE_P(All, Halves, testing::ValuesIn(cases()), name_of);

// ------------------------------------------------------------------------------------------------- what runs beside what

constexpr auto kSlow = std::chrono::milliseconds(60);

int slow_experts(const gpu::ExpertsArgs& args, void* stream) {
  std::this_thread::sleep_for(kSlow);
  return exec::emulated_kernels().experts(args, stream);
}

// The emulated device with experts that take their time.
std::unique_ptr<device::Device> with_slow_experts(std::unique_ptr<device::Device> inner) {
  gpu::KernelSet kernels = exec::emulated_kernels();
  kernels.experts = slow_experts;
  return std::make_unique<DeviceWithKernels>(std::move(inner), kernels);
}

struct Slice {
  Track track;
  std::string name;
  std::uint64_t begin, end;
};
std::vector<Slice> trace(std::shared_ptr<const plan::OpenPlan> plan, std::size_t tokens) {
  std::vector<Slice> slices;
  exec::ExecutorOptions options = HybridOnDisk::defaults();
  options.emulate_gpu = false;
  options.open_device = [](const planfb::DeviceT&, std::uint64_t memory) -> Expected<std::unique_ptr<device::Device>> {
    KTC_ASSIGN_OR_RETURN(std::unique_ptr<device::Device> inner, device::open_emulated(memory));
    return with_slow_experts(std::move(inner));
  };
  options.tracer = {[](void* to, const exec::TraceSlice& s) {
                      static_cast<std::vector<Slice>*>(to)->push_back({s.track, std::string(s.name), s.begin, s.end});
                    }, &slices};
  const auto executor = exec::Executor::open(std::move(plan), options);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  if (!executor.ok()) return {};
  slices.clear();
  run_alone(**executor, random_ids(tokens, 4), {tokens});
  return slices;
}
const Slice* find(const std::vector<Slice>& slices, Track track, std::string_view name) {
  for (const Slice& s : slices)
    if (s.track == track && s.name == name) return &s;
  return nullptr;
}
std::string names(const std::vector<Slice>& slices) {
  std::string all;
  for (const Slice& s : slices) all += std::to_string(static_cast<int>(s.track)) + " " + s.name + "\n";
  return all;
}

// Whether the CPU's slice began well before the GPU's ended. On a busy machine a thread may come late: one of three steps will do.
testing::AssertionResult begins_beside(std::shared_ptr<const plan::OpenPlan> plan, std::size_t tokens, std::string_view on_cpu,
                                       std::string_view on_gpu) {
  std::string last;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::vector<Slice> slices = trace(plan, tokens);
    const Slice *gpu = find(slices, Track::gpu, on_gpu), *cpu = find(slices, Track::cpu, on_cpu);
    last = names(slices);
    if (gpu == nullptr || cpu == nullptr) break;
    if (cpu->begin + static_cast<std::uint64_t>(std::chrono::nanoseconds(kSlow / 2).count()) < gpu->end) return testing::AssertionSuccess();
    last = std::to_string(static_cast<std::int64_t>(gpu->end) - static_cast<std::int64_t>(cpu->begin)) + " ns before its end";
  }
  return testing::AssertionFailure() << on_cpu << " beside " << on_gpu << ": " << last;
}

// The CPU has its rows before the GPU is done with hot experts.
TEST(Overlap, TheCpuComputesColdExpertsOfAPromptBesideHotOnes) {
  HybridOptions o;
  o.hot = 2;
  const HybridOnDisk disk(o);
  EXPECT_TRUE(begins_beside(disk.plan, 20, "layers.1.experts", "layers.1.experts.hot"));
}

// A copy that waits for the GPU's work on the second half does not keep the CPU from the first.
TEST(Overlap, TheCpuComputesAHalfWhileTheGpuIsAtTheOther) {
  HybridOptions o;
  o.hot = 2;
  o.halves = true;
  const HybridOnDisk disk(o);
  ASSERT_NE(disk.plan, nullptr);
  auto plan = std::make_shared<plan::OpenPlan>(*disk.plan);
  auto& entries = plan->plan.entries;
  auto& steps = (*std::find_if(entries.begin(), entries.end(), [](const auto& e) { return e->name == "extend[24]"; }))->steps;
  const auto named = [&](std::string_view name) {
    return std::find_if(steps.begin(), steps.end(), [&](const auto& s) { return s->name == name; });
  };
  const auto up = named("layers.1.experts.up.second"), hot_step = named("layers.1.experts.hot");
  ASSERT_TRUE(up != steps.end() && up < hot_step);
  std::rotate(up, up + 1, hot_step + 1);  // the rows of the second half leave behind the hot experts of the first
  EXPECT_TRUE(begins_beside(plan, 24, "layers.1.experts", "layers.1.experts.hot"));
}

}  // namespace
}  // namespace ktc::test
