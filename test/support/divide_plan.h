// What the compiler makes of layers on two GPUs, by hand: from a plan of one GPU and the CPU (hybrid_model.h).
#pragma once

#include <memory>

#include "runtime/plan/plan.h"

namespace ktc::test {

// `whole` with the layers from `layer` (1 or more) on, the final norm, the head and what chooses tokens on cuda:1: with their weights,
// their part of the cache, their graphs and records. Experts of the CPU stay there. Values go from cuda:0 to cuda:1 once, in front of
// `layer`; inputs are on both. The weights' file is that of `whole`. Errors: those of verify_plan.
Expected<std::shared_ptr<const plan::OpenPlan>> divide_plan(const plan::OpenPlan& whole, std::uint32_t layer);

}  // namespace ktc::test
