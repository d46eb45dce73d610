#include "runtime/exec/parallel.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "runtime/exec/partition.h"
#include "test/support/simulated_nodes.h"

namespace ktc::exec {
namespace {

struct Crowd {
  int threads, nodes;
};
std::ostream& operator<<(std::ostream& out, const Crowd& c) { return out << c.threads << " on " << c.nodes; }

std::vector<WorkerNode> simulated(const Crowd& crowd) { return test::simulated_nodes(crowd.threads, crowd.nodes); }

class Parallel : public testing::TestWithParam<Crowd> {
 protected:
  static Expected<std::unique_ptr<Workers>> make() {
    return GetParam().nodes == 1 ? Workers::create(GetParam().threads) : Workers::create(simulated(GetParam()));
  }
  static int threads() { return GetParam().threads; }
  void SetUp() override {
    auto created = make();
    ASSERT_TRUE(created.ok()) << created.status().message();
    workers_ = std::move(*created);
    ASSERT_EQ(workers_->threads(), threads());
    ASSERT_EQ(workers_->nodes(), static_cast<std::size_t>(std::min(threads(), GetParam().nodes)));
  }
  std::unique_ptr<Workers> workers_;
};

// Plain, unguarded writes: a range given twice or a return before the end shows here, and under the thread sanitizer.
TEST_P(Parallel, CoversEveryIndexOnceAndWaits) {
  for (const std::size_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const std::size_t grain : {1, 3, 64, 5000}) {
      std::vector<int> visits(count, 0);
      workers_->parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
        EXPECT_LT(begin, end);
        for (std::size_t i = begin; i < end; ++i) ++visits[i];
      });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(visits[i], 1) << count << " by " << grain << " at " << i;
    }
  }
}

// As in a step: each phase reads all of what the phase before wrote.
TEST_P(Parallel, PhasesSeeEachOther) {
  constexpr std::size_t kCount = 200;
  std::vector<std::uint64_t> a(kCount, 1), b(kCount, 0);
  workers_->enter([&] {
    for (int phase = 0; phase < 300; ++phase) {
      workers_->parallel_for(kCount, 3, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) b[i] = a[(i + 7) % kCount] + a[kCount - 1 - i];
      });
      std::swap(a, b);
    }
  });
  for (std::size_t i = 1; i < kCount; ++i) ASSERT_EQ(a[i], a[0]);  // 2^300 modulo 2^64
  EXPECT_EQ(a[0], 0u);
  workers_->parallel_for(kCount, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) a[i] = i;
  });
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(a[i], i);
}

// Thousands of loops that are over before the others come, with counts around every edge of the cut.
TEST_P(Parallel, ManyTinyLoops) {
  std::vector<std::uint64_t> values(200);
  std::uint64_t total = 0, expected = 0;
  for (std::size_t step = 0; step < 20; ++step) {
    workers_->enter([&] {
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t count = (step + i * 13) % values.size(), grain = 1 + i % 9;
        workers_->parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
          for (std::size_t k = begin; k < end; ++k) values[k] = k + i;
        });
        for (std::size_t k = 0; k < count; ++k) total += values[k];
        expected += count * i + (count == 0 ? 0 : count * (count - 1) / 2);
      }
    });
  }
  EXPECT_EQ(total, expected);
}

// Plain counters, one per worker: two ranges with the same index at once would show under the thread sanitizer, and as a loss.
TEST_P(Parallel, IndexIsTheWorkers) {
  struct alignas(64) Count {
    std::size_t ranges = 0;
  };
  std::vector<Count> counts(static_cast<std::size_t>(threads()));
  const auto loop = [&] {
    workers_->parallel_for(1000, 1, [&](std::size_t, std::size_t) {
      const int index = workers_->index();
      ASSERT_GE(index, 0);
      ASSERT_LT(index, threads());
      ++counts[static_cast<std::size_t>(index)].ranges;
    });
  };
  if (threads() == 1) return loop();  // all in one range
  loop();
  workers_->enter([&] {
    EXPECT_EQ(workers_->index(), 0);
    for (int i = 0; i < 20; ++i) loop();
  });
  std::size_t all = 0;
  for (const Count& count : counts) all += count.ranges;
  EXPECT_EQ(all, 21000u);
}

// The owner goes while its workers are still spinning or on their way.
TEST_P(Parallel, EndsAtAnyTime) {
  for (int i = 0; i < 50; ++i) {
    auto workers = make();
    ASSERT_TRUE(workers.ok());
    std::vector<int> values(64, 0);
    (*workers)->parallel_for(i % 5 * 16, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t k = begin; k < end; ++k) values[k] = 1;
    });
    EXPECT_EQ(std::count(values.begin(), values.end(), 1), i % 5 * 16);
  }
}

// Every item of a phase waits for all of the phase before, and for the one below it in its queue: nothing hangs, whoever comes.
TEST_P(Parallel, ItemsWaitForEarlierPhases) {
  constexpr std::size_t kPhases = 5, kItems = 23;
  std::atomic<std::size_t> by_others{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(threads() == 1 ? 0 : 5);
  const auto enough = [&] { return by_others >= 500 || std::chrono::steady_clock::now() > deadline; };
  const auto check = [&](int round) {
    Deal deal(workers_->nodes());
    for (std::size_t p = 0; p < kPhases; ++p)
      deal.add([&](std::size_t n) { return workers_->share(kItems, n + 1) - workers_->share(kItems, n); });
    ASSERT_EQ(deal.count(), kPhases * kItems);
    std::vector<std::atomic<int>> done(kPhases * kItems);
    std::atomic<std::size_t> done_of[kPhases] = {};
    const auto await = [&](const auto& ready) {
      while (!ready()) std::this_thread::yield();
    };
    workers_->for_claims(deal, [&](Claims& claims) {
      for (; claims.more(); claims.advance()) {
        const std::size_t item = claims.current(), phase = item / kItems;
        if (round % 2 == 0) claims.ahead();
        if (workers_->index() != 0) ++by_others;
        if (phase > 0) await([&] { return done_of[phase - 1] == kItems; });
        bool first = false;  // of its queue
        for (std::size_t n = 0; n < workers_->nodes(); ++n) first = first || item % kItems == workers_->share(kItems, n);
        if (!first) await([&] { return done[item - 1] == 1; });
        ASSERT_EQ(done[item].exchange(1), 0);
        ++done_of[phase];
      }
    });
    for (const std::atomic<std::size_t>& of : done_of) ASSERT_EQ(of, kItems);
  };
  workers_->enter([&] {
    for (int round = 0; (round < 60 || !enough()) && !HasFatalFailure(); ++round) check(round);
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, Parallel,
                         testing::Values(Crowd{1, 1}, Crowd{2, 1}, Crowd{3, 1}, Crowd{7, 1}, Crowd{2, 2}, Crowd{3, 2}, Crowd{7, 2},
                                         Crowd{3, 3}, Crowd{7, 3}));

// Who runs an item of a node when nobody lacks work: its own workers, and they stay on its CPUs.
TEST(ParallelNodes, WorkersStayOnTheirNode) {
  const std::vector<WorkerNode> nodes = simulated({4, 2});
  auto workers = Workers::create(nodes);
  ASSERT_TRUE(workers.ok()) << workers.status().message();
  std::atomic<int> elsewhere{0}, seen[4] = {};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  (*workers)->enter([&] {
    while ((seen[1] == 0 || seen[2] == 0 || seen[3] == 0) && std::chrono::steady_clock::now() < deadline)
      (*workers)->parallel_for(64, 1, [&](std::size_t, std::size_t) {
        const int index = (*workers)->index();
        ++seen[index];
        const std::vector<int>& cpus = nodes[index < 2 ? 0 : 1].share.cpus;
        if (index != 0 && std::find(cpus.begin(), cpus.end(), sched_getcpu()) == cpus.end()) ++elsewhere;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      });
  });
  for (int worker = 1; worker < 4; ++worker) EXPECT_GT(seen[worker], 0) << worker;
  EXPECT_EQ(elsewhere, 0);
}

// A node's workers take its items first: with items of both to do, nobody begins with the other's.
TEST(ParallelNodes, OwnItemsFirst) {
  auto workers = Workers::create(simulated({4, 2}));
  ASSERT_TRUE(workers.ok());
  constexpr std::size_t kItems = 2000;
  std::atomic<std::size_t> strangers_with_own_work{0};
  std::atomic<std::size_t> begun[2] = {};
  for (int round = 0; round < 5; ++round) {
    begun[0] = begun[1] = 0;
    (*workers)->parallel_for(kItems, 1, [&](std::size_t item, std::size_t) {
      const std::size_t node = item < kItems / 2 ? 0 : 1, mine = (*workers)->index() < 2 ? 0 : 1;
      // what is claimed and not begun is at most one for each worker, and one that is claimed ahead
      if (node != mine && begun[mine] + 8 < kItems / 2) ++strangers_with_own_work;
      ++begun[node];
    });
  }
  EXPECT_EQ(strangers_with_own_work, 0u);
}

// Far more threads than CPUs: nobody may wait for a worker that has no CPU.
TEST(ParallelThreads, MoreThreadsThanCpus) {
  const int threads = 4 * static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) + 1;
  auto workers = Workers::create(threads);
  ASSERT_TRUE(workers.ok());
  std::vector<std::uint64_t> values(1000, 0);
  for (int step = 0; step < 10; ++step) {
    (*workers)->enter([&] {
      for (int i = 0; i < 50; ++i)
        (*workers)->parallel_for(values.size(), 10, [&](std::size_t begin, std::size_t end) {
          for (std::size_t k = begin; k < end; ++k) values[k] += k;
        });
    });
  }
  for (std::size_t k = 0; k < values.size(); ++k) ASSERT_EQ(values[k], 500 * k);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ParallelThreads, IdleWorkersSleep) {
  for (const auto& [threads, nodes] : {Crowd{2, 1}, Crowd{7, 1}, Crowd{7, 3}}) {
    auto workers = Workers::create(simulated({threads, nodes}));
    ASSERT_TRUE(workers.ok());
    std::atomic<int> ran{0};
    (*workers)->enter([&] { (*workers)->parallel_for(100, 1, [&](std::size_t, std::size_t) { ++ran; }); });
    EXPECT_EQ(ran, 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_LT(cpu_seconds() - before, 0.01 * 0.5) << threads;
  }
}

// Printed for who wants to compare; a shared machine gives no time that could be asserted. A wide loop shows the cost of a second
// worker: its ranges take long enough for others to claim some.
TEST(ParallelThreads, TimePerLoop) {
  constexpr int kLoops = 1000, kRounds = 21;
  constexpr std::size_t kRanges = 4;
  for (const int threads : {1, 2, 4}) {
    auto workers = Workers::create(threads);
    ASSERT_TRUE(workers.ok());
    for (const int work : {1, 1000}) {
      std::vector<std::uint64_t> values(kRanges * 64, 1);
      std::atomic<std::uint64_t> ranges_of_others{0};
      const auto loop = [&] {
        (*workers)->parallel_for(kRanges, 1, [&](std::size_t begin, std::size_t end) {
          for (std::size_t k = begin; k < end; ++k) {
            std::uint64_t value = values[k * 64];
            for (int i = 0; i < work; ++i) {  // each step waits for the one before
              value ^= value << 13;
              value ^= value >> 7;
              value ^= value << 17;
            }
            values[k * 64] = value;
          }
          if ((*workers)->index() != 0) ranges_of_others.fetch_add(end - begin, std::memory_order_relaxed);
        });
      };
      std::vector<double> times;
      (*workers)->enter([&] {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(threads == 1 ? 0 : 200);
        while (ranges_of_others == 0 && std::chrono::steady_clock::now() < deadline) loop();
        ranges_of_others = 0;
        for (int round = 0; round < kRounds; ++round) {
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < kLoops; ++i) loop();
          times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kLoops);
        }
      });
      std::sort(times.begin(), times.end());
      std::printf("%d threads, %zu ranges of %4d steps: median %.2f us, least %.2f us a loop, %.0f %% of the ranges by others\n",
                  threads, kRanges, work, times[kRounds / 2], times[0],
                  100.0 * static_cast<double>(ranges_of_others) / (kRanges * kLoops * kRounds));
      EXPECT_LE(ranges_of_others, kRanges * kLoops * kRounds);
    }
  }
}

// Ranges that wait for each other end only when as many threads as asked for run at once.
TEST(ParallelThreads, SeveralWorkersReallyRun) {
  auto workers = Workers::create(2);
  ASSERT_TRUE(workers.ok());
  std::atomic<int> arrived{0};
  std::atomic<bool> together{false};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!together && std::chrono::steady_clock::now() < deadline) {  // the scheduler may be late, but not for ever
    arrived = 0;
    (*workers)->parallel_for(2, 1, [&](std::size_t, std::size_t) {
      ++arrived;
      for (int i = 0; i < 1000 && arrived < 2; ++i) std::this_thread::yield();
      if (arrived == 2) together = true;
    });
  }
  EXPECT_TRUE(together);
}

TEST(ParallelThreads, TwoExecutorsAtOnce) {
  auto first = Workers::create(3), second = Workers::create(2);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto sum = [](Workers& workers) {
    std::vector<std::uint64_t> squares(500);
    std::uint64_t total = 0;
    for (int repeat = 0; repeat < 50; ++repeat) {
      workers.enter([&] {
        workers.parallel_for(squares.size(), 7, [&](std::size_t begin, std::size_t end) {
          for (std::size_t i = begin; i < end; ++i) squares[i] = i * i;
        });
      });
      for (const std::uint64_t s : squares) total += s;
    }
    return total;
  };
  std::uint64_t other = 0;
  std::thread thread([&] { other = sum(**second); });
  const std::uint64_t mine = sum(**first);
  thread.join();
  EXPECT_EQ(mine, 50u * 41541750u);
  EXPECT_EQ(other, mine);
}

TEST(ParallelThreads, RefusesTooMany) {
  const auto refused = Workers::create(1025);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(refused.status().message(), "threads: too many: found 1025, expected at most 1024");
}

// Shapes from small to very large models: a decode of one token gives every worker something, and no item is cut finer than a
// cache line or larger than what the cache holds.
TEST(Partition, DecodeBalancesAndPrefillFitsTheCache) {
  struct Shape {
    std::size_t columns, column_bytes, outer;
  };
  const Shape shapes[] = {{64, 2 * 2 * 192, 8},    {768, 2 * 2 * 2048, 8},   {2048, 2 * 7168, 8}, {2048, 2 * 768, 1},
                          {7168, 2 * 2048, 1}, {151936, 2 * 2048, 1}, {16, 100, 1},        {1, 4, 1}};
  for (const Shape& s : shapes) {
    for (const std::size_t workers : {1, 2, 16, 64}) {
      const std::size_t block = column_block(s.columns, s.column_bytes, s.outer, workers);
      ASSERT_GE(block, 1u);
      ASSERT_LE(block, s.columns);
      EXPECT_TRUE(block % kLine == 0 || block == s.columns);
      EXPECT_TRUE(block * s.column_bytes <= kBlockBytes || block <= kLine);
      const std::size_t items = s.outer * blocks(s.columns, block);
      EXPECT_GE(items, std::min(workers, s.outer * blocks(s.columns, kLine)));
    }
  }
  for (const std::size_t rows : {0, 1, 15, 64, 2048, 8192}) {
    const std::size_t block = row_block(rows, 2048 * 4);
    EXPECT_GE(block, 1u);
    EXPECT_LE(block, std::max<std::size_t>(1, std::min<std::size_t>(rows, 256)));
  }
}

}  // namespace
}  // namespace ktc::exec
