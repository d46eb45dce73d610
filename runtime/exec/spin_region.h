// Loops handed to spinning threads: what makes a parallel_for cost some hundred nanoseconds instead of some microseconds.
//
// One caller at a time opens the region, runs loops and closes it; threads that attend() spin on one word, claim items from it
// and count what they finished on a cache line of their own. No lock and no system call on that way.
//
// The caller never waits for a thread that has not claimed an item: it claims items itself and can finish every loop alone, so
// attendants may come late, be suspended or never come at all. A claim is valid exactly when the counter was above zero, and a
// loop does not end before each valid claim is done: whoever holds one may read the loop, and nobody else does.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/exec/claims.h"

namespace ktc::exec {

constexpr int kFewCpus = 4;          // up to here a spinning thread takes a large part of the machine from others

struct SpinPatience {
  std::chrono::nanoseconds spin;    // then each look is followed by a yield
  std::chrono::nanoseconds linger;  // how long an attendant of a closed region waits for the next loop before it leaves

  // For `threads` on `cpus`: hardly any spinning where threads must take turns, little where others need the few CPUs.
  static SpinPatience fitting(int threads, int cpus);
};

class SpinRegion {
 public:
  // Does `claims` until there are no more. noexcept: an item that throws ends the program instead of leaving a loop that never
  // ends.
  using Body = void (*)(const void* context, Claims& claims) noexcept;

  // `threads` counts the caller, which is worker 0.
  SpinRegion(int threads, SpinPatience patience);
  SpinRegion(const SpinRegion&) = delete;
  SpinRegion& operator=(const SpinRegion&) = delete;

  // The caller.
  void open() { state_.store(State::open); }
  // Attendants linger, then leave.
  void close() { state_.store(State::closed); }
  // They leave as soon as they look. The region must outlive the last attend().
  void retire() { state_.store(State::retired); }
  // body(context, claims) by the caller, whose first item is 0, and by each attendant that claims one in time; all items are
  // done and visible on return. count >= 1.
  void run(Body body, const void* context, std::size_t count);

  // Whoever sends threads. After open(), while reserve() is true: one more thread may be sent to attend(). After each, exactly
  // one attend() or, when no thread can be sent after all, one unreserve().
  bool reserve();
  void unreserve() { present_.fetch_sub(1); }

  // A sent thread: works as worker `slot`, in [1, threads), of which no two attend at once. Returns when there was nothing to
  // do for a while in a closed region.
  void attend(int slot);

  std::chrono::nanoseconds spin() const { return patience_.spin; }

  // The slot of the calling thread if it attends this region, otherwise 0.
  int index() const;

 private:
  enum class State { open, closed, retired };
  struct Loop {
    Body body = nullptr;
    const void* context = nullptr;
    std::size_t count = 0;
  };
  struct alignas(kApart) Slot {
    std::atomic<std::uint64_t> done{0};  // items, ever
  };

  void serve(Slot& slot);
  std::size_t claim_and_work();
  std::uint64_t done_by_attendants() const;

  alignas(kApart) std::atomic<std::int64_t> remaining_{0};  // items that nobody has claimed; below zero: claims that failed
  alignas(kApart) Loop loop_;                               // of the last loop; read under a valid claim only
  alignas(kApart) std::atomic<State> state_{State::closed};
  std::atomic<int> present_{0};  // reserved: on their way or attending
  alignas(kApart) std::uint64_t expected_ = 0;  // the caller's: what the attendants have claimed, ever
  const int threads_;
  const SpinPatience patience_;
  std::vector<Slot> slots_;  // [threads_ - 1]; slot 0 is the caller's and needs none
};

}  // namespace ktc::exec
