// The measurements behind `ktc probe`. Each fills rates of a target; what it could not measure stays unknown.
#pragma once

#include "placement/target.h"
#include "runtime/base/status.h"
#include "runtime/device/device.h"

namespace ktc::tools {

// Expert layers of a 30B model on all cores, as ktc-bench does: read rates, peaks, efficiencies by format, the time of a loop.
// Takes about 4 GiB of memory, less where that is scarce, and some ten seconds.
Status probe_cpu(placement::CpuTarget* cpu);
// Peaks, efficiencies of many rows and value_ns once more, at the end of a probe: of both moments the mean.
Status probe_cpu_again(placement::CpuTarget* cpu);

// Copies within the card and to it, the time of a small kernel in a graph, and the hand-off with an answer at once. A second or two; the
// rest of a GPU's rates is measured by whole plans (probe_plans.h). Errors: a hand-off without end.
Expected<placement::GpuTarget> probe_gpu(device::Device& device, int ordinal);

}  // namespace ktc::tools
