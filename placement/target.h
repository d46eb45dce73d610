// The target: the machine a plan is made for. Written by hand or by `ktc probe`; rates are what was measured there.
// docs/policy.md has the schema of target files. Threading: plain values, immutable after parse_target.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/cpu_features.h"
#include "runtime/base/status.h"

namespace ktc::placement {

struct CpuTarget {
  std::uint32_t sockets = 1;
  std::uint32_t cores = 1;       // physical, over all sockets
  std::uint64_t memory = 0;      // bytes; 0: unknown (host_target only)
  double read_gb_per_s = 0;      // all cores, 0: unknown
  std::vector<std::string> isa;  // names from runtime/base/cpu_features.def: "avx2", "avx512f", "amx_int8"
  std::uint64_t l2_bytes = 0;    // per core, 0: unknown
  std::uint64_t l3_bytes = 0;    // over all sockets, 0: unknown or none
};

struct GpuTarget {
  std::string device;        // "cuda:0"
  std::string name;          // "NVIDIA RTX 4090"
  std::uint32_t sm = 0;      // compute capability times ten: 89, 90
  std::uint64_t memory = 0;  // bytes
  std::uint64_t context = std::uint64_t{500} << 20;  // bytes that the driver and its kernels take, whatever runs
  double read_gb_per_s = 0;  // 0: unknown
  double pcie_gb_per_s = 0;  // host to device, 0: unknown
};

struct Target {
  std::string name;
  CpuTarget cpu;
  std::vector<GpuTarget> gpus;
  bool has_device(std::string_view device) const;
  std::string list_devices() const;                        // "cpu, cuda:0"
  std::uint64_t memory_of(std::string_view device) const;  // 0: no such device, or unknown
};

// "cpu" or "cuda:N" with N from 0 to 99: how policies and targets spell devices.
bool is_device_name(std::string_view text);

Expected<Target> parse_target(std::string_view text, std::string_view name);
Expected<Target> read_target(const std::filesystem::path& path);

// The machine this process runs on, CPU only: cores, caches, memory and ISA as the operating system states them. Memory
// is what the cgroup of this process allows, if that is less. What cannot be read is left at 0 (cores and sockets at
// 1).
Target host_target();
// The same with the files of /proc and /sys below `root`, for tests.
Target host_target(const std::filesystem::path& root, const CpuFeatures& features);

}  // namespace ktc::placement
