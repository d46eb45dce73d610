// The small plan on a GPU with its experts on the CPU: every step, packing and source that a plan of two devices adds.
#pragma once

#include "runtime/plan/plan.h"

namespace ktc::test {

// small_plan() with everything on "cuda:0" but experts. Layer 0: all experts on the CPU, one pair of a token late. Layer 1:
// experts 0 and 2 hot, in gpu_rows; 1 and 3 cold, in panels. extend entries copy, decode entries hand over; decode steps of the
// GPU are in one graph per stretch, some of them in launch groups. A fresh copy each time.
planfb::PlanT hybrid_plan();

}  // namespace ktc::test
