#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "placement/target.h"

namespace ktc::placement {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

// A made-up machine's files below a temporary root.
class HostTargetTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            ("host_target_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void cpu(int number, int socket, int core, const std::string& l3_shared) {
    const std::string dir = "sys/devices/system/cpu/cpu" + std::to_string(number);
    write(dir + "/topology/physical_package_id", std::to_string(socket) + "\n");
    write(dir + "/topology/core_id", std::to_string(core) + "\n");
    write(dir + "/cache/index0/level", "1\n");
    write(dir + "/cache/index0/size", "48K\n");
    write(dir + "/cache/index1/level", "1\n");
    write(dir + "/cache/index2/level", "2\n");
    write(dir + "/cache/index2/size", "2048K\n");
    write(dir + "/cache/index3/level", "3\n");
    write(dir + "/cache/index3/size", "32M\n");
    write(dir + "/cache/index3/shared_cpu_list", l3_shared + "\n");
  }

  fs::path root_;
};

TEST_F(HostTargetTest, CountsCoresNotThreadsAndCachesOnce) {
  write("sys/devices/system/cpu/online", "0-3,8-9,11\n");
  cpu(0, 0, 0, "0-3"), cpu(1, 0, 0, "0-3");  // two threads of one core
  cpu(2, 0, 1, "0-3"), cpu(3, 0, 1, "0-3");
  cpu(8, 1, 0, "8-11"), cpu(9, 1, 1, "8-11"), cpu(11, 1, 2, "8-11");
  cpu(10, 1, 7, "8-11");  // not online
  write("proc/meminfo", "MemFree:     1 kB\nMemTotal:       16777216 kB\n");
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Example CPU 9000\n");
  write("sys/devices/system/node/online", "0-2,5\n");
  write("sys/devices/system/node/node0/cpulist", "0-3\n");
  write("sys/devices/system/node/node1/cpulist", "8-9\n");
  write("sys/devices/system/node/node2/cpulist", "\n");  // memory alone
  write("sys/devices/system/node/node5/cpulist", "10-11\n");
  CpuFeatures features;
  features.avx2 = features.amx_int8 = true;
  const Target target = host_target(root_, features);
  EXPECT_EQ(target.cpu.cores, 5u);
  EXPECT_EQ(target.cpu.sockets, 2u);
  EXPECT_EQ(target.cpu.nodes, 3u);
  EXPECT_EQ(target.cpu.l2_bytes, std::uint64_t{2} << 20);
  EXPECT_EQ(target.cpu.l3_bytes, std::uint64_t{64} << 20);
  EXPECT_EQ(target.cpu.memory, std::uint64_t{16} << 30);
  EXPECT_THAT(target.cpu.isa, ElementsAre("avx2", "amx_int8"));
  EXPECT_EQ(target.name, "this machine (Example CPU 9000)");
  EXPECT_TRUE(target.gpus.empty());
}

TEST_F(HostTargetTest, MemoryIsWhatTheControlGroupAllows) {
  write("proc/meminfo", "MemTotal:       16777216 kB\n");
  write("proc/self/cgroup", "0::/user/session\n");
  write("sys/fs/cgroup/user/memory.max", "4294967296\n");
  write("sys/fs/cgroup/user/session/memory.max", "max\n");
  EXPECT_EQ(host_target(root_, {}).cpu.memory, std::uint64_t{4} << 30);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(host_target(root_, {}).cpu.memory, std::uint64_t{1} << 30);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // version 1's word for none
  EXPECT_EQ(host_target(root_, {}).cpu.memory, std::uint64_t{4} << 30);
}

TEST_F(HostTargetTest, SurvivesMissingFiles) {
  const Target target = host_target(root_, {});
  EXPECT_GE(target.cpu.cores, 1u);
  EXPECT_EQ(target.cpu.sockets, 1u);
  EXPECT_EQ(target.cpu.nodes, 1u);
  EXPECT_EQ(target.cpu.memory, 0u);
  EXPECT_EQ(target.cpu.l2_bytes, 0u);
  EXPECT_EQ(target.cpu.l3_bytes, 0u);
  EXPECT_TRUE(target.cpu.isa.empty());
  EXPECT_EQ(target.name, "this machine");
}

TEST_F(HostTargetTest, SurvivesFilesOfNonsense) {
  for (const char* nonsense :
       {"", "\n", "-", ",,,", "0-99999999999999", "5-1", "99999999999999999999999", "a\0b", "0-3-5,x"}) {
    write("sys/devices/system/cpu/online", nonsense);
    write("proc/meminfo", std::string("MemTotal: ") + nonsense);
    write("proc/self/cgroup", std::string("0::/") + nonsense + "/../../..\n");
    write("sys/fs/cgroup/memory.max", nonsense);
    write("proc/cpuinfo", nonsense);
    write("sys/devices/system/cpu/cpu0/cache/index2/level", nonsense);
    const Target target = host_target(root_, {});
    EXPECT_GE(target.cpu.cores, 1u);
    EXPECT_LE(target.cpu.cores, 8192u);
  }
}

TEST_F(HostTargetTest, ThisMachineHasCoresAndMemory) {
  const Target target = host_target();
  EXPECT_GE(target.cpu.cores, 1u);
  EXPECT_GT(target.cpu.memory, std::uint64_t{1} << 20);
  EXPECT_EQ(target.list_devices(), "cpu");
}

}  // namespace
}  // namespace ktc::placement
