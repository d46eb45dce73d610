#include "runtime/exec/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <optional>
#include <string>

#include "runtime/exec/affinity.h"
#include "runtime/exec/cpu_count.h"
#include "runtime/exec/spin_region.h"

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
namespace {

// What the workers share. It may outlive its owner: oneTBB does not say when a task that was sent will run, and nobody waits
// for one, so each holds the crew and the last one to leave frees it.
struct Crew {
  // On few CPUs nobody is bound: others need them too, and a bound thread can not make way (measured: prefill some 5 % slower).
  // On several nodes everybody is: a worker elsewhere would read other nodes' memory.
  Crew(const std::vector<WorkerNode>& nodes, int threads, const std::vector<std::vector<int>>& cores, int cpus)
      : region(workers_of(nodes), SpinPatience::fitting(threads, cpus)), pinning(pinning_for(nodes, threads, cores, cpus)) {}

  static std::vector<int> workers_of(const std::vector<WorkerNode>& nodes) {
    std::vector<int> workers;
    for (const WorkerNode& node : nodes) workers.push_back(static_cast<int>(node.share.workers));
    return workers;
  }
  static Pinning pinning_for(const std::vector<WorkerNode>& nodes, int threads, const std::vector<std::vector<int>>& cores, int cpus) {
    if (nodes.size() == 1) return cpus > kFewCpus ? Pinning(threads, cores) : Pinning();
    std::vector<std::vector<int>> pins;
    for (const WorkerNode& node : nodes) pins.insert(pins.end(), node.pins.begin(), node.pins.end());
    return Pinning(pins);
  }

  void hold() { holders.fetch_add(1, std::memory_order_relaxed); }
  void drop() {
    if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // Index 0 of each arena is kept for a thread that calls it: the caller of node 0, nobody in the others.
  void work(std::size_t node) {
    const int index = tbb::this_task_arena::current_thread_index();
    const int slot = region.first_of(node) + index - (node == 0 ? 0 : 1);
    if (index < 1 || slot >= region.first_of(node + 1)) return region.unreserve(node);
    // Here and not in an observer of the arena: observers are not told of workers that leave an arena after its owner is gone,
    // and those would stay bound.
    const Pinned pinned(pinning.core(slot));
    region.attend(slot);
  }

  SpinRegion region;
  const Pinning pinning;
  std::atomic<int> holders{1};
};

// What a task carries: to which node its thread was sent.
struct Errand {
  Crew* crew;
  std::size_t node;
};

// oneTBB orders what the caller did before what a task does, but its library is not instrumented: these two say so to the
// thread sanitizer. Reading the errand itself is what test/tsan.supp excuses, by this function's name.
void announce([[maybe_unused]] Crew* crew) {
#ifdef KTC_TSAN
  __tsan_release(crew);
#endif
}
#ifdef KTC_TSAN
[[gnu::noinline]]
#endif
Errand handed_over(const Errand& in_task) {
#ifdef KTC_TSAN
  __tsan_acquire(in_task.crew);
#endif
  return in_task;
}

}  // namespace

struct Workers::Arena {
  Arena(const std::vector<WorkerNode>& nodes, int threads) {
    // More workers than CPUs only when the user asks for them: the smallest such control of a process holds for all its arenas.
    if (threads > tbb::info::default_concurrency())
      control.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      arenas.emplace_back(static_cast<int>(nodes[n].share.workers) + (n == 0 ? 0 : 1), 1u);
      arenas.back().initialize();
    }
    const std::vector<std::vector<int>> cores = usable_cores();
    std::size_t cpus = 0;
    for (const std::vector<int>& core : cores) cpus += core.size();
    crew = new Crew(nodes, threads, cores, std::min(static_cast<int>(cpus), cpu_quota().value_or(kMostThreads)));
  }
  ~Arena() {
    crew->region.retire();
    crew->drop();
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Opens the region for as long as the outermost of these lives.
  struct Visit {
    explicit Visit(Arena& in) : arena(in) {
      if (arena.visits++ == 0) arena.open();
    }
    ~Visit() {
      if (--arena.visits == 0) arena.crew->region.close();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    Arena& arena;
  };

  void open() {
    crew->region.open();
    bool sent = false;
    for (std::size_t node = 0; node < crew->region.nodes(); ++node) sent = send(node) || sent;
    if (sent) crew->pinning.settle_caller();
  }

  // Whether a worker of the node was sent.
  bool send(std::size_t node) {
    bool sent = false;
    while (crew->region.reserve(node)) {
      crew->hold();
      announce(crew);
      try {
        arenas[node].enqueue([in_task = Errand{crew, node}] {
          const Errand errand = handed_over(in_task);
          errand.crew->work(errand.node);
          errand.crew->drop();
        });
      } catch (const std::exception&) {  // no memory for a task: fewer workers, the same results
        crew->region.unreserve(node);
        crew->drop();
        break;
      }
      sent = true;
    }
    return sent;
  }

  std::optional<tbb::global_control> control;
  std::deque<tbb::task_arena> arenas;  // of each node
  Crew* crew = nullptr;
  int visits = 0;
};

Workers::~Workers() = default;

Expected<std::unique_ptr<Workers>> Workers::create(int threads) {
  WorkerNode all;
  all.share.workers = static_cast<std::uint32_t>(std::max(1, threads));
  return create(std::vector<WorkerNode>{all});
}

Expected<std::unique_ptr<Workers>> Workers::create(const std::vector<WorkerNode>& nodes) {
  std::unique_ptr<Workers> workers(new Workers);
  std::size_t threads = 0;
  workers->first_ = {0};
  for (const WorkerNode& node : nodes) workers->first_.push_back(threads += node.share.workers);
  if (threads > kMostThreads)
    return make_error(StatusCode::invalid_argument, {"threads", "too many", std::to_string(threads),
                                                     "at most " + std::to_string(kMostThreads), ""});
  if (nodes.empty() || nodes.size() > kMostNodes)
    return make_error(StatusCode::invalid_argument, {"nodes", "", std::to_string(nodes.size()),
                                                     "1 to " + std::to_string(kMostNodes), ""});
  workers->threads_ = static_cast<int>(threads);
  if (threads == 1) return workers;
  try {
    workers->arena_ = std::make_unique<Arena>(nodes, workers->threads_);
  } catch (const std::exception& error) {
    return make_error(StatusCode::resource_exhausted, {"workers", "cannot start " + std::to_string(threads) + " threads",
                                                       error.what(), "", "ask for fewer threads"});
  }
  return workers;
}

int Workers::index() const { return threads_ == 1 ? 0 : arena_->crew->region.index(); }

std::chrono::nanoseconds Workers::spin() const {
  return threads_ == 1 ? std::chrono::nanoseconds(0) : arena_->crew->region.spin();
}

void Workers::run(Body body, const void* context, const Deal& deal) {
  const Arena::Visit visit(*arena_);
  arena_->crew->region.run(body, context, deal);
}

void Workers::enter_arena(void (*body)(const void*), const void* context) {
  const Arena::Visit visit(*arena_);
  body(context);
}

}  // namespace ktc::exec
