// The measurements behind `ktc probe`. Each fills rates of a target; what it could not measure stays unknown.
#pragma once

#include "placement/target.h"
#include "runtime/base/status.h"
#include "runtime/device/device.h"

namespace ktc::tools {

// Expert layers of a 30B model on all cores, as ktc-bench does: read rate, peaks, efficiencies by format, the time of a loop.
// Takes about 3 GiB of memory, less where that is scarce, and ten to thirty seconds.
Status probe_cpu(placement::CpuTarget* cpu);

// Copies within the card and to it, the time of a kernel in a graph, and the hand-off with an answer at once. A few seconds.
// Unmeasured: bf16_tflops, read_efficiency (ktc-bench gpu has both).
Expected<placement::GpuTarget> probe_gpu(device::Device& device, int ordinal);

}  // namespace ktc::tools
