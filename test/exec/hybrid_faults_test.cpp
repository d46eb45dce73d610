// What happens when a device is lost, a GPU does not publish, or the host does not answer: an error in time, and no hang. Also where
// only one of two GPUs fails.
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "test/exec/hybrid_fixture.h"
#include "test/support/divide_plan.h"
#include "test/support/wrapped_device.h"

namespace ktc::test {
namespace {

using exec::ExecutorOptions;
using exec::HandoffKind;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kInTime(5);  // what a user may wait for an error

class HybridFaults : public testing::TestWithParam<HandoffKind> {
 protected:
  ExecutorOptions options() const {
    ExecutorOptions options = HybridOnDisk::defaults();
    options.watchdog = std::chrono::milliseconds(1000);
    options.handoff = GetParam();
    return options;
  }
  // The step fails in time, so does every later one at once, and the executor can be destroyed.
  static void expect_failure(std::unique_ptr<exec::Executor> executor, std::string_view words) {
    const std::vector<std::int32_t> ids = {3};
    const std::vector<std::uint32_t> pages = make_sequence(*executor, ids, 0).pages;
    const exec::StepSequence sequence{ids, 0, pages, 0};
    const Clock::time_point start = Clock::now();
    const Status status = executor->run(std::span(&sequence, 1)).status();
    EXPECT_LT(Clock::now() - start, kInTime);
    EXPECT_EQ(status.code(), StatusCode::unavailable);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    const Clock::time_point again = Clock::now();
    EXPECT_EQ(executor->run(std::span(&sequence, 1)).status().message(), status.message());
    executor.reset();
    EXPECT_LT(Clock::now() - again, kInTime);
  }
  const HybridOnDisk disk_{HybridOptions{}};
};

// Lost after each of so many kernels: at open, in the middle of a step, at its end.
TEST_P(HybridFaults, ALostDeviceIsAnError) {
  ASSERT_NE(disk_.plan, nullptr);
  for (const std::uint64_t after : {1u, 10u, 60u, 75u, 90u, 110u}) {
    ExecutorOptions options = this->options();
    options.open_device = [after](const planfb::DeviceT&, std::uint64_t memory) {
      return device::open_emulated(memory, {.lose_after = after});
    };
    const Clock::time_point start = Clock::now();
    auto executor = exec::Executor::open(disk_.plan, options);
    EXPECT_LT(Clock::now() - start, kInTime);
    if (!executor.ok()) {
      EXPECT_EQ(executor.status().code(), StatusCode::unavailable) << executor.status().message();
      continue;
    }
    const std::vector<std::int32_t> ids = {3};
    const std::vector<std::uint32_t> pages = make_sequence(**executor, ids, 0).pages;
    const exec::StepSequence sequence{ids, 0, pages, 0};
    Status status;
    const Clock::time_point running = Clock::now();
    for (int i = 0; i < 20 && status.ok(); ++i) status = (*executor)->run(std::span(&sequence, 1)).status();
    EXPECT_LT(Clock::now() - running, kInTime);
    EXPECT_EQ(status.code(), StatusCode::unavailable) << "after " << after;
  }
}

// A worker that is suspended in the middle of its work: the GPU waits, then gives up, and so does the step.
TEST_P(HybridFaults, AHostThatDoesNotAnswerIsAnError) {
  ExecutorOptions options = this->options();
  std::atomic<bool> sleep{false};
  options.observer = {[](void* context, std::uint32_t, std::uint32_t, std::string_view, std::uint64_t) {
                        if (static_cast<std::atomic<bool>*>(context)->exchange(false)) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                      },
                      &sleep};
  std::atomic<int> wedged{0};
  options.wedged = [](void* context) { ++*static_cast<std::atomic<int>*>(context); };
  options.wedged_context = &wedged;
  auto executor = disk_.open(options);
  ASSERT_NE(executor, nullptr);
  sleep = true;
  expect_failure(std::move(executor), "decode[1]: the hand-off between CPU and GPU made no progress for 1000 ms");
  EXPECT_EQ(wedged, 1) << "after twice the patience the process could only end; it is told";
}

// A GPU that never gets to its publish: some kernel before it runs for ever.
class Stuck {
 public:
  static inline std::atomic<bool> hold{false};
  static inline std::atomic<int> sums{0};  // so many go by before one is held
  static int embed(const gpu::EmbedArgs& args, void* stream) { return wait(), gpu::reference_kernels().embed(args, stream); }
  static int add(const gpu::AddArgs& args, void* stream) {
    if (hold && sums-- <= 0) wait();
    return gpu::reference_kernels().add(args, stream);
  }

 private:
  static void wait() {
    while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
};

enum class StuckIn { embed, add };

// An emulated device with one kernel replaced.
std::unique_ptr<device::Device> stuck_device(std::unique_ptr<device::Device> inner, StuckIn kernel) {
  gpu::KernelSet kernels = inner->kernels();
  if (kernel == StuckIn::embed) kernels.embed = Stuck::embed;
  if (kernel == StuckIn::add) kernels.add = Stuck::add;
  return std::make_unique<DeviceWithKernels>(std::move(inner), kernels);
}

TEST_P(HybridFaults, AGpuThatNeverPublishesIsAnError) {
  ExecutorOptions options = this->options();
  options.open_device = [](const planfb::DeviceT&, std::uint64_t memory) -> Expected<std::unique_ptr<device::Device>> {
    KTC_ASSIGN_OR_RETURN(auto inner, device::open_emulated(memory));
    return stuck_device(std::move(inner), StuckIn::embed);
  };
  auto executor = disk_.open(options);
  ASSERT_NE(executor, nullptr);
  Stuck::hold = true;
  std::thread release([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    Stuck::hold = false;
  });
  expect_failure(std::move(executor), "made no progress for 1000 ms");
  release.join();
}

// Layer 0 on cuda:0, layer 1 and what follows on cuda:1.
class TwoGpuFaults : public HybridFaults {
 protected:
  static std::shared_ptr<const plan::OpenPlan> divided(const HybridOnDisk& disk) {
    if (disk.plan == nullptr) return nullptr;
    auto divided = divide_plan(*disk.plan, 1);
    EXPECT_TRUE(divided.ok()) << divided.status().message();
    return divided.ok() ? *divided : nullptr;
  }
  static std::unique_ptr<exec::Executor> open(const HybridOnDisk& disk, const ExecutorOptions& options) {
    auto plan = divided(disk);
    if (plan == nullptr) return nullptr;
    auto executor = exec::Executor::open(std::move(plan), options);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    return executor.ok() ? std::move(*executor) : nullptr;
  }
};

// decode and prompt: one step. begun: two decode steps, of which the second is begun before the first is finished and takes its ids.
enum class Work { decode, prompt, begun };

Status work(exec::Executor& executor, Work work) {
  const std::vector<std::int32_t> ids = random_ids(work == Work::prompt ? 5 : 1, 1);
  const std::vector<std::uint32_t> pages = make_sequence(executor, ids, 0).pages;
  exec::StepSequence sequence{ids, 0, pages, 0};
  if (work != Work::begun) return executor.run(std::span(&sequence, 1)).status();
  SampleRow row = {};
  row.greedy = 1;
  for (const std::uint32_t position : {0u, 1u}) {
    sequence.position = position;
    if (position == 1) sequence.fed_by = 0;
    KTC_RETURN_IF_ERROR(executor.begin(std::span(&sequence, 1), std::span(&row, 1)));
  }
  for (int i = 0; i < 2; ++i) KTC_RETURN_IF_ERROR(executor.finish().status());
  return {};
}

// One of the two is lost after so many kernels: some numbers with which the plan does not open, and every one with which it does and
// the work is not done; so in front of the copy between them, at it, and behind it.
TEST_P(TwoGpuFaults, EitherOfThemLostAtAnyKernelIsAnError) {
  const auto plan = divided(disk_);
  ASSERT_NE(plan, nullptr);
  for (const std::string lost : {"cuda:0", "cuda:1"}) {
    const auto open = [&](std::uint64_t after) {
      ExecutorOptions options = this->options();
      options.open_device = [&lost, after](const planfb::DeviceT& device, std::uint64_t memory) {
        return device::open_emulated(memory, {.lose_after = device.name == lost ? after : 0});
      };
      const Clock::time_point start = Clock::now();
      auto executor = exec::Executor::open(plan, options);
      EXPECT_LT(Clock::now() - start, kInTime);
      return executor;
    };
    std::uint64_t opens = 256, too_few = 0;
    while (opens - too_few > 1) {
      const std::uint64_t middle = (opens + too_few) / 2;
      const auto executor = open(middle);
      (executor.ok() ? opens : too_few) = middle;
      EXPECT_TRUE(executor.ok() || executor.status().code() == StatusCode::unavailable) << executor.status().message();
    }
    EXPECT_GT(opens, 8u) << lost << " has no layer?";
    for (const Work kind : {Work::decode, Work::prompt, Work::begun}) {
      std::uint64_t after = opens;
      for (; !HasFailure(); ++after) {
        SCOPED_TRACE(lost + " after " + std::to_string(after) + ", work " + std::to_string(static_cast<int>(kind)));
        auto executor = open(after);
        ASSERT_TRUE(executor.ok()) << executor.status().message();
        const Clock::time_point running = Clock::now();
        const Status status = work(**executor, kind);
        EXPECT_LT(Clock::now() - running, kInTime);
        if (status.ok()) break;
        EXPECT_EQ(status.code(), StatusCode::unavailable) << status.message();
        const Clock::time_point again = Clock::now();
        EXPECT_EQ(work(**executor, Work::decode).message(), status.message());
        executor->reset();
        EXPECT_LT(Clock::now() - again, kInTime);
      }
      EXPECT_GT(after, opens + 8) << lost << " has no layer?";
    }
  }
}

// The worker sleeps in the middle of what the CPU does for the record of cuda:1: its result is a sum with the late experts of layer 0,
// which comes behind the experts of layer 1.
TEST_P(TwoGpuFaults, AHostThatDoesNotAnswerTheSecondIsAnError) {
  HybridOptions late;
  late.late = 1;
  const HybridOnDisk disk(late);
  ExecutorOptions options = this->options();
  std::atomic<bool> sleep{false};
  options.observer = {[](void* context, std::uint32_t, std::uint32_t, std::string_view name, std::uint64_t) {
                        if (name == "layers.1.experts" && static_cast<std::atomic<bool>*>(context)->exchange(false))
                          std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                      },
                      &sleep};
  auto executor = open(disk, options);
  ASSERT_NE(executor, nullptr);
  sleep = true;
  expect_failure(std::move(executor), "decode[1]: the hand-off between CPU and GPU made no progress for 1000 ms");
  EXPECT_FALSE(sleep) << "the step came as far as that";
}

// One of the two is held in a sum, until all that is expected has been seen: cuda:0 in the one behind its await, so that the copy to
// cuda:1 and all of cuda:1 wait for it; cuda:1 in the one behind its attention, with the values of cuda:0.
TEST_P(TwoGpuFaults, OneThatIsStuckIsAnError) {
  for (const auto& [stuck, sums] : {std::pair<std::string, int>("cuda:0", 1), std::pair<std::string, int>("cuda:1", 0)}) {
    SCOPED_TRACE(stuck);
    ExecutorOptions options = this->options();
    options.open_device = [&stuck](const planfb::DeviceT& device, std::uint64_t memory) -> Expected<std::unique_ptr<device::Device>> {
      KTC_ASSIGN_OR_RETURN(auto inner, device::open_emulated(memory));
      if (device.name != stuck) return inner;
      return stuck_device(std::move(inner), StuckIn::add);
    };
    auto executor = open(disk_, options);
    ASSERT_NE(executor, nullptr);
    Stuck::sums = sums;
    Stuck::hold = true;
    std::promise<void> seen;
    std::thread release([future = seen.get_future()] {  // a step that hangs is an error as well, and no test that hangs
      future.wait_for(2 * kInTime);
      Stuck::hold = false;
    });
    expect_failure(std::move(executor), "decode[1]: the hand-off between CPU and GPU made no progress for 1000 ms");
    EXPECT_LT(Stuck::sums, 0) << "one was held";
    seen.set_value();
    release.join();
  }
}

const auto kHandoffs = testing::Values(HandoffKind::doorbell, HandoffKind::hostnode);
INSTANTIATE_TEST_SUITE_P(Both, TwoGpuFaults, kHandoffs, [](const auto& info) { return std::string(exec::to_string(info.param)); });
INSTANTIATE_TEST_SUITE_P(Both, HybridFaults, kHandoffs,
                         [](const auto& info) { return std::string(exec::to_string(info.param)); });

}  // namespace
}  // namespace ktc::test
