// The target: the machine a plan is made for. Written by hand or by `ktc probe`; rates are what was measured there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace ktc::placement {

struct CpuTarget {
  std::uint32_t sockets = 1;
  std::uint32_t cores = 1;                   // physical, over all sockets
  std::uint64_t memory = 0;                  // bytes
  double read_gb_per_s = 0;                  // all cores, 0: unknown
  std::vector<std::string> isa;              // names from runtime/base/cpu_features.def: "avx2", "avx512", "amx_int8"
  std::uint64_t l2_bytes = 0;                // per core
  std::uint64_t l3_bytes = 0;                // over all sockets
};

struct GpuTarget {
  std::string device;                        // "cuda:0"
  std::string name;                          // "NVIDIA RTX 4090"
  std::uint32_t sm = 0;                      // compute capability times ten: 89, 90
  std::uint64_t memory = 0;                  // bytes
  double read_gb_per_s = 0;
  double pcie_gb_per_s = 0;                  // host to device
};

struct Target {
  std::string name;
  CpuTarget cpu;
  std::vector<GpuTarget> gpus;
  bool has_device(std::string_view device) const;
  std::string list_devices() const;          // "cpu, cuda:0"
  std::uint64_t memory_of(std::string_view device) const;  // 0: no such device
};

Expected<Target> parse_target(std::string_view text, std::string_view name);
Expected<Target> read_target(const std::filesystem::path& path);

// The machine this process runs on, CPU only: cores, caches, memory and ISA as the operating system states them.
Target host_target();

}  // namespace ktc::placement
