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
  double cache = 0;    // cpu: what its last cache holds
  double vector = 0;   // cpu: int8 operations of the kernels for few rows
  double tile = 0;     // cpu: int8 operations of the tile kernels; 0: none. cuda: bf16 operations of large products
  double attention = 0;  // operations of attention over many rows
  double value_us = 0;   // cpu: of one value that a product writes, all cores at work
  double pcie = 0;     // cuda: host to device
  double attention_read = 0;  // cuda: share of `read` that keys and values of one token reach
  double kernel_us = 0, step_us = 0, handoff_us = 0;
  double product_us = 0;  // cpu: at the end of a product of few rows; 0 where the target is silent, whose efficiencies then have it
  // cuda: of a kernel, more for each column of the model's rows; of a kernel in prompts, and of their routers for each column
  double column_us = 0, prefill_kernel_us = 0, prefill_column_us = 0;
  double handoff = 0;  // cuda: bytes of records and results
  Efficiency reads, matrices;  // complete
  Efficiency many_rows;        // cpu: complete for what tiles serve
  Efficiency linear;           // cpu: as stated
};

struct Rates {
  std::vector<DeviceRates> devices;  // "cpu" first
  std::vector<std::string> notes;    // one line for each device with assumed rates
  const DeviceRates& of(std::string_view device) const;  // the CPU's for a name that is not there
};

// Assumed where the target is silent, from measurements on two machines (docs/performance.md) scaled by cores: 10 GB/s a core
// and at most 80 GB/s a socket, 3 times that from the last cache; 0.37 (AVX-512 VNNI), 0.09 (AVX2), 0.01 TOPS a core for vectors, 2 for
// tiles, a sixteenth of the vectors' for attention; nine tenths of an efficiency for many rows; 0.5 ns a value, 20 us a step; a GPU of 500 GB/s, 0.137 * 10^12 bf16 operations for each GB/s, a
// third of them in attention and in experts, 20 GB/s of PCIe, 2 us and 0.4 ns a column for a kernel,
// 8 us a kernel and 60 ns a column of the router in prompts, 60 us a step, 5 us and 4 GB/s a hand-off.
Rates rates_of(const Target& target);

}  // namespace ktc::placement
