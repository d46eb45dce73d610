// What only whole steps show: small plans are compiled, run by the ktc-run beside this program, and compared with the cost model. Each
// plan is made so that one rate decides its time; that rate is set to the value with which the model predicts what was measured.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "placement/target.h"
#include "runtime/base/status.h"

namespace ktc::tools {

struct PlanProbe {
  std::filesystem::path families;
  std::chrono::steady_clock::time_point deadline;  // no plan is begun or runs on behind it
  bool emulated = false;                           // tiny plans on the emulated GPU: for tests
};

// Microseconds of a token of the plans of probe_memory_plans by their names, one for every time that they were measured.
using MemoryTimes = std::map<std::string, std::vector<double>>;

// Decode of plans of INT8 and INT4 experts, small and large, that read gigabytes, for memory need not be equally fast everywhere, nor
// at all times: every call measures once more, adds to `times` and takes the mean of all. Each plan takes an eighth of the free memory, at
// most 4 GiB and a quarter of a GiB a core. Sets the CPU's product_us and its efficiencies of reading these formats, and in
// proportion to INT8 that of FP8; where a plan reads faster than read_gb_per_s said, that becomes what the fastest one reads, and
// all efficiencies shrink by as much.
Status probe_memory_plans(const PlanProbe& probe, placement::Target* target, MemoryTimes* times);
// `target`: read rates, peaks and efficiencies of experts on the CPU must be there. Sets of the CPU: attention_tflops, the
// efficiencies of floats and of linear layers, kernel_us, step_us.
Status probe_cpu_plans(const PlanProbe& probe, placement::Target* target);
// `gpu`: index in target->gpus, whose read and PCIe rates are there. Sets attention_tflops, bf16_tflops, all efficiencies, kernel_us,
// column_ns, both of prompts, step_us, handoff_us and handoff_gb_per_s.
Status probe_gpu_plans(const PlanProbe& probe, std::size_t gpu, placement::Target* target);

}  // namespace ktc::tools
