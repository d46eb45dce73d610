// What happens when a device is lost, a GPU does not publish, or the host does not answer: an error in time, and no hang.
#include <atomic>
#include <thread>

#include "test/exec/hybrid_fixture.h"

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
  static int embed(const gpu::EmbedArgs& args, void* stream) {
    while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return gpu::reference_kernels().embed(args, stream);
  }
};

// An emulated device with one kernel replaced.
class StuckDevice final : public device::Device {
 public:
  explicit StuckDevice(std::unique_ptr<device::Device> inner) : inner_(std::move(inner)), info_(inner_->info()), kernels_(inner_->kernels()) {
    info_.emulated = false;  // so that the executor takes the kernels of this device
    kernels_.embed = Stuck::embed;
  }
  const device::DeviceInfo& info() const override { return info_; }
  const gpu::KernelSet& kernels() const override { return kernels_; }
  Expected<device::Block> allocate(std::uint64_t bytes, std::string name) override { return inner_->allocate(bytes, std::move(name)); }
  Expected<device::MappedBlock> allocate_mapped(std::uint64_t bytes, std::string name) override {
    return inner_->allocate_mapped(bytes, std::move(name));
  }
  Status register_host(std::byte* data, std::uint64_t bytes) override { return inner_->register_host(data, bytes); }
  device::Stream& compute() override { return inner_->compute(); }
  device::Stream& copies() override { return inner_->copies(); }
  Expected<std::unique_ptr<device::Event>> create_event() override { return inner_->create_event(); }
  std::uint64_t allocated() const override { return inner_->allocated(); }
  Expected<std::uint64_t> free_bytes() override { return inner_->free_bytes(); }

 private:
  std::unique_ptr<device::Device> inner_;
  device::DeviceInfo info_;
  gpu::KernelSet kernels_;
};

TEST_P(HybridFaults, AGpuThatNeverPublishesIsAnError) {
  ExecutorOptions options = this->options();
  options.open_device = [](const planfb::DeviceT&, std::uint64_t memory) -> Expected<std::unique_ptr<device::Device>> {
    KTC_ASSIGN_OR_RETURN(auto inner, device::open_emulated(memory));
    return std::unique_ptr<device::Device>(std::make_unique<StuckDevice>(std::move(inner)));
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

INSTANTIATE_TEST_SUITE_P(Both, HybridFaults, testing::Values(HandoffKind::doorbell, HandoffKind::hostnode),
                         [](const auto& info) { return std::string(exec::to_string(info.param)); });

}  // namespace
}  // namespace ktc::test
