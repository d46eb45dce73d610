#include "runtime/weights/numa_memory.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace ktc::weights {

std::optional<std::uint64_t> node_room(int node, const SystemRoots& roots) {
  const std::string name = "node" + std::to_string(node);
  const auto text = read_small_file(roots.sys / "devices" / "system" / "node" / name / "meminfo");
  if (!text) return std::nullopt;
  const std::string prefix = "Node " + std::to_string(node) + " ";  // before the name on every line
  constexpr std::uint64_t kMostKib = std::uint64_t{1} << 50;
  const auto free = named_number(*text, prefix + "MemFree");
  if (!free || *free > kMostKib) return std::nullopt;
  std::uint64_t kib = *free;
  for (const char* cache : {"Active(file)", "Inactive(file)"})
    kib += std::min(named_number(*text, prefix + cache).value_or(0), kMostKib);
  return kib * 1024;
}

// By system call: libnuma would be one more library for two of its functions.
Status bind_memory(const std::byte* begin, std::size_t bytes, int node, bool strict) {
  constexpr int kMostMemoryNodes = 1024, kWordBits = 8 * sizeof(unsigned long);
  const auto refused = [&](const char* why) {
    return make_error(StatusCode::unavailable, {"memory node " + std::to_string(node), "cannot be chosen for " + std::to_string(bytes) + " bytes",
                                                why, "", "weights lie where the system puts them, and may be slower to read"});
  };
  if (bytes == 0) return {};
  if (node < 0 || node >= kMostMemoryNodes) return refused("no such node");
  std::array<unsigned long, kMostMemoryNodes / kWordBits> mask{};
  mask[static_cast<std::size_t>(node / kWordBits)] = 1UL << (node % kWordBits);
  // The kernel takes one bit less than it is told.
  if (syscall(SYS_mbind, begin, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, mask.data(), kMostMemoryNodes + 1UL, 0UL) != 0)
    return refused(std::strerror(errno));
  return {};
}

void stay_on(const std::vector<int>& cpus) {
  constexpr std::size_t kMostCpus = 8192;
  if (cpus.empty()) return;
  std::array<unsigned long, kMostCpus / (8 * sizeof(unsigned long))> mask{};
  for (const int cpu : cpus) {
    const auto bit = static_cast<std::size_t>(cpu);
    if (cpu >= 0 && bit < kMostCpus) mask[bit / (8 * sizeof(unsigned long))] |= 1UL << (bit % (8 * sizeof(unsigned long)));
  }
  sched_setaffinity(0, sizeof mask, reinterpret_cast<const cpu_set_t*>(mask.data()));
}

}  // namespace ktc::weights
