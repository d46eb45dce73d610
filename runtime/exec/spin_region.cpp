#include "runtime/exec/spin_region.h"

#include <algorithm>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ktc::exec {
namespace {

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One wait: a pause between looks, a yield once it has taken longer than `spin`. The clock is read every kLooks looks only.
class Wait {
 public:
  explicit Wait(std::chrono::nanoseconds spin) : spin_(spin) {}

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
  static constexpr std::uint64_t kLooks = 16;
  std::chrono::nanoseconds spin_;
  std::uint64_t looks_ = 0;
  Clock::time_point start_;
  std::chrono::nanoseconds elapsed_{0};
};

struct Attendance {
  const void* region = nullptr;
  int slot = 0;
};
thread_local Attendance attendance;

}  // namespace

SpinPatience SpinPatience::fitting(int threads, int cpus) {
  using std::chrono::microseconds;
  const microseconds linger(100);
  if (threads > cpus) return {microseconds(2), linger};
  return {cpus <= kFewCpus ? microseconds(20) : linger, linger};
}

SpinRegion::SpinRegion(int threads, SpinPatience patience)
    : threads_(threads), patience_(patience), slots_(static_cast<std::size_t>(threads - 1)) {}

void SpinRegion::run(Body body, const void* context, std::size_t count, std::size_t grain) {
  const auto ranges = static_cast<std::int64_t>((count - 1) / grain + 1);
  loop_ = {body, context, count, grain, ranges};
  remaining_.store(ranges - 1, std::memory_order_release);  // the first range is the caller's
  body(context, 0, grain);
  std::int64_t own = 1;
  while (claim_one()) ++own;
  if (own == ranges) return;
  expected_ += static_cast<std::uint64_t>(ranges - own);
  for (Wait wait(patience_.spin); done_by_attendants() != expected_;) wait.rest();
}

// The counter orders: its store publishes the loop to whoever claims, and the claims of others in between keep that order.
bool SpinRegion::claim_one() {
  if (remaining_.load(std::memory_order_relaxed) <= 0) return false;
  __builtin_prefetch(&loop_);
  const std::int64_t left = remaining_.fetch_sub(1, std::memory_order_acquire);
  if (left <= 0) return false;
  const std::size_t begin = static_cast<std::size_t>(loop_.ranges - left) * loop_.grain;
  loop_.body(loop_.context, begin, begin + std::min(loop_.grain, loop_.count - begin));
  return true;
}

std::uint64_t SpinRegion::done_by_attendants() const {
  std::uint64_t done = 0;
  for (const Slot& slot : slots_) done += slot.done.load(std::memory_order_acquire);
  return done;
}

bool SpinRegion::reserve() {
  int present = present_.load();
  while (present < threads_ - 1)
    if (present_.compare_exchange_weak(present, present + 1)) return true;
  return false;
}

void SpinRegion::serve(Slot& slot) {
  for (;;) {
    for (Wait wait(patience_.spin); remaining_.load(std::memory_order_relaxed) <= 0; wait.rest()) {
      const State state = state_.load(std::memory_order_relaxed);
      if (state == State::retired || (state == State::closed && wait.elapsed() >= patience_.linger)) return;
    }
    while (claim_one()) slot.done.fetch_add(1, std::memory_order_release);
  }
}

void SpinRegion::attend(int slot) {
  const Attendance before = attendance;
  attendance = {this, slot};
  // Whoever opens the region counts who is present after that; whoever leaves looks after that whether it was opened: one of
  // the two sees the other, and no more than threads - 1 are present in either case.
  do {
    serve(slots_[static_cast<std::size_t>(slot - 1)]);
    unreserve();
  } while (state_.load() == State::open && reserve());
  attendance = before;
}

int SpinRegion::index() const { return attendance.region == this ? attendance.slot : 0; }

}  // namespace ktc::exec
