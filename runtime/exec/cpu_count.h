// How many workers a CPU plan gets when nobody says.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "runtime/weights/system_files.h"

namespace ktc::exec {

// One per physical core that this process may use (siblings of simultaneous multithreading share the units that the kernels
// saturate), at most the whole cores of the nearest control group quota, at least 1. Pure over the files below `roots`:
// proc/self/status, sys/devices/system/cpu/cpuN/topology, cpu.max or cpu.cfs_quota_us. Missing files: every CPU of the mask
// counts as a core; without a mask, as many as the C++ library says.
int default_thread_count(const weights::SystemRoots& roots = {});

// The CPUs that this process may use, by physical core: cores in the order of their first CPU, the CPUs of a core in ascending
// order. Without a mask: as many cores of one CPU, numbered from 0, as the C++ library says.
std::vector<std::vector<int>> usable_cores(const weights::SystemRoots& roots = {});

// Whole CPUs of time that the nearest control group quota leaves; nullopt without one.
std::optional<int> cpu_quota(const weights::SystemRoots& roots = {});

// "0-3,8" -> {0, 1, 2, 3, 8}; nullopt when malformed or above 65535.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

}  // namespace ktc::exec
