#include "runtime/base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "runtime/base/units.h"

namespace ktc {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

class ProgressTest : public testing::Test {
 protected:
  Progress::Output output(bool terminal) {
    return {.terminal = terminal,
            .write = [this](std::string_view text) { written.emplace_back(text); },
            .now = [this] { return time; }};
  }
  Progress::Clock::time_point time{};
  std::vector<std::string> written;
};

constexpr std::uint64_t MiB = 1 << 20;

TEST_F(ProgressTest, SaysNothingBelowTwoSeconds) {
  Progress progress("loading", output(true));
  time += 1999ms;
  progress.update(50 * MiB, 100 * MiB);
  progress.finish();
  time += 10s;
  progress.update(60 * MiB, 100 * MiB);
  EXPECT_TRUE(written.empty());
}

TEST_F(ProgressTest, PlainLinesAtMostEveryTwoSeconds) {
  Progress progress("loading", output(false));
  for (int i = 1; i <= 50; ++i) {
    time += 100ms;
    progress.update(static_cast<std::uint64_t>(i) * 2 * MiB, 200 * MiB);
  }
  progress.finish();
  progress.finish();
  EXPECT_THAT(written, ElementsAre("loading: 40.0 MiB of 200.0 MiB (20 %), 20.0 MiB/s, 8.0 s left\n",
                                   "loading: 80.0 MiB of 200.0 MiB (40 %), 20.0 MiB/s, 6.0 s left\n",
                                   "loading: 100.0 MiB in 5.0 s, 20.0 MiB/s\n"));
}

TEST_F(ProgressTest, RewritesOneLineOnATerminal) {
  {
    Progress progress("writing", output(true));
    time += 2s;
    progress.update(2 * MiB, 0);
    time += 50ms;
    progress.update(3 * MiB, 0);  // too soon
    time += 1950ms;
    progress.update(4 * MiB, 4 * MiB);
  }
  EXPECT_THAT(written, ElementsAre("\rwriting: 2.0 MiB, 1.0 MiB/s\x1b[K",
                                   "\rwriting: 4.0 MiB of 4.0 MiB (100 %), 1.0 MiB/s\x1b[K",
                                   "\rwriting: 4.0 MiB in 4.0 s, 1.0 MiB/s\x1b[K\n"));
}

TEST_F(ProgressTest, NeverGoesBackWhenThreadsReportOutOfOrder) {
  Progress progress("loading", output(false));
  time += 1s;
  progress.update(30 * MiB, 40 * MiB);
  time += 1s;
  Progress::report(&progress, 20 * MiB, 40 * MiB);
  EXPECT_THAT(written, ElementsAre("loading: 30.0 MiB of 40.0 MiB (75 %), 15.0 MiB/s, 0.7 s left\n"));
}

TEST_F(ProgressTest, MayBeUpdatedByManyThreads) {
  Progress progress("loading", output(false));
  time += 3s;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < 1000; ++i) progress.update(i, 1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(written.size(), 1u);
}

TEST(Units, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(MiB - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(24ull << 30), "24.0 GiB");
  EXPECT_EQ(format_bytes(~0ull), "16.0 EiB");
}

TEST(Units, Seconds) {
  EXPECT_EQ(format_seconds(-1), "0.0 s");
  EXPECT_EQ(format_seconds(9.94), "9.9 s");
  EXPECT_EQ(format_seconds(9.96), "10 s");
  EXPECT_EQ(format_seconds(59.4), "59 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(7500), "2 h 5 min");
}

}  // namespace
}  // namespace ktc
