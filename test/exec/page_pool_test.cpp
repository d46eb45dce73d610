#include "runtime/exec/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ktc::exec {
namespace {

TEST(PagePool, HandsOutAllOrNothing) {
  PagePool pool(5);
  PageHold hold;
  EXPECT_TRUE(pool.take(3, hold));
  EXPECT_EQ(std::vector<std::uint32_t>(hold.pages().begin(), hold.pages().end()),
            (std::vector<std::uint32_t>{0, 1, 2}));
  PageHold other;
  EXPECT_FALSE(pool.take(3, other));
  EXPECT_TRUE(other.pages().empty());
  EXPECT_EQ(pool.free(), 2u);
  EXPECT_TRUE(pool.take(2, other));
  EXPECT_FALSE(pool.take(1, hold));
  EXPECT_TRUE(pool.take(0, hold));
  hold.release();
  EXPECT_EQ(pool.free(), 3u);
  EXPECT_TRUE(hold.pages().empty());
  hold.release();  // harmless
  EXPECT_EQ(pool.free(), 3u);
}

TEST(PagePool, MovingAHoldMovesItsPages) {
  PagePool pool(4);
  {
    PageHold a, b;
    ASSERT_TRUE(pool.take(2, a));
    ASSERT_TRUE(pool.take(1, b));
    PageHold c = std::move(a);
    EXPECT_EQ(c.pages().size(), 2u);
    b = std::move(c);  // b's own page goes back
    EXPECT_EQ(pool.free(), 2u);
    EXPECT_EQ(b.pages().size(), 2u);
  }
  EXPECT_EQ(pool.free(), 4u);
}

// A model of the pool: every page is free or in exactly one hold, whatever the order of operations.
TEST(PagePool, NothingLeaksInRandomOperations) {
  constexpr std::uint32_t kPages = 97;
  PagePool pool(kPages);
  std::mt19937 random(20240607);
  std::vector<PageHold> holds(12);
  for (int operation = 0; operation < 20000; ++operation) {
    PageHold& hold = holds[random() % holds.size()];
    switch (random() % 4) {
      case 0:
      case 1: {
        const std::uint32_t count = random() % 20, free = pool.free();
        const std::size_t held = hold.pages().size();
        const bool taken = pool.take(count, hold);
        ASSERT_EQ(taken, count <= free);
        ASSERT_EQ(hold.pages().size(), held + (taken ? count : 0));
        break;
      }
      case 2: hold.release(); break;
      case 3: hold = std::move(holds[random() % holds.size()]); break;
    }
    std::set<std::uint32_t> held;
    std::size_t count = 0;
    for (const PageHold& h : holds) {
      count += h.pages().size();
      held.insert(h.pages().begin(), h.pages().end());
    }
    ASSERT_EQ(held.size(), count) << "a page is held twice after operation " << operation;
    ASSERT_TRUE(held.empty() || *held.rbegin() < kPages);
    ASSERT_EQ(count + pool.free(), kPages) << "after operation " << operation;
  }
  holds.clear();
  EXPECT_EQ(pool.free(), kPages);
  PageHold all;
  ASSERT_TRUE(pool.take(kPages, all));
  EXPECT_EQ(std::set<std::uint32_t>(all.pages().begin(), all.pages().end()).size(), kPages);
}

}  // namespace
}  // namespace ktc::exec
