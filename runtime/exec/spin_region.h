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
  SpinRegion(int threads, SpinPatience patience) : SpinRegion(std::vector<int>{threads}, patience) {}
  // Workers of each node, each at least 1, their slots in the order of the nodes; the caller is the first of node 0.
  SpinRegion(std::vector<int> workers_of, SpinPatience patience);
  SpinRegion(const SpinRegion&) = delete;
  SpinRegion& operator=(const SpinRegion&) = delete;

  // The caller.
  void open() { state_.store(State::open); }
  // Attendants linger, then leave.
  void close() { state_.store(State::closed); }
  // They leave as soon as they look. The region must outlive the last attend().
  void retire() { state_.store(State::retired); }
  // body(context, claims) by the caller, whose first item is 0, and by each attendant that claims one in time; all items are
  // done and visible on return. The deal has at least one item and as many nodes as the region.
  void run(Body body, const void* context, const Deal& deal);

  // Whoever sends threads. After open(), while reserve() is true: one more thread of that node may be sent to attend(). After
  // each, exactly one attend() or, when no thread can be sent after all, one unreserve().
  bool reserve(std::size_t node = 0);
  void unreserve(std::size_t node = 0) { nodes_[node].present.fetch_sub(1); }

  std::size_t nodes() const { return nodes_.size(); }
  // The slot of the first worker of a node; first_of(nodes()) is the number of all.
  int first_of(std::size_t node) const { return node == nodes_.size() ? threads_ : nodes_[node].first; }

  // A sent thread: works as worker `slot`, in [1, threads), one of the node for which it was sent; no two attend as one at once. Returns when there was nothing to
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
    const Deal* deal = nullptr;
  };
  struct alignas(kApart) Slot {
    std::atomic<std::uint64_t> done{0};  // items, ever
    std::size_t node = 0;
  };
  struct alignas(kApart) Node {
    int first = 0, most = 0;      // slots; attendants
    std::atomic<int> present{0};  // reserved: on their way or attending
  };

  void serve(Slot& slot);
  std::size_t claim_and_work(std::size_t node, std::size_t queues);
  std::uint64_t done_by_attendants() const;

  std::vector<ItemQueue> queues_;                  // [1], or [kMostPhases][nodes]
  alignas(kApart) std::atomic<std::uint64_t> bell_{0};  // loops rung so far * 256 + queues of the last one; several nodes only
  alignas(kApart) Loop loop_;                      // of the last loop; read under a valid claim only
  alignas(kApart) std::atomic<State> state_{State::closed};
  std::vector<Node> nodes_;
  alignas(kApart) std::uint64_t expected_ = 0;  // the caller's: what the attendants have claimed, ever
  int threads_ = 0;
  const SpinPatience patience_;
  std::vector<Slot> slots_;  // [threads_]; that of the caller counts nothing
};

}  // namespace ktc::exec
