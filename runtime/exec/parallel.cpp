#include "runtime/exec/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <string>

#if defined(__SANITIZE_THREAD__)
#define KTC_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KTC_TSAN 1
#endif
#endif
#ifdef KTC_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace ktc::exec {

struct Workers::Arena {
  explicit Arena(int threads) : arena(threads) {
    // More workers than CPUs only when the user asks for them: the smallest such control of a process holds for all its arenas.
    if (threads > tbb::info::default_concurrency())
      control.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    arena.initialize();
  }

  // The loop that runs now. It lives here and not on the caller's stack, and both its ends are ordered by our own atomics:
  // `next` publishes the fields to whoever claims, `left` publishes what a worker wrote to the caller.
  Body body = nullptr;
  const void* context = nullptr;
  std::size_t count = 0, grain = 1;
  alignas(64) std::atomic<std::size_t> next{0};  // range to claim
  alignas(64) std::atomic<std::size_t> left{0};  // visits that ended
  bool entered = false;

  std::optional<tbb::global_control> control;
  tbb::task_arena arena;

  void drain() {
    for (;;) {
      const std::size_t range = next.fetch_add(1, std::memory_order_acq_rel);
      if (range >= (count + grain - 1) / grain) break;
      const std::size_t begin = range * grain;
      body(context, begin, std::min(count, begin + grain));
    }
    left.fetch_add(1, std::memory_order_acq_rel);
  }
};

namespace {

// oneTBB orders what the caller did before what a task does, but its library is not instrumented: these two say so to the thread
// sanitizer. Reading the pointer itself is what test/tsan.supp excuses, by this function's name.
void announce([[maybe_unused]] void* arena) {
#ifdef KTC_TSAN
  __tsan_release(arena);
#endif
}
template <typename Arena>
#ifdef KTC_TSAN
[[gnu::noinline]]
#endif
Arena& handed_over(Arena* const& in_task) {
#ifdef KTC_TSAN
  __tsan_acquire(in_task);
#endif
  return *in_task;
}

}  // namespace

Workers::~Workers() = default;

Expected<std::unique_ptr<Workers>> Workers::create(int threads) {
  if (threads > kMostThreads)
    return make_error(StatusCode::invalid_argument, {"threads", "too many", std::to_string(threads),
                                                     "at most " + std::to_string(kMostThreads), ""});
  std::unique_ptr<Workers> workers(new Workers);
  workers->threads_ = std::max(1, threads);
  if (workers->threads_ == 1) return workers;
  try {
    workers->arena_ = std::make_unique<Arena>(workers->threads_);
  } catch (const std::exception& error) {
    return make_error(StatusCode::resource_exhausted, {"workers", "cannot start " + std::to_string(threads) + " threads",
                                                       error.what(), "", "ask for fewer threads"});
  }
  return workers;
}

int Workers::index() const {
  const int slot = threads_ == 1 ? 0 : tbb::this_task_arena::current_thread_index();
  return slot >= 0 && slot < threads_ ? slot : 0;  // outside of the arena the caller is alone
}

void Workers::run(Body body, const void* context, std::size_t count, std::size_t grain) {
  Arena& a = *arena_;
  a.body = body;
  a.context = context;
  a.count = count;
  a.grain = grain;
  a.left.store(0, std::memory_order_relaxed);
  a.next.store(0, std::memory_order_release);
  const std::size_t visits = std::min(static_cast<std::size_t>(threads_), (count + grain - 1) / grain);
  auto loop = [arena = &a, visits] {
    announce(arena);
    tbb::parallel_for(
        std::size_t{0}, visits, std::size_t{1}, [arena](std::size_t) { handed_over(arena).drain(); }, tbb::simple_partitioner());
  };
  try {
    if (a.entered)
      loop();
    else
      a.arena.execute(loop);
  } catch (const std::exception&) {
    // Only the scheduler's own allocations can fail here; it has stopped every visit by now, what is left is done alone.
    a.drain();
  }
  a.left.load(std::memory_order_acquire);
}

void Workers::enter_arena(void (*body)(const void*), const void* context) {
  Arena& a = *arena_;
  bool done = false;
  try {
    a.arena.execute([&] {
      a.entered = true;
      done = true;
      body(context);
    });
  } catch (const std::exception&) {
    if (!done) body(context);  // could not enter: each parallel_for tries by itself
  }
  a.entered = false;
}

}  // namespace ktc::exec
