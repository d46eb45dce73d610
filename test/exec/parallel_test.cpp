#include "runtime/exec/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "runtime/exec/partition.h"

namespace ktc::exec {
namespace {

class Parallel : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto created = Workers::create(GetParam());
    ASSERT_TRUE(created.ok()) << created.status().message();
    workers_ = std::move(*created);
    ASSERT_EQ(workers_->threads(), GetParam());
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

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, testing::Values(1, 2, 3, 7));

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
