// The workers of one executor and the only way in which it runs anything in parallel.
//
// Work is claimed dynamically: which worker runs which range is open, so whatever runs here must not let its result depend on
// it. One thread at a time calls enter() and parallel_for(); it is worker 0 and does all that no other worker comes to do. The
// others are oneTBB workers that spin between the loops of a step and shortly after it (spin_region.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/exec/claims.h"

namespace ktc::exec {

constexpr int kMostThreads = 1024;

class Workers {
 public:
  // `threads` (less than 1: 1) includes the calling thread. Errors: more than kMostThreads; the system refuses threads or memory.
  static Expected<std::unique_ptr<Workers>> create(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }

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
  // says. Item 0 is this thread's. Otherwise as parallel_for.
  template <typename Fn>
  void for_claims(std::size_t count, const Fn& fn) {
    if (count == 0) return;
    if (threads_ == 1 || count == 1) {
      Claims all(count);
      return fn(all);
    }
    run([](const void* context, Claims& claims) noexcept { (*static_cast<const Fn*>(context))(claims); }, &fn, count);
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
  void run(Body body, const void* context, std::size_t count);
  void enter_arena(void (*body)(const void*), const void* context);

  int threads_ = 1;
  std::unique_ptr<Arena> arena_;  // null for one thread
};

}  // namespace ktc::exec
