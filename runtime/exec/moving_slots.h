// Which experts are where, as the host has it, of banks whose experts change sides (Plan.moving).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/plan.h"

namespace ktc::exec {

// By Plan.weights index of gate_up: slots of the hot and of the cold bank of every layer that moves. Steps of the CPU point into
// them: made once, they stay where they are; what they hold changes between steps.
using MovingSlots = std::map<std::uint32_t, std::vector<std::int32_t>>;
MovingSlots moving_slots(const planfb::PlanT& plan);  // as at first

}  // namespace ktc::exec
