// The workers of one executor and the only way in which it runs anything in parallel.
//
// Work is claimed dynamically: which worker runs which range is open, so whatever runs here must not let its result depend on
// it. One thread at a time calls enter() and parallel_for(); it is worker 0 and does all that no other worker comes to do. The
// others are oneTBB workers that spin between the loops of a step and shortly after it (spin_region.h).
//
// Workers may be of several NUMA nodes, an arena of oneTBB for each. Then every item of a loop belongs to a node, whose workers
// take it before others do (claims.h): where nothing else is said, nodes get ranges as large as their number of workers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/exec/claims.h"
#include "runtime/exec/cpu_nodes.h"

namespace ktc::exec {

constexpr int kMostThreads = 1024;

class Workers {
 public:
  // `threads` (less than 1: 1) includes the calling thread. Errors: more than kMostThreads; the system refuses threads or memory.
  // One node, whatever the machine is.
  static Expected<std::unique_ptr<Workers>> create(int threads);
  // As deal_workers() says, at least one on each. Of several nodes each worker is bound to its CPUs, but for the calling thread,
  // which is the first of node 0.
  static Expected<std::unique_ptr<Workers>> create(const std::vector<WorkerNode>& nodes);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }
  std::size_t nodes() const { return first_.size() - 1; }
  // Where the share of a node begins in [0, total), in units; node nodes(): total.
  std::size_t share(std::size_t total, std::size_t node, std::size_t unit = 1) const {
    return weights::share_begin(total, first_[node], first_.back(), unit);
  }

  // Inside a range: which worker runs it, in [0, threads()).
  int index() const;

  // Calls fn(begin, end) for disjoint ranges that cover [0, count) and returns when all are done: what the workers wrote is
  // visible then. Ranges are `grain` long but for the last; all in one call where that is not worth a second worker.
  // Low ranges are claimed first. fn must not throw and must not call parallel_for.
  template <typename Fn>
  void parallel_for(std::size_t count, std::size_t grain, const Fn& fn) {
    if (count == 0) return;
    if (threads_ == 1 || count <= grain) return fn(std::size_t{0}, count);
    for_claims((count - 1) / grain + 1, [&fn, count, grain](Claims& claims) {
      for (; claims.more(); claims.advance())
        fn(claims.current() * grain, std::min(count, (claims.current() + 1) * grain));
    });
  }

  // Calls fn(claims) on this thread and on every worker that comes in time; together they do the items [0, count) as claims.h
  // says, all of one phase. Item 0 is this thread's. Otherwise as parallel_for.
  template <typename Fn>
  void for_claims(std::size_t count, const Fn& fn) {
    if (count == 0) return;
    if (threads_ == 1 || count == 1) {
      Claims all(count);
      return fn(all);
    }
    Deal deal(nodes());
    deal.add([&](std::size_t node) { return share(count, node + 1) - share(count, node); });
    for_claims(deal, fn);
  }
  // The same for items that belong to nodes: deal(nodes()) with what was added to it.
  template <typename Fn>
  void for_claims(const Deal& deal, const Fn& fn) {
    if (deal.count() == 0) return;
    if (threads_ == 1 || deal.count() == 1) {
      Claims all(deal.count());
      return fn(all);
    }
    run([](const void* context, Claims& claims) noexcept { (*static_cast<const Fn*>(context))(claims); }, &fn, deal);
  }

  // How long an item that waits for an item below it spins before it yields.
  std::chrono::nanoseconds spin() const;

  // Runs fn() on this thread with the workers at hand: they spin until it returns. One entry per step makes each parallel_for
  // inside it cheaper. Nothing that takes long without a parallel_for belongs inside.
  template <typename Fn>
  void enter(const Fn& fn) {
    if (threads_ == 1) return fn();
    enter_arena([](const void* context) { (*static_cast<const Fn*>(context))(); }, &fn);
  }

 private:
  struct Arena;
  using Body = void (*)(const void* context, Claims& claims) noexcept;
  Workers() = default;
  void run(Body body, const void* context, const Deal& deal);
  void enter_arena(void (*body)(const void*), const void* context);

  int threads_ = 1;
  std::vector<std::size_t> first_{0, 1};  // of each node: workers of the nodes before it; then all
  std::unique_ptr<Arena> arena_;  // null for one thread
};

}  // namespace ktc::exec
