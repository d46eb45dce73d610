// Experts of the CPU that pass through the emulated device in extend entries: against the CPU's own, in any groups, beside hot and
// late experts; copies run ahead of their use; a device without the memory for it is refused.
#include "runtime/device/block_impl.h"
#include "runtime/exec/hybrid_stream.h"
#include "runtime/plan/plan.h"
#include "test/exec/hybrid_fixture.h"

namespace ktc::test {
namespace {

constexpr float kRounding = 1e-4f;

HybridOptions streamed(std::uint32_t group, std::uint32_t hot = 0, bool mla = false) {
  HybridOptions o;
  o.tiny.mla = mla;
  o.hot = hot;
  o.stream_group = group;
  return o;
}

TEST(HybridStream, GivesWhatTheExpertsOfTheCpuGive) {
  const std::vector<std::int32_t> ids = random_ids(56, 11);
  for (const bool mla : {false, true})
    for (const std::uint32_t hot : {0u, 2u}) {
      const HybridOnDisk still(streamed(0, hot, mla));
      const auto expecting = still.open();
      ASSERT_NE(expecting, nullptr);
      const Logits expected = run_alone(*expecting, ids, {30, 20});
      for (const std::uint32_t group : {1u, 2u, 5u, 100u}) {
        const HybridOnDisk disk(streamed(group, hot, mla));
        const auto executor = disk.open();
        ASSERT_NE(executor, nullptr);
        EXPECT_LT(distance(run_alone(*executor, ids, {30, 20}), expected), kRounding) << mla << " hot " << hot << " group " << group;
      }
    }
}

// What is late does not depend on the entry: among the pairs of the op, in whichever group their matrices are.
TEST(HybridStream, LateExpertsAreThoseOfOtherEntries) {
  const std::vector<std::int32_t> ids = random_ids(50, 12);
  for (const bool scope_all : {false, true})
    for (const std::uint32_t hot : {0u, 2u}) {
      Logits expected;
      for (const std::uint32_t group : {0u, 1u, 4u, 100u}) {
        HybridOptions o = streamed(group, hot);
        o.late = 1;
        o.scope_all = scope_all;
        o.defer_prefill = true;
        const HybridOnDisk disk(o);
        const auto executor = disk.open();
        ASSERT_NE(executor, nullptr);
        const Logits found = run_alone(*executor, ids, {40});
        if (expected.empty()) expected = found;
        EXPECT_LT(distance(found, expected), kRounding) << scope_all << " hot " << hot << " group " << group;
      }
    }
}

// A prompt's logits with one and two workers, `times` each; then `after` may look at the executor.
template <typename After>
void expect_same_bits(const HybridOnDisk& disk, std::uint64_t seed, int times, const After& after) {
  const std::vector<std::int32_t> ids = random_ids(50, seed);
  Logits expected;
  for (const int threads : {1, 2, 2}) {
    exec::ExecutorOptions options = HybridOnDisk::defaults();
    options.threads = threads;
    const auto executor = disk.open(options);
    ASSERT_NE(executor, nullptr);
    for (int i = 0; i < times; ++i) {
      const Logits found = run_alone(*executor, ids, {45});
      if (expected.empty()) expected = found;
      EXPECT_TRUE(same_bits(found, expected)) << threads << " threads, time " << i;
    }
    after(*executor);
  }
}

TEST(HybridStream, GivesTheSameBitsEveryTime) {
  expect_same_bits(HybridOnDisk(streamed(2)), 13, 2, [](const exec::Executor&) {});
}

// A piece for each group, in order; the part that is late finds what the part in time has left; equal bytes are no reason to.
TEST(HybridStream, PiecesOfBanks) {
  using exec::StreamPiece;
  using exec::StreamStep;
  std::vector<StreamStep> steps(4);
  const std::uint32_t banks[] = {7, 7, 9, 9};
  for (std::size_t i = 0; i < 4; ++i) steps[i].w_gate_up = banks[i], steps[i].matrices = 5, steps[i].group = i < 2 ? 5 : 2;
  std::vector<StreamPiece> pieces;
  for (std::uint32_t i = 0; i < 4; ++i) exec::add_pieces(steps, i, pieces);
  ASSERT_EQ(pieces.size(), 8u);
  const std::uint32_t first[] = {0, 0, 0, 2, 4, 0, 2, 4}, count[] = {5, 5, 2, 2, 1, 2, 2, 1};
  const bool loads[] = {true, false, true, true, true, true, true, true}, last[] = {false, true, true, true, true, true, true, true};
  for (std::size_t p = 0; p < 8; ++p) {
    EXPECT_EQ(pieces[p].first, first[p]) << p;
    EXPECT_EQ(pieces[p].count, count[p]) << p;
    EXPECT_EQ(pieces[p].loads, loads[p]) << p;
    EXPECT_EQ(pieces[p].last_use, last[p]) << p;
  }
  EXPECT_EQ(steps[3].first_piece, 5u);
  EXPECT_EQ(steps[3].pieces, 3u);
}

// Nothing is used before it is there, nor replaced while it is in use.
TEST(HybridStream, CopiesAndUsesDoNotMeet) {
  const HybridOnDisk disk(streamed(3));
  struct Slices {
    std::vector<exec::TraceSlice> copies, uses;
    std::vector<std::string> names;
  } slices;
  exec::ExecutorOptions options = HybridOnDisk::defaults();
  options.tracer.context = &slices;
  options.tracer.report = [](void* context, const exec::TraceSlice& slice) {
    auto& to = *static_cast<Slices*>(context);
    if (slice.track == exec::Track::copy) to.copies.push_back(slice), to.names.emplace_back(slice.name);
    if (slice.track == exec::Track::gpu && slice.name.ends_with("experts")) to.uses.push_back(slice);
  };
  const auto executor = disk.open(options);
  ASSERT_NE(executor, nullptr);
  std::vector<Sequence> batch = {make_sequence(*executor, random_ids(44, 14), 0)};
  step(*executor, batch, {44});
  ASSERT_EQ(slices.copies.size(), 4u);  // two layers of six experts, three at once
  ASSERT_EQ(slices.uses.size(), 4u);
  EXPECT_EQ(slices.names[1], slices.names[0]);
  EXPECT_NE(slices.names[2], slices.names[1]);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_LE(slices.copies[i].end, slices.uses[i].begin) << i;
    if (i >= 2) EXPECT_GE(slices.copies[i].begin, slices.uses[i - 2].end) << i;
    if (i > 0) EXPECT_LE(slices.copies[i - 1].end, slices.copies[i].begin) << i;
  }
}

// ------------------------------------------------------------------------------------------------------------ the CPU's share

// The CPU takes whatever it may: it costs nothing.
constexpr ExpertShare kEager{.copy_ns = 1000, .gpu_ns = 100, .gpu_row_ns = 10, .cpu_ns = 1};

HybridOptions shared(std::uint32_t group, const ExpertShare& share, std::uint32_t hot = 0, bool mla = false) {
  HybridOptions o = streamed(group, hot, mla);
  o.share = share;
  return o;
}

// Everything, something and nothing is the CPU's; copies run ahead of the choice by none, some or all of the bank.
TEST(HybridStream, ASharedBankGivesWhatTheExpertsOfTheCpuGive) {
  const std::vector<std::int32_t> ids = random_ids(56, 21);
  ExpertShare near = kEager, far = kEager, even = kEager;
  near.ahead_ns = 1500;     // two matrices
  far.values_ns = 1000000;  // not worth it
  even.cpu_row_ns = 60;
  for (const bool mla : {false, true})
    for (const std::uint32_t hot : {0u, 2u}) {
      const HybridOnDisk still(streamed(0, hot, mla));
      const auto expecting = still.open();
      ASSERT_NE(expecting, nullptr);
      const Logits expected = run_alone(*expecting, ids, {30, 20});
      for (const std::uint32_t group : {1u, 4u, 100u})
        for (const ExpertShare& share : {kEager, near, far, even}) {
          const HybridOnDisk disk(shared(group, share, hot, mla));
          const auto executor = disk.open();
          ASSERT_NE(executor, nullptr);
          EXPECT_LT(distance(run_alone(*executor, ids, {30, 20}), expected), kRounding)
              << mla << " hot " << hot << " group " << group << " ahead " << share.ahead_ns << " values " << share.values_ns;
          const exec::Busy busy = executor->busy();
          EXPECT_GT(busy.streamed_pairs, 0u);
          EXPECT_EQ(busy.shared_pairs == 0, share == far);
          if (share == kEager) EXPECT_EQ(busy.shared_pairs, busy.streamed_pairs);
        }
    }
}

// Whether the CPU takes an expert follows from the step alone, and so do the bits.
TEST(HybridStream, ASharedBankGivesTheSameBitsEveryTime) {
  ExpertShare even = kEager;
  even.cpu_row_ns = 60;
  expect_same_bits(HybridOnDisk(shared(2, even)), 22, 3, [](const exec::Executor& executor) {
    EXPECT_GT(executor.busy().shared_pairs, 0u);
    EXPECT_LT(executor.busy().shared_pairs, executor.busy().streamed_pairs);
  });
}

// A second prompt finds tables and areas as the first one left them.
TEST(HybridStream, SharesOfOneStepDoNotReachTheNext) {
  ExpertShare even = kEager;
  even.cpu_row_ns = 60;
  const HybridOnDisk disk(shared(2, even)), still(streamed(0));
  const auto executor = disk.open(), expecting = still.open();
  ASSERT_NE(executor, nullptr);
  ASSERT_NE(expecting, nullptr);
  for (std::uint64_t seed = 30; seed < 36; ++seed) {
    const std::vector<std::int32_t> ids = random_ids(20 + 5 * (seed - 30), seed);
    EXPECT_LT(distance(run_alone(*executor, ids, {ids.size() - 1}), run_alone(*expecting, ids, {ids.size() - 1})), kRounding) << seed;
  }
}

// What a streamer tells two streams, one line each; nothing runs.
class Listener final : public device::Device {
 public:
  class Event final : public device::Event {
   public:
    explicit Event(int number) : number(number) {}
    const int number;
  };
  class Stream final : public device::Stream {
   public:
    Stream(std::vector<std::string>& log, std::string name) : log_(log), name_(std::move(name)) {}
    Status copy_to_device(std::byte*, const std::byte*, std::uint64_t bytes) override { return say("copy " + std::to_string(bytes)); }
    Status copy_to_host(std::byte*, const std::byte*, std::uint64_t) override { return say("?"); }
    Status copy_on_device(std::byte*, const std::byte*, std::uint64_t) override { return say("?"); }
    Status copy_from_peer(device::Device&, std::byte*, const std::byte*, std::uint64_t) override { return say("?"); }
    Status fill(std::byte*, int, std::uint64_t) override { return say("?"); }
    Status host_call(void (*)(void*), void*) override { return say("?"); }
    Status record(device::Event& event) override { return say("record " + std::to_string(static_cast<Event&>(event).number)); }
    Status wait_for(const device::Event& event) override { return say("wait " + std::to_string(static_cast<const Event&>(event).number)); }
    Status wait() override { return {}; }
    Expected<bool> idle() override { return true; }
    Expected<bool> reached(const device::Event&) override { return true; }
    Status begin_capture() override { return {}; }
    Expected<std::unique_ptr<device::Graph>> end_capture() override { return std::unique_ptr<device::Graph>(); }
    Status launch(const device::Graph&) override { return {}; }

   protected:
    Status launch_bytes(Invoke, const void*, std::size_t, const void*, std::size_t args_bytes) override {
      return say(args_bytes == sizeof(gpu::UnpackArgs) ? "unpack" : "experts");
    }

   private:
    Status say(const std::string& what) {
      log_.push_back(name_ + what);
      return {};
    }
    std::vector<std::string>& log_;
    const std::string name_;
  };
  const device::DeviceInfo& info() const override { return info_; }
  const gpu::KernelSet& kernels() const override { return gpu::reference_kernels(); }
  Expected<device::Block> allocate(std::uint64_t bytes, std::string) override { return device::Block(nullptr, bytes, nullptr); }
  Expected<device::MappedBlock> allocate_mapped(std::uint64_t, std::string) override { return device::MappedBlock(); }
  Status register_host(std::byte*, std::uint64_t) override { return {}; }
  device::Stream& compute() override { return compute_; }
  device::Stream& copies() override { return copies_; }
  Expected<std::unique_ptr<device::Event>> create_event() override { return std::unique_ptr<device::Event>(std::make_unique<Event>(events_++)); }
  std::uint64_t allocated() const override { return 0; }
  Expected<std::uint64_t> free_bytes() override { return std::uint64_t{0}; }
  std::vector<std::string> log;

 private:
  device::DeviceInfo info_;
  int events_ = 0;
  Stream compute_{log, "compute "}, copies_{log, "copies "};
};

// Two layers of two groups each, events 0 and 2: area 0 filled, area 1 filled; 1 and 3: free again. Every copy is told as soon as its
// area is: the second layer's first group while the first layer still has one to multiply.
TEST(HybridStream, LooksAheadOverLayers) {
  Listener device;
  std::vector<exec::StreamStep> steps(2);
  std::vector<exec::StreamPiece> pieces;
  for (std::uint32_t i = 0; i < 2; ++i) {
    exec::StreamStep& step = steps[i];
    step.w_gate_up = i;
    step.matrices = 4, step.group = 2;
    step.packed_gate_up.matrix_bytes = 100 + i, step.packed_down.matrix_bytes = 10 + i;
    step.unpacks = true;
    step.unpack = gpu::reference_kernels().unpack;
    step.experts = gpu::reference_kernels().experts;
    exec::add_pieces(steps, i, pieces);
  }
  auto streamer = exec::Streamer::open(device, GpuStreamAreas{1024, 1024});
  ASSERT_TRUE(streamer.ok());
  ASSERT_TRUE(streamer->begin(device, steps, pieces, nullptr, 1, {8, 8, 1}).ok());
  ASSERT_TRUE(streamer->run(steps[0], {8, 8, 1}).ok());
  ASSERT_TRUE(streamer->run(steps[1], {8, 8, 1}).ok());
  const std::vector<std::string> expected = {
      "copies copy 200", "copies copy 20", "copies record 0",                                                   // layer 0, group 0
      "copies copy 200", "copies copy 20", "copies record 2",                                                   // group 1
      "compute wait 0",  "compute unpack", "compute unpack", "compute record 1",                                // group 0 is in rows:
      "copies wait 1",   "copies copy 202", "copies copy 22", "copies record 0", "compute experts",             // layer 1, group 0
      "compute wait 2",  "compute unpack", "compute unpack", "compute record 3",
      "copies wait 3",   "copies copy 202", "copies copy 22", "copies record 2", "compute experts",
      "compute wait 0",  "compute unpack", "compute unpack", "compute record 1", "compute experts",
      "compute wait 2",  "compute unpack", "compute unpack", "compute record 3", "compute experts"};
  EXPECT_EQ(device.log, expected);
}

// What the verifier wants of two ops that share a bank.
TEST(HybridStream, SharesAreVerified) {
  using planfb::PlanT;
  const HybridOnDisk disk(shared(2, kEager));
  ASSERT_NE(disk.plan, nullptr);
  const auto found = [](PlanT& plan, bool streams) -> planfb::StepT& {
    for (auto& entry : plan.entries)
      for (auto& step : entry->steps)
        if (const auto* op = step->op.AsExpertsOp(); op != nullptr && op->share != nullptr && op->stream == streams) return *step;
    return *plan.entries[0]->steps[0];
  };
  const auto message = [&](auto change) {
    PlanT plan = disk.plan->plan;
    change(plan);
    return plan::verify_plan(plan).message();
  };
  EXPECT_EQ(message([](PlanT&) {}), "");
  EXPECT_EQ(disk.plan->plan.required_features, 3u);
  EXPECT_NE(message([](PlanT& p) { p.required_features = 1; }).find("expected 0x3 among them"), std::string::npos);
  const std::string alone = message([&](PlanT& p) { found(p, false).op.AsExpertsOp()->share.reset(); });
  EXPECT_NE(alone.find("share: found no step of the CPU behind it"), std::string::npos) << alone;
  const std::string lost = message([&](PlanT& p) { found(p, true).op.AsExpertsOp()->share.reset(); });
  EXPECT_NE(lost.find("share: found no step that streams before it"), std::string::npos) << lost;
  const std::string rates = message([&](PlanT& p) { found(p, false).op.AsExpertsOp()->share->cpu_ns = 7; });
  EXPECT_NE(rates.find("with the same rates"), std::string::npos) << rates;
  const std::string other = message([&](PlanT& p) { std::swap(found(p, false).inputs[1], found(p, false).inputs[2]); });
  EXPECT_NE(other, "");
  const std::string from = message([&](PlanT& p) {
    for (auto& entry : p.entries)
      if (entry->kind == planfb::EntryKind::extend) entry->from_tokens = entry->max_tokens + 1;
  });
  EXPECT_NE(from.find("from_tokens: found"), std::string::npos) << from;
}

TEST(HybridStream, IsInTheAccount) {
  const HybridOnDisk disk(streamed(2));
  ASSERT_NE(disk.plan, nullptr);
  const std::uint64_t areas = plan::stream_areas(disk.plan->plan, 1).total();
  EXPECT_GT(areas, 0u);
  std::uint64_t account = 0;
  for (const auto& line : disk.plan->plan.account)
    if (line->device == 1) account += line->bytes;
  exec::ExecutorOptions options = HybridOnDisk::defaults();
  options.emulated_memory = account - areas;
  const auto executor = exec::Executor::open(disk.plan, options);
  ASSERT_FALSE(executor.ok());
  EXPECT_EQ(executor.status().code(), StatusCode::resource_exhausted);
}

}  // namespace
}  // namespace ktc::test
