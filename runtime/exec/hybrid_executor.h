// The executor of plans with GPUs. One thread calls run(): it launches the GPUs' work, is worker 0 of the CPU's, polls the records
// of the hand-off and answers them. Steps of decode entries that are in graphs are captured at open and replayed.
//
// Order in a step: block of inputs to every GPU, then the plan's list. A graph is launched at its first step; a publish step is
// waited for, an await step is answered; copies run beside the computation and are waited for before the CPU's next step.
#pragma once

#include <memory>

#include "runtime/exec/executor.h"

namespace ktc::exec {

// Errors, before weights are read: a device that is not here or too small, kernels that this build lacks, not enough host memory.
Expected<std::unique_ptr<Executor>> open_hybrid(std::shared_ptr<const plan::OpenPlan> plan, const ExecutorOptions& options);

}  // namespace ktc::exec
