#include "runtime/weights/host_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "test/support/fake_system.h"

namespace ktc::weights {
namespace {

constexpr const char* kMeminfo = "MemTotal:       32768000 kB\nMemFree:         1000000 kB\nMemAvailable:    2048000 kB\n";
constexpr std::uint64_t kAvailable = std::uint64_t{2048000} * 1024;

TEST(AvailableMemory, IsWhatTheKernelSays) {
  test::FakeSystem system;
  EXPECT_EQ(available_memory(system.roots()), std::nullopt);
  system.put("proc/meminfo", kMeminfo);
  EXPECT_EQ(available_memory(system.roots()), kAvailable);
}

TEST(AvailableMemory, NearestGroupLimit) {
  test::FakeSystem system;
  system.put("proc/meminfo", kMeminfo);
  system.put("proc/self/cgroup", "0::/app\n");
  system.put("sys/fs/cgroup/app/memory.max", "max\n");
  system.put("sys/fs/cgroup/app/memory.current", "900\n");
  EXPECT_EQ(available_memory(system.roots()), kAvailable);
  system.put("sys/fs/cgroup/app/memory.max", "1000000\n");
  system.put("sys/fs/cgroup/app/memory.current", "900000\n");
  EXPECT_EQ(available_memory(system.roots()), 100000u);
  system.put("sys/fs/cgroup/app/memory.stat", "anon 200000\ninactive_file 300000\nactive_file 400000\n");
  EXPECT_EQ(available_memory(system.roots()), 800000u);  // page cache is given up first
  system.put("sys/fs/cgroup/app/memory.current", "2000000\n");
  EXPECT_EQ(available_memory(system.roots()), 0u);
}

TEST(AvailableMemory, VersionOne) {
  test::FakeSystem system;
  system.put("proc/meminfo", kMeminfo);
  system.put("proc/self/cgroup", "4:memory:/job\n");
  system.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  system.put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(available_memory(system.roots()), kAvailable);
  system.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8000\n");
  EXPECT_EQ(available_memory(system.roots()), 3000u);
  system.put("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 0\n");
  EXPECT_EQ(available_memory(system.roots()), 4000u);
}

TEST(AvailableMemory, CheckSaysNeedsHasAndRemedy) {
  test::FakeSystem system;
  EXPECT_TRUE(check_available(UINT64_MAX, "x", "y", system.roots()).ok());  // nobody knows
  system.put("proc/meminfo", "MemAvailable: 1 kB\n");
  EXPECT_TRUE(check_available(1024, "KV cache", "", system.roots()).ok());
  const Status status = check_available(1025, "KV cache", "buy more", system.roots());
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(), "KV cache: not enough memory: found 1024 bytes available, expected 1025 bytes; buy more");
}

TEST(HostBlock, IsZeroAlignedAndMovable) {
  auto block = HostBlock::allocate(100000, "test");
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->data()) % 4096, 0u);
  EXPECT_EQ(block->bytes(), 100000u);
  for (std::size_t i = 0; i < block->bytes(); ++i) ASSERT_EQ(block->data()[i], std::byte{0});
  block->data()[99999] = std::byte{7};
  HostBlock moved = std::move(*block);
  EXPECT_EQ(moved.data()[99999], std::byte{7});
  moved = HostBlock();
  EXPECT_EQ(moved.data(), nullptr);
  auto empty = HostBlock::allocate(0, "nothing");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->data(), nullptr);
}

TEST(HostBlock, RefusalNamesTheBlockAndItsSize) {
  for (const std::uint64_t bytes : {std::uint64_t{1} << 62, UINT64_MAX}) {
    const auto block = HostBlock::allocate(bytes, "arena");
    ASSERT_FALSE(block.ok());
    EXPECT_EQ(block.status().code(), StatusCode::resource_exhausted);
    EXPECT_EQ(block.status().message(), "arena: the system refuses the memory: found Cannot allocate memory, expected " +
                                            std::to_string(bytes) +
                                            " bytes; close other programs, or compile for a smaller batch or context");
  }
}

}  // namespace
}  // namespace ktc::weights
