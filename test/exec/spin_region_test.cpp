#include "runtime/exec/spin_region.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace ktc::exec {
namespace {

using std::chrono::milliseconds;
using std::chrono::microseconds;

constexpr SpinPatience kShort{microseconds(5), microseconds(200)};

template <typename Fn>
void run(SpinRegion& region, std::size_t count, std::size_t grain, const Fn& fn) {
  struct Loop {
    const Fn& fn;
    std::size_t count, grain;
  };
  const Loop loop{fn, count, grain};
  Deal deal(region.nodes());
  const std::size_t items = (count - 1) / grain + 1;
  deal.add([&](std::size_t n) { return items * (n + 1) / region.nodes() - items * n / region.nodes(); });
  region.run(
      [](const void* context, Claims& claims) noexcept {
        const Loop& l = *static_cast<const Loop*>(context);
        for (; claims.more(); claims.advance())
          l.fn(claims.current() * l.grain, std::min(l.count, (claims.current() + 1) * l.grain));
      },
      &loop, deal);
}

std::uint64_t sum_of_indices(SpinRegion& region, std::size_t count, std::size_t grain) {
  std::vector<std::uint64_t> values(count, 0);
  run(region, count, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) values[i] += i;
  });
  std::uint64_t sum = 0;
  for (const std::uint64_t value : values) sum += value;
  return sum;
}

TEST(SpinRegion, CallerAloneFinishesWhatNobodyComesFor) {
  SpinRegion region(8, kShort);
  region.open();
  int sent = 0;
  while (region.reserve()) ++sent;  // all on their way, none will arrive
  EXPECT_EQ(sent, 7);
  for (std::size_t count = 2; count < 300; ++count)
    ASSERT_EQ(sum_of_indices(region, count, 1 + count / 7), count * (count - 1) / 2);
  EXPECT_EQ(region.index(), 0);
  region.close();
}

TEST(SpinRegion, LateAttendantsTakePartInTheLoopThatRuns) {
  SpinRegion region(3, kShort);
  region.open();
  ASSERT_TRUE(region.reserve());
  std::thread late;
  std::atomic<int> slot_seen{0};
  run(region, 2, 1, [&](std::size_t begin, std::size_t) {
    if (begin == 0) {  // the caller's; the thread that runs the other range starts only now
      late = std::thread([&] { region.attend(2); });
      while (slot_seen == 0) std::this_thread::yield();
    } else {
      slot_seen = region.index();
    }
  });
  EXPECT_EQ(slot_seen, 2);
  EXPECT_EQ(region.index(), 0);
  region.close();
  late.join();
}

// Attendants come and go at any time, also in the middle of a loop, and slots pass from thread to thread.
void come_and_go(const std::vector<int>& workers_of) {
  SpinRegion region(workers_of, {microseconds(1), microseconds(0)});
  std::atomic<bool> end{false};
  std::atomic<int> visits{0}, ranges_of_others{0};
  std::vector<std::thread> threads;
  for (std::size_t node = 0; node < region.nodes(); ++node)
    for (int slot = std::max(1, region.first_of(node)); slot < region.first_of(node + 1); ++slot)
      threads.emplace_back([&, node, slot] {
        while (!end) {
          if (region.reserve(node)) region.attend(slot);
          ++visits;
          std::this_thread::yield();
        }
      });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto enough = [&] { return (visits >= 200 && ranges_of_others >= 200) || std::chrono::steady_clock::now() > deadline; };
  for (std::size_t i = 0; i < 3000 || !enough(); ++i) {
    if (i % 3 == 0) region.open();
    const std::size_t count = 2 + i * 7 % 61;
    ASSERT_EQ(sum_of_indices(region, count, 1 + i % 2 * (count / 5)), count * (count - 1) / 2);
    run(region, 40, 2, [&](std::size_t, std::size_t) {
      if (region.index() != 0) ++ranges_of_others;
    });
    if (i % 3 == 1) region.close();
  }
  EXPECT_GE(visits, 200);
  EXPECT_GE(ranges_of_others, 200);
  end = true;
  region.retire();
  for (std::thread& thread : threads) thread.join();
}
TEST(SpinRegion, ComingAndGoing) { come_and_go({4}); }
TEST(SpinRegion, ComingAndGoingOnTwoNodes) { come_and_go({2, 2}); }
TEST(SpinRegion, ComingAndGoingOnThreeNodes) { come_and_go({1, 1, 2}); }

TEST(SpinRegion, SlotsOfNodes) {
  SpinRegion region(std::vector<int>{2, 1, 3}, kShort);
  ASSERT_EQ(region.nodes(), 3u);
  EXPECT_EQ(region.first_of(1), 2);
  EXPECT_EQ(region.first_of(2), 3);
  EXPECT_EQ(region.first_of(3), 6);
  region.open();
  int sent[3] = {};
  for (std::size_t node = 0; node < 3; ++node)
    while (region.reserve(node)) ++sent[node];
  EXPECT_EQ(sent[0], 1);  // without the caller
  EXPECT_EQ(sent[1], 1);
  EXPECT_EQ(sent[2], 3);
  // none of them comes: the caller does the items of all nodes
  EXPECT_EQ(sum_of_indices(region, 100, 3), 4950u);
  EXPECT_EQ(sum_of_indices(region, 1, 1), 0u);  // nodes without items
}

TEST(SpinRegion, AttendantsOfAClosedRegionLeave) {
  SpinRegion region(2, {microseconds(20), microseconds(1000)});
  region.open();
  ASSERT_TRUE(region.reserve());
  EXPECT_FALSE(region.reserve());
  std::atomic<bool> left{false};
  std::thread thread([&] {
    region.attend(1);
    left = true;
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(left);  // open: it stays, however long nothing is to do
  region.close();
  thread.join();
  EXPECT_TRUE(left);
  EXPECT_TRUE(region.reserve());  // and its place is free
  region.unreserve();
}

TEST(SpinRegion, RetiredAttendantsLeaveAtOnce) {
  SpinRegion region(2, {microseconds(20), std::chrono::hours(1)});
  region.open();
  ASSERT_TRUE(region.reserve());
  std::thread thread([&] { region.attend(1); });
  EXPECT_EQ(sum_of_indices(region, 100, 1), 4950u);
  region.retire();
  thread.join();  // not in an hour
}

TEST(SpinRegion, PatienceFitsTheMachine) {
  const SpinPatience large = SpinPatience::fitting(16, 32), small = SpinPatience::fitting(2, 2);
  const SpinPatience crowded = SpinPatience::fitting(3, 2);
  EXPECT_EQ(large.spin, microseconds(100));
  EXPECT_EQ(small.spin, microseconds(20));
  EXPECT_LT(crowded.spin, small.spin);
  for (const SpinPatience& patience : {large, small, crowded}) EXPECT_LE(patience.linger, microseconds(100));
}

}  // namespace
}  // namespace ktc::exec
