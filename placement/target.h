// The target: the machine a plan is made for. Written by hand or by `ktc probe`; rates are what was measured there.
// docs/policy.md has the schema of target files. Threading: plain values, immutable after parse_target.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/cpu_features.h"
#include "runtime/base/status.h"
#include "runtime/formats/formats.h"

namespace ktc::placement {

// Fractions of a rate by format of the weights, each above 0 and at most 1. What is missing is unknown.
using Efficiency = std::map<Format, double>;

// What is 0 or missing here is unknown; rates.h says what the cost model takes instead.
struct CpuTarget {
  std::uint32_t sockets = 1;
  std::uint32_t nodes = 1;       // NUMA nodes with CPUs; rates are those of all nodes together, each reading its own memory
  std::uint32_t cores = 1;       // physical, over all sockets
  std::uint64_t memory = 0;      // bytes; 0: unknown (host_target only)
  double read_gb_per_s = 0;      // all cores, 0: unknown
  double cache_gb_per_s = 0;     // all cores reading what the last cache holds
  std::vector<std::string> isa;  // names from runtime/base/cpu_features.def: "avx2", "avx512f", "amx_int8"
  std::uint64_t l2_bytes = 0;    // per core, 0: unknown
  std::uint64_t l3_bytes = 0;    // over all sockets, 0: unknown or none
  double vnni_tops = 0;          // 10^12 int8 operations a second (two per multiply-add) of the kernels for few rows, all cores
  double amx_int8_tops = 0;      // of bare tile multiplications, all cores, operands in L2
  Efficiency read_efficiency;    // of read_gb_per_s: expert kernels of one token
  Efficiency matrix_efficiency;  // of amx_int8_tops (f32, bf16: of the vector rate): experts of many tokens
  Efficiency many_rows_efficiency;  // the same of experts of 512 tokens and more, whose activations no second cache holds
  Efficiency linear_efficiency;     // the same of layers that have one matrix for all rows; unknown formats: as experts
  double attention_tflops = 0;   // operations of attention, cached keys and values read from a cache, all cores
  double value_ns = 0;           // one core's time for one value that a product writes: scaled, activated, quantised, added
  double kernel_us = 0;          // fixed time of one parallel loop of a step
  double product_us = 0;         // that workers wait at the end of a product of few rows, which reads for longer than that
  double step_us = 0;            // of a step besides its kernels: its inputs written, its logits looked at
};

struct GpuTarget {
  std::string device;        // "cuda:0"
  std::string name;          // "NVIDIA RTX 4090"
  std::uint32_t sm = 0;      // compute capability times ten: 89, 90
  std::uint64_t memory = 0;  // bytes
  std::uint64_t context = std::uint64_t{500} << 20;  // bytes that the driver and its kernels take, whatever runs
  double read_gb_per_s = 0;  // 0: unknown
  double pcie_gb_per_s = 0;  // host to device, 0: unknown
  double bf16_tflops = 0;    // large products, as reached
  double attention_tflops = 0;  // attention over many rows, as reached
  Efficiency read_efficiency;  // of read_gb_per_s: products of one token
  Efficiency matrix_efficiency;  // of bf16_tflops: experts of many tokens; at most 4
  double attention_efficiency = 0;  // of read_gb_per_s: keys and values of one token
  double kernel_us = 0;      // fixed time of one kernel in a graph
  double column_ns = 0;      // the same, more for each column of the model's rows
  double prefill_kernel_us = 0;  // of prompts, whose kernels are launched one by one
  double prefill_column_ns = 0;  // of a prompt's router, whose products are a chain: for each column, at least
  double step_us = 0;        // of a step besides its kernels: inputs copied, the graph launched, logits copied back and looked at
  double handoff_us = 0;     // of one layer, kernels included: publish, the CPU's answer at once, await; besides the next
  double handoff_gb_per_s = 0;  // bytes of the record and the result of a layer
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
// is what the cgroup of this process allows, if that is less. What cannot be read is left at 0 (cores, nodes and sockets at
// 1).
Target host_target();
// The same with the files of /proc and /sys below `root`, for tests.
Target host_target(const std::filesystem::path& root, const CpuFeatures& features);

}  // namespace ktc::placement
