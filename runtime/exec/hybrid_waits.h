// Which copies a step has to wait for, from the plan's addresses.
#pragma once

#include <vector>

#include "runtime/exec/gpu_memory.h"
#include "runtime/exec/hybrid_program.h"
#include "runtime/plan/plan.h"

namespace ktc::exec {

// Sets HybridProgram::waits_by_copy, HybridStep::waits and CopyStep::done of an extend entry without streams: each step waits for the
// copies that it has to do with, not for all. One of the CPU for what it reads and for what it writes over; one of a GPU, which waits for
// all that comes to it anyway, before it writes over what leaves. Copies of a GPU are done in their order, so of each the last one will do.
// Other entries, and those with values that go between GPUs, stay as they are. Errors: events that a device does not give.
Status find_waits(const planfb::EntryT& entry, std::vector<Gpu>& gpus, HybridProgram& program);

}  // namespace ktc::exec
