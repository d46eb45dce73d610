// ktc-bench gpu: one GPU kernel at a time at the shapes of real models, against what the card's memory can deliver in the same run.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace ktc::bench {

struct GpuOptions {
  int device = 0;
  std::vector<std::string> parts;   // linear, experts, attention; empty: all
  int repeats = 5;                  // of each measurement; the median counts
  std::string json;                 // also write the results there
};

struct GpuCase {
  std::string part, name;
  double microseconds = 0;          // of one call, replayed in a graph
  double bytes = 0;                 // that it must read
  double operations = 0;            // multiplications and additions, 0 where bandwidth is the limit
};

struct GpuResult {
  std::string device;
  double copy_bytes_per_second = 0;  // a copy within the card's memory, bytes read and written
  std::vector<GpuCase> cases;
};

Expected<GpuResult> measure_gpu(const GpuOptions& options);
std::string to_table(const GpuResult& result);
std::string to_json(const GpuResult& result);

}  // namespace ktc::bench
