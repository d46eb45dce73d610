// Waiting for another thread without a system call for as long as that is cheap.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ktc::exec {

// One wait: a pause between looks, a yield once it has taken longer than `spin`. The clock is read every kLooks looks only.
class SpinWait {
 public:
  explicit SpinWait(std::chrono::nanoseconds spin) : spin_(spin) {}

  void rest() {
    if (looks_ % kLooks == kLooks - 1) {
      const Clock::time_point now = Clock::now();
      if (looks_ < kLooks) start_ = now;
      elapsed_ = now - start_;
    }
    ++looks_;
    if (elapsed_ < spin_) {
      relax();
    } else {
      std::this_thread::yield();
      looks_ |= kLooks - 1;  // a yield may take long: look at the clock after each
    }
  }
  std::chrono::nanoseconds elapsed() const { return elapsed_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kLooks = 16;

  static void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::chrono::nanoseconds spin_;
  std::uint64_t looks_ = 0;
  Clock::time_point start_;
  std::chrono::nanoseconds elapsed_{0};
};

}  // namespace ktc::exec
