// Which CPU kernels a plan runs on here, and why.
#pragma once

#include <string>

#include "runtime/kernels/cpu/panel_tiles.h"
#include "runtime/plan/plan.h"

namespace ktc::exec {

// Where the plan wants tiles and `kernels` have them: measures which shape is fastest here with `threads` at work, some 10 ms,
// and sets it. Returns one line for people that says what was chosen and why; empty for a plan without weights in panels on the CPU.
std::string choose_kernels(const planfb::PlanT& plan, IsaLevel asked, int threads, kernels::KernelSet& kernels);

}  // namespace ktc::exec
