// The rates of a target with every gap filled, as the cost model needs them. What a target file does not state is assumed, and
// a note says so: `ktc probe` measures a machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "placement/target.h"

namespace ktc::placement {

// One device. Bytes and operations are per microsecond: 1 GB/s is 1000 bytes, 1 TOPS is 10^6 operations.
struct DeviceRates {
  std::string device;  // "cpu", "cuda:0"
  double read = 0;     // memory
  double vector = 0;   // cpu: int8 operations of the kernels for few rows
  double tile = 0;     // cpu: int8 operations of the tile kernels; 0: none. cuda: bf16 operations of large products
  double pcie = 0;     // cuda: host to device
  double kernel_us = 0, handoff_us = 0;
  Efficiency reads, matrices;  // complete
};

struct Rates {
  std::vector<DeviceRates> devices;  // "cpu" first
  std::vector<std::string> notes;    // one line for each device with assumed rates
  const DeviceRates& of(std::string_view device) const;  // the CPU's for a name that is not there
};

// Assumed where the target is silent, from measurements on two machines (docs/performance.md) scaled by cores: 10 GB/s a core
// and at most 80 GB/s a socket; 0.37 (AVX-512 VNNI), 0.09 (AVX2), 0.01 TOPS a core for vectors, 2 for tiles; a GPU of 500 GB/s,
// 0.137 * 10^12 bf16 operations for each GB/s, 20 GB/s of PCIe, 2 us a kernel, 5 us a hand-off.
Rates rates_of(const Target& target);

}  // namespace ktc::placement
