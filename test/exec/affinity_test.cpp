#include "runtime/exec/affinity.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "runtime/exec/cpu_count.h"

namespace ktc::exec {
namespace {

std::vector<int> my_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

TEST(CpuSet, KeepsWhatFits) {
  CpuSet set;
  EXPECT_TRUE(set.add(0) && set.add(64) && set.add(kMostCpusInSet - 1));
  EXPECT_FALSE(set.add(-1) || set.add(kMostCpusInSet));
  EXPECT_TRUE(set.has(0) && set.has(64) && set.has(kMostCpusInSet - 1));
  EXPECT_FALSE(set.has(1) || set.has(-1) || set.has(kMostCpusInSet));
}

TEST(Pinning, OneCorePerWorkerWithAllItsCpus) {
  const std::vector<std::vector<int>> cores = {{0, 4}, {1, 5}, {6}};
  const Pinning two(2, cores);
  ASSERT_FALSE(two.empty());
  EXPECT_TRUE(two.core(0)->has(0) && two.core(0)->has(4) && two.core(1)->has(1) && two.core(1)->has(5));
  EXPECT_FALSE(two.core(0)->has(1) || two.core(1)->has(6));
  EXPECT_FALSE(Pinning(3, cores).empty());
}

TEST(Pinning, NoneWithMoreWorkersThanCores) {
  const Pinning none(4, {{0, 4}, {1, 5}, {6}});
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.core(3), nullptr);
  none.settle_caller();
  EXPECT_TRUE(Pinning(1, {{kMostCpusInSet}}).empty());
}

TEST(Pinned, BindsAndRestores) {
  const std::vector<int> before = my_cpus();
  ASSERT_FALSE(before.empty());
  const Pinning pinning(1, {{before.back()}});
  {
    const Pinned pinned(pinning.core(0));
    EXPECT_EQ(my_cpus(), std::vector<int>{before.back()});
    EXPECT_EQ(sched_getcpu(), before.back());
  }
  EXPECT_EQ(my_cpus(), before);
  pinning.settle_caller();
  EXPECT_EQ(my_cpus(), before);
}

TEST(Pinned, RefusalChangesNothing) {
  const std::vector<int> before = my_cpus();
  const Pinning absent(1, {{kMostCpusInSet - 1}});  // no machine of these tests has it
  {
    const Pinned refused(absent.core(0)), nothing(nullptr);
    EXPECT_EQ(my_cpus(), before);
  }
  absent.settle_caller();
  EXPECT_EQ(my_cpus(), before);
}

TEST(Pinned, CoresOfThisMachineAreOursToUse) {
  const auto cores = usable_cores();
  const Pinning all(static_cast<int>(cores.size()), cores);
  ASSERT_FALSE(all.empty());
  for (const int cpu : my_cpus()) {
    int owners = 0;
    for (std::size_t i = 0; i < cores.size(); ++i) owners += all.core(static_cast<int>(i))->has(cpu) ? 1 : 0;
    EXPECT_EQ(owners, 1) << cpu;
  }
}

}  // namespace
}  // namespace ktc::exec
