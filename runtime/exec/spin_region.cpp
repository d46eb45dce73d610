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

SpinRegion::SpinRegion(std::vector<int> workers_of, SpinPatience patience)
    : queues_(workers_of.size() == 1 ? 1 : kMostPhases * workers_of.size()), nodes_(workers_of.size()), patience_(patience) {
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    nodes_[n].first = threads_;
    nodes_[n].most = workers_of[n] - (n == 0 ? 1 : 0);
    threads_ += workers_of[n];
  }
  slots_ = std::vector<Slot>(static_cast<std::size_t>(threads_));
  for (std::size_t n = 0; n < nodes_.size(); ++n)
    for (int slot = first_of(n); slot < first_of(n + 1); ++slot) slots_[static_cast<std::size_t>(slot)].node = n;
}

void SpinRegion::run(Body body, const void* context, const Deal& deal) {
  static_assert(kMostPhases * kMostNodes < 256);
  loop_ = {body, context, &deal};
  std::size_t first = 0;  // the queue of item 0, which is the caller's
  while (deal.end(first) == 0) ++first;
  for (std::size_t q = 0, begin = 0; q < deal.queues(); begin = deal.end(q++)) {
    const std::size_t items = deal.end(q) - begin - (q == first ? 1 : 0);
    queues_[q].remaining.store(static_cast<std::int64_t>(items), std::memory_order_release);
  }
  if (nodes_.size() != 1)
    bell_.store((bell_.load(std::memory_order_relaxed) / 256 + 1) * 256 + deal.queues(), std::memory_order_release);
  Claims claims(queues_.data(), deal, 0, first, 0);
  body(context, claims);
  if (claims.taken() == deal.count()) return;
  expected_ += deal.count() - claims.taken();
  for (SpinWait wait(patience_.spin); done_by_attendants() != expected_;) wait.rest();
}

// A counter orders: its store publishes the loop to whoever claims, and the claims of others in between keep that order.
std::size_t SpinRegion::claim_and_work(std::size_t node, std::size_t queues) {
  for (std::size_t phase = 0; phase < queues; phase += nodes_.size()) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::size_t queue = phase + (node + i) % nodes_.size();
      std::atomic<std::int64_t>& remaining = queues_[queue].remaining;
      if (remaining.load(std::memory_order_relaxed) <= 0) continue;
      __builtin_prefetch(&loop_);
      const std::int64_t left = remaining.fetch_sub(1, std::memory_order_acquire);
      if (left <= 0) continue;
      const Loop loop = loop_;
      Claims claims(queues_.data(), *loop.deal, node, queue, loop.deal->end(queue) - static_cast<std::size_t>(left));
      loop.body(loop.context, claims);
      return claims.taken();
    }
  }
  return 0;
}

std::uint64_t SpinRegion::done_by_attendants() const {
  std::uint64_t done = 0;
  for (const Slot& slot : slots_) done += slot.done.load(std::memory_order_acquire);
  return done;
}

bool SpinRegion::reserve(std::size_t node) {
  int present = nodes_[node].present.load();
  while (present < nodes_[node].most)
    if (nodes_[node].present.compare_exchange_weak(present, present + 1)) return true;
  return false;
}

void SpinRegion::serve(Slot& slot) {
  const bool one = nodes_.size() == 1;
  std::uint64_t heard = 0;
  const auto called = [&] {
    return one ? queues_[0].remaining.load(std::memory_order_relaxed) > 0 : bell_.load(std::memory_order_relaxed) != heard;
  };
  for (;;) {
    for (SpinWait wait(patience_.spin); !called(); wait.rest()) {
      const State state = state_.load(std::memory_order_relaxed);
      if (state == State::retired || (state == State::closed && wait.elapsed() >= patience_.linger)) return;
    }
    std::size_t queues = 1;
    if (!one) {
      heard = bell_.load(std::memory_order_acquire);
      queues = heard % 256;
    }
    // One way through is enough: who returns has seen all counters of the loop at zero.
    if (const std::size_t items = claim_and_work(slot.node, queues)) slot.done.fetch_add(items, std::memory_order_release);
  }
}

void SpinRegion::attend(int slot) {
  const Attendance before = attendance;
  attendance = {this, slot};
  Slot& ours = slots_[static_cast<std::size_t>(slot)];
  // Whoever opens the region counts who is present after that; whoever leaves looks after that whether it was opened: one of
  // the two sees the other, and no more than the node has workers are present in either case.
  do {
    serve(ours);
    unreserve(ours.node);
  } while (state_.load() == State::open && reserve(ours.node));
  attendance = before;
}

int SpinRegion::index() const { return attendance.region == this ? attendance.slot : 0; }

}  // namespace ktc::exec
