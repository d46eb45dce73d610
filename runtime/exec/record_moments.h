// Fills Moments from the operands of steps, right after each has run.
#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/exec/entry_program.h"
#include "runtime/exec/moments.h"
#include "runtime/plan/plan.h"

namespace ktc::exec {

// Only products with weights in rows keep their operands in f32; an error names the first step that has panels.
Status check_recordable(const std::vector<Program>& programs);

// Adds the operands of step `index` of `program`. The step has just run: its workspace still holds the hidden values.
void record_moments(const planfb::PlanT& plan, const Program& program, std::size_t index, const StepState& state,
                    Moments& moments);

}  // namespace ktc::exec
