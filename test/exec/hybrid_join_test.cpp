// Steps that have one kernel together leave in memory what they leave one by one.
#include "runtime/exec/hybrid_join.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "runtime/formats/gpu_workspace.h"
#include "runtime/formats/handoff.h"
#include "runtime/formats/handoff_cells.h"

namespace ktc::exec {
namespace {

constexpr std::uint32_t kColumns = 64, kExperts = 8, kTopK = 2, kTokens = 2;

class HybridJoin : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = device::open_emulated(1 << 24);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
    auto memory = device_->allocate(kBytes, "values");
    auto mapped = device_->allocate_mapped(1 << 16, "hand-off");
    ASSERT_TRUE(memory.ok() && mapped.ok());
    memory_ = std::move(*memory);
    mapped_ = std::move(*mapped);
  }
  template <typename T>
  T* area(std::size_t count) {
    std::byte* at = memory_.data() + used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  gpu::Matrix matrix(std::uint32_t columns) { return {area<float>(kTokens * columns), columns, columns}; }

  // A layer's end and the next one's beginning: await, add_norm; add_norm, route, publish. Memory is the emulated device's, which is ours.
  // The joiner sees all steps but `unseen`, on a device with these kernels.
  HybridProgram program(StepJoiner& joiner, const gpu::KernelSet* kernels = nullptr, std::size_t unseen = SIZE_MAX) {
    used_ = 0;
    std::memset(memory_.data(), 0, kBytes);
    std::memset(mapped_.host(), 0, mapped_.bytes());
    for (float* v = reinterpret_cast<float*>(memory_.data()); v != reinterpret_cast<float*>(memory_.data() + kBytes); ++v)
      *v = std::sin(static_cast<float>(v - reinterpret_cast<float*>(memory_.data())));
    auto* live = area<std::int32_t>(3);
    live[0] = kTokens;
    auto* epoch = area<std::uint32_t>(1);
    *epoch = 5;
    auto* pairs = area<std::uint32_t>(1);
    *pairs = 1;
    auto* slots = area<std::int32_t>(kExperts);
    for (std::uint32_t e = 0; e < kExperts; ++e) slots[e] = e % 2 == 0 ? static_cast<std::int32_t>(e) : -1;
    const std::uint64_t cells = result_bytes(kTokens, kColumns, Format::f32);
    for (std::uint64_t c = 0; c < cells / kCellBytes; ++c) {
      const float data[3] = {static_cast<float>(c), 0.5f, -static_cast<float>(c)};
      write_cell(mapped_.host() + c * kCellBytes, data, 5);
    }
    const gpu::Matrix residual = matrix(kColumns), result = matrix(kColumns), x = matrix(kColumns), mixed = matrix(kColumns), weights = matrix(kTopK);
    const gpu::Ids ids = {area<std::int32_t>(kTokens * kTopK), kTopK, kTopK};
    const gpu::AwaitArgs await = {mapped_.device(), Format::f32, result, reinterpret_cast<gpu::HandoffWords*>(mapped_.device() + (1 << 15)), 0, live, epoch,
                                  pairs, true, kTokens};
    const auto norm = [&](const gpu::Matrix& other) {
      gpu::AddNormArgs a = {};
      a.in[0] = residual, a.in[1] = other;
      a.count = 2;
      a.sum = residual;
      a.w = area<float>(kColumns);
      a.eps = 1e-6f;
      a.out = x;
      a.rows = kTokens;
      return a;
    };
    const gpu::AddNormArgs first = norm(result), second = norm(mixed);
    gpu::RouteArgs route = {};
    route.x = x;
    route.w = {reinterpret_cast<const std::byte*>(area<float>(kExperts * kColumns)), Format::f32, Packing::row_major, 0, 1, kExperts, kColumns,
               kColumns * 4, kExperts * kColumns * 4};
    route.ids = ids;
    route.weights = weights;
    route.rows = kTokens, route.experts = kExperts, route.top_k = kTopK, route.groups = route.topk_groups = 1;
    route.normalise = true, route.scale = 1;
    route.scratch = {area<std::byte>(4096), 4096};
    const gpu::PublishArgs publish = {x, ids, weights, slots, kTopK, mapped_.device() + (1 << 14), Format::bf16, live, epoch, pairs, kTokens};

    HybridProgram p;
    p.bounds.max_tokens = kTokens;
    const auto step = [&](planfb::StepKind kind, auto fn, const auto& args) {
      if (p.steps.size() != unseen) joiner.saw(p.steps.size(), kernels == nullptr ? device_->kernels() : *kernels, args);
      HybridStep s;
      s.kind = kind;
      s.gpu = 0;
      s.graph = 0;
      s.launches.push_back([fn, args](device::Stream& stream, const Counts&) { return stream.launch(fn, args); });
      p.steps.push_back(std::move(s));
    };
    const gpu::KernelSet& k = device_->kernels();
    step(planfb::StepKind::await, k.await, await);
    HybridStep cpu;  // of the CPU: comes between nothing
    cpu.kind = planfb::StepKind::compute;
    p.steps.push_back(std::move(cpu));
    step(planfb::StepKind::launch, k.add_norm, first);
    step(planfb::StepKind::launch, k.add_norm, second);
    step(planfb::StepKind::launch, k.route, route);
    step(planfb::StepKind::publish, k.publish, publish);
    return p;
  }
  // What all of it leaves in both memories.
  std::vector<std::byte> run(const HybridProgram& p) {
    for (const HybridStep& s : p.steps)
      for (const Launch& launch : s.launches) EXPECT_TRUE(launch(device_->compute(), {kTokens, kTokens, kTokens}).ok());
    EXPECT_TRUE(device_->compute().wait().ok());
    std::vector<std::byte> all(memory_.data(), memory_.data() + kBytes);
    all.insert(all.end(), mapped_.host(), mapped_.host() + mapped_.bytes());
    return all;
  }
  static std::vector<std::size_t> launches(const HybridProgram& p) {
    std::vector<std::size_t> counts;
    for (const HybridStep& s : p.steps) counts.push_back(s.launches.size());
    return counts;
  }

  static constexpr std::size_t kBytes = 1 << 18;
  std::unique_ptr<device::Device> device_;
  device::Block memory_;
  device::MappedBlock mapped_;
  std::size_t used_ = 0;
};

// Steps of program(): 0 await, 2 add_norm; 3 add_norm, 4 route, 5 publish.
void group(StepJoiner& joiner, std::uint32_t number, std::initializer_list<std::size_t> steps) {
  for (const std::size_t step : steps) joiner.member(number, step);
}

TEST_F(HybridJoin, LeavesTheSameBytes) {
  StepJoiner none, joiner;
  const std::vector<std::byte> expected = run(program(none));
  HybridProgram joined = program(joiner);
  group(joiner, 0, {0, 2});
  group(joiner, 1, {3, 4, 5});
  joiner.join(joined);
  EXPECT_EQ(launches(joined), (std::vector<std::size_t>{0, 0, 1, 0, 0, 1}));
  EXPECT_TRUE(run(joined) == expected);
}

// Nothing is one launch but what the plan says: not even what it could be.
TEST_F(HybridJoin, JoinsWhatThePlanSaysAndNothingElse) {
  StepJoiner none;
  HybridProgram apart = program(none);
  const std::vector<std::byte> expected = run(apart);
  none.join(apart);
  EXPECT_EQ(launches(apart), (std::vector<std::size_t>{1, 0, 1, 1, 1, 1}));
  StepJoiner some;
  HybridProgram joined = program(some);
  group(some, 7, {4, 5});
  some.join(joined);
  EXPECT_EQ(launches(joined), (std::vector<std::size_t>{1, 0, 1, 1, 0, 1})) << "the sum in front is none of the group's";
  EXPECT_TRUE(run(joined) == expected);
}

// A kernel that a device lacks, a step that is no launch here (host nodes): the steps of the group run one by one, all of them.
TEST_F(HybridJoin, OneByOneWhereAGroupIsNoLaunch) {
  StepJoiner none, lacking, unseen;
  const std::vector<std::byte> expected = run(program(none));
  gpu::KernelSet without = device_->kernels();
  without.await_norm = nullptr;
  HybridProgram p = program(lacking, &without);
  group(lacking, 0, {0, 2});
  group(lacking, 1, {3, 4, 5});
  lacking.join(p);
  EXPECT_EQ(launches(p), (std::vector<std::size_t>{1, 0, 1, 0, 0, 1}));
  EXPECT_TRUE(run(p) == expected);
  p = program(unseen, nullptr, 3);
  group(unseen, 0, {0, 2});
  group(unseen, 1, {3, 4, 5});
  unseen.join(p);
  EXPECT_EQ(launches(p), (std::vector<std::size_t>{0, 0, 1, 1, 1, 1})) << "router and publish have a kernel, but the plan does not say so";
  EXPECT_TRUE(run(p) == expected);
}

}  // namespace
}  // namespace ktc::exec
