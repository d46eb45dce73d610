#include "runtime/exec/spin_region.h"

#include "runtime/exec/spin_wait.h"

namespace ktc::exec {
namespace {

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

void SpinRegion::run(Body body, const void* context, std::size_t count) {
  loop_ = {body, context, count};
  remaining_.store(static_cast<std::int64_t>(count) - 1, std::memory_order_release);  // the first item is the caller's
  Claims claims(remaining_, count, 0);
  body(context, claims);
  if (claims.taken() == count) return;
  expected_ += count - claims.taken();
  for (SpinWait wait(patience_.spin); done_by_attendants() != expected_;) wait.rest();
}

// The counter orders: its store publishes the loop to whoever claims, and the claims of others in between keep that order.
std::size_t SpinRegion::claim_and_work() {
  if (remaining_.load(std::memory_order_relaxed) <= 0) return 0;
  __builtin_prefetch(&loop_);
  const std::int64_t left = remaining_.fetch_sub(1, std::memory_order_acquire);
  if (left <= 0) return 0;
  const Loop loop = loop_;
  Claims claims(remaining_, loop.count, loop.count - static_cast<std::size_t>(left));
  loop.body(loop.context, claims);
  return claims.taken();
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
    for (SpinWait wait(patience_.spin); remaining_.load(std::memory_order_relaxed) <= 0; wait.rest()) {
      const State state = state_.load(std::memory_order_relaxed);
      if (state == State::retired || (state == State::closed && wait.elapsed() >= patience_.linger)) return;
    }
    while (const std::size_t items = claim_and_work()) slot.done.fetch_add(items, std::memory_order_release);
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
