// A tiny hybrid plan on the emulated device.
#pragma once

#include "runtime/device/device.h"
#include "test/exec/executor_fixture.h"
#include "test/support/hybrid_model.h"

namespace ktc::test {

// The same model for the GPU and the CPU, and for the CPU alone.
struct HybridOnDisk {
  explicit HybridOnDisk(const HybridOptions& options) : cpu(options.tiny), model(options.tiny) {
    plan = hybrid_plan(model, options, folder.path());
  }
  std::unique_ptr<exec::Executor> open(exec::ExecutorOptions options = defaults()) const {
    if (plan == nullptr) return nullptr;
    auto executor = exec::Executor::open(plan, options);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    return executor.ok() ? std::move(*executor) : nullptr;
  }
  // Two workers; patience for sanitizers on a busy machine.
  static exec::ExecutorOptions defaults() {
    exec::ExecutorOptions options;
    options.threads = 2;
    options.emulate_gpu = true;
    options.watchdog = std::chrono::milliseconds(20000);
    return options;
  }
  OnDisk cpu;
  TempFolder folder;
  TinyModel model;
  std::shared_ptr<const plan::OpenPlan> plan;
};

// Largest difference over the largest magnitude.
inline float distance(const Logits& a, const Logits& b) {
  EXPECT_EQ(a.size(), b.size());
  float most = 0, scale = 0;
  for (std::size_t r = 0; r < std::min(a.size(), b.size()); ++r)
    for (std::size_t c = 0; c < a[r].size(); ++c) {
      most = std::max(most, std::abs(a[r][c] - b[r][c]));
      scale = std::max(scale, std::abs(b[r][c]));
    }
  return most / scale;
}

}  // namespace ktc::test
