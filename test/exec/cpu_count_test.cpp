#include "runtime/exec/cpu_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "test/support/fake_system.h"

namespace ktc::exec {
namespace {

using testing::ElementsAre;

class CpuCount : public testing::Test {
 protected:
  void mask(const std::string& list) {
    system_.put("proc/self/status", "Name:\tktc-run\nCpus_allowed:\tff\nCpus_allowed_list:\t" + list + "\nMems_allowed:\t1\n");
  }
  void topology(int cpu, const std::string& file, const std::string& text) {
    system_.put("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + file, text + "\n");
  }
  // Four cores of two threads: 0,4 1,5 2,6 3,7.
  void four_cores_of_two() {
    for (int cpu = 0; cpu < 8; ++cpu)
      topology(cpu, "core_cpus_list", std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  }
  int count() const { return default_thread_count(system_.roots()); }
  test::FakeSystem system_;
};

TEST_F(CpuCount, SiblingsAreOneCore) {
  four_cores_of_two();
  mask("0-7");
  EXPECT_EQ(count(), 4);
}

TEST_F(CpuCount, OnlyTheMaskCounts) {
  four_cores_of_two();
  mask("1,5");
  EXPECT_EQ(count(), 1);
  mask("1,2,6");
  EXPECT_EQ(count(), 2);
  mask("4-7");
  EXPECT_EQ(count(), 4);
}

TEST_F(CpuCount, CoresWithTheirCpus) {
  four_cores_of_two();
  mask("0-7");
  EXPECT_THAT(usable_cores(system_.roots()),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  mask("6,1,2");
  EXPECT_THAT(usable_cores(system_.roots()), ElementsAre(ElementsAre(1), ElementsAre(2, 6)));
  EXPECT_EQ(cpu_quota(system_.roots()), std::nullopt);
}

TEST_F(CpuCount, NumberingWithHoles) {
  topology(0, "thread_siblings_list", "0,128");
  topology(128, "thread_siblings_list", "0,128");
  topology(64, "thread_siblings_list", "64");
  mask("0,64,128");
  EXPECT_EQ(count(), 2);
}

TEST_F(CpuCount, CoreAndPackageNumbers) {
  for (int cpu = 0; cpu < 4; ++cpu) {  // the same core ids in two packages
    topology(cpu, "core_id", "0");
    topology(cpu, "physical_package_id", std::to_string(cpu / 2));
  }
  mask("0-3");
  EXPECT_EQ(count(), 2);
}

TEST_F(CpuCount, WithoutTopologyEveryCpuIsACore) {
  mask("0-2,8");
  EXPECT_EQ(count(), 4);
  topology(0, "core_cpus_list", "nonsense");
  topology(1, "core_cpus_list", "5-6");  // not even itself
  EXPECT_EQ(count(), 4);
}

TEST_F(CpuCount, WithoutAMaskTheLibraryCounts) {
  const int library = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_EQ(count(), library);
  mask("broken");
  EXPECT_EQ(count(), library);
}

TEST_F(CpuCount, QuotaRoundsDown) {
  mask("0-7");
  system_.put("proc/self/cgroup", "0::/user.slice/app\n");
  system_.put("sys/fs/cgroup/user.slice/app/cpu.max", "150000 100000\n");
  EXPECT_EQ(count(), 1);
  system_.put("sys/fs/cgroup/user.slice/app/cpu.max", "350000 100000\n");
  EXPECT_EQ(count(), 3);
  system_.put("sys/fs/cgroup/user.slice/app/cpu.max", "50000 100000\n");
  EXPECT_EQ(count(), 1);
  system_.put("sys/fs/cgroup/user.slice/app/cpu.max", "max 100000\n");
  EXPECT_EQ(count(), 8);
}

TEST_F(CpuCount, NearestQuotaOfAnyGroupAround) {
  mask("0-7");
  system_.put("proc/self/cgroup", "0::/outer/inner\n");
  system_.put("sys/fs/cgroup/outer/inner/cpu.max", "600000 100000\n");
  system_.put("sys/fs/cgroup/outer/cpu.max", "200000 100000\n");
  EXPECT_EQ(count(), 2);
  EXPECT_EQ(cpu_quota(system_.roots()), 2);
}

TEST_F(CpuCount, VersionOne) {
  mask("0-7");
  system_.put("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n");
  system_.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  system_.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(count(), 8);
  system_.put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(count(), 2);
}

// In a container the group has the host's name, and what is mounted is the group itself.
TEST_F(CpuCount, GroupOutsideOfTheNamespace) {
  mask("0-7");
  system_.put("proc/self/cgroup", "0::/../../host/name\n");
  system_.put("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(count(), 3);
  system_.put("proc/self/cgroup", "0::/docker/0123\n");
  EXPECT_EQ(count(), 3);
}

TEST_F(CpuCount, MalformedQuotasAreNone) {
  mask("0-3");
  system_.put("proc/self/cgroup", "0::/\nnonsense\n::\n");
  for (const char* text : {"", "\n", "100000", "x y", "100000 0", "-5 100000", "99999999999999999999999 1"}) {
    system_.put("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(count(), 4) << text;
  }
}

TEST(CpuList, Parses) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n").value(), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("5").value(), ElementsAre(5));
  for (const char* text : {"", "\n", "-", "3-1", "a", "0-", "0-99999999", "1,,2"}) EXPECT_FALSE(parse_cpu_list(text)) << text;
}

TEST(CpuCountHere, IsPlausible) {
  EXPECT_GE(default_thread_count(), 1);
  EXPECT_LE(default_thread_count(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

}  // namespace
}  // namespace ktc::exec
