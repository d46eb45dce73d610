// Launch groups of a plan on the emulated device: as many launches as the plan says, and the bits of the steps one by
// one.
#include "runtime/formats/launch_groups.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "test/exec/hybrid_fixture.h"
#include "test/support/wrapped_device.h"

namespace ktc::test {
namespace {

using namespace planfb;

// Every sum with the norm that reads it next is one step.
void join_norms(EntryT& entry) {
  for (std::size_t s = 0; s + 1 < entry.steps.size(); ++s) {
    StepT &sum = *entry.steps[s], &norm = *entry.steps[s + 1];
    const auto* op = norm.op.AsNormOp();
    if (sum.op.AsAddOp() == nullptr || op == nullptr || sum.device != norm.device ||
        norm.inputs[0].buffer() != sum.outputs[0].buffer())
      continue;
    AddNormOpT both;
    both.w = op->w;
    both.eps = op->eps;
    sum.op.Set(both);
    sum.outputs.push_back(norm.outputs[0]);
    entry.steps.erase(entry.steps.begin() + static_cast<std::ptrdiff_t>(s) + 1);
  }
}

Joinable kind_of(const StepT& step) {
  switch (step.op.type) {
    case Op::AwaitOp: return Joinable::await;
    case Op::AddNormOp: return Joinable::add_norm;
    case Op::RouteOp: return Joinable::route;
    case Op::PublishOp: return Joinable::publish;
    default: return Joinable::other;
  }
}

// Marks what the table has, the longest first; how many groups of each kernel.
std::map<std::string, int> mark(EntryT& entry) {
  std::vector<StepT*> gpu;
  for (auto& step : entry.steps)
    if (step->device == 1) gpu.push_back(step.get());
  std::map<std::string, int> groups;
  std::uint32_t number = 0;
  for (std::size_t s = 0; s < gpu.size();) {
    const LaunchSequence* best = nullptr;
    for (const LaunchSequence& row : kLaunchSequences) {
      bool fits = s + row.count <= gpu.size() && (best == nullptr || row.count > best->count);
      for (std::size_t i = 0; fits && i < row.count; ++i) fits = kind_of(*gpu[s + i]) == row.steps[i];
      if (fits) best = &row;
    }
    if (best == nullptr) {
      ++s;
      continue;
    }
    for (std::size_t i = 0; i < best->count; ++i) gpu[s + i]->launch_group = number;
    ++number;
    ++groups[std::string(best->kernel)];
    s += best->count;
  }
  return groups;
}

std::atomic<int> await_norms{0}, route_publishes{0};
int counted_await_norm(const gpu::AwaitNormArgs& args, void* stream) {
  ++await_norms;
  return gpu::reference_kernels().await_norm(args, stream);
}
int counted_route_publish(const gpu::RoutePublishArgs& args, void* stream) {
  ++route_publishes;
  return gpu::reference_kernels().route_publish(args, stream);
}

// Counts joint launches.
std::unique_ptr<device::Device> counting(std::unique_ptr<device::Device> inner) {
  gpu::KernelSet kernels = gpu::reference_kernels();
  kernels.await_norm = counted_await_norm;
  kernels.route_publish = counted_route_publish;
  return std::make_unique<DeviceWithKernels>(std::move(inner), kernels);
}

struct Outcome {
  Logits logits;
  int await_norms = 0, route_publishes = 0;  // of a decode step
};
constexpr std::size_t kPrompt = 20, kGenerated = 6;
Outcome run(const std::shared_ptr<const plan::OpenPlan>& plan, exec::HandoffKind handoff, bool graphs) {
  exec::ExecutorOptions options = HybridOnDisk::defaults();
  options.emulate_gpu = false;
  options.handoff = handoff;
  options.graphs = graphs;
  options.open_device = [](const DeviceT&, std::uint64_t memory) -> Expected<std::unique_ptr<device::Device>> {
    KTC_ASSIGN_OR_RETURN(std::unique_ptr<device::Device> inner, device::open_emulated(memory));
    return counting(std::move(inner));
  };
  Outcome found;
  const auto executor = exec::Executor::open(plan, options);
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  if (!executor.ok()) return found;
  await_norms = route_publishes = 0;
  found.logits = run_alone(**executor, random_ids(kPrompt + kGenerated, 11), {kPrompt});
  EXPECT_EQ(await_norms % static_cast<int>(kGenerated), 0);
  found.await_norms = await_norms / static_cast<int>(kGenerated);
  found.route_publishes = route_publishes / static_cast<int>(kGenerated);
  return found;
}

TEST(LaunchGroups, AreLaunchesAndChangeNoBit) {
  HybridOptions o;
  o.late = 0;
  const HybridOnDisk disk(o);
  ASSERT_NE(disk.plan, nullptr);
  const auto copy = [&] {
    auto plan = std::make_shared<plan::OpenPlan>();
    plan->folder = disk.plan->folder;
    plan->plan = *plan::parse_plan(plan::serialise_plan(disk.plan->plan), "copy");
    for (auto& entry : plan->plan.entries) join_norms(*entry);
    return plan;
  };
  const auto apart = copy(), together = copy();
  std::map<std::string, int> groups;
  for (auto& entry : together->plan.entries)
    if (entry->kind == EntryKind::decode) groups = mark(*entry);
  ASSERT_GT(groups["await_norm"], 0);
  ASSERT_GT(groups["route_publish"], 0);
  ASSERT_EQ(plan::verify_plan(together->plan).message(), "");
  const Outcome expected = run(apart, exec::HandoffKind::doorbell, true);
  EXPECT_EQ(expected.await_norms + expected.route_publishes, 0) << "nothing that the plan does not say";
  for (const bool graphs : {true, false}) {
    const Outcome joined = run(together, exec::HandoffKind::doorbell, graphs);
    EXPECT_EQ(joined.await_norms, groups["await_norm"]);
    EXPECT_EQ(joined.route_publishes, groups["route_publish"]);
    EXPECT_TRUE(same_bits(joined.logits, expected.logits)) << graphs;
    const Outcome slow = run(together, exec::HandoffKind::hostnode, graphs);
    EXPECT_EQ(slow.await_norms + slow.route_publishes, 0) << "host nodes are no launches";
    EXPECT_TRUE(same_bits(slow.logits, expected.logits)) << graphs;
  }
}

}  // namespace
}  // namespace ktc::test
