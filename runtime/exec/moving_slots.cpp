#include "runtime/exec/moving_slots.h"

namespace ktc::exec {

MovingSlots moving_slots(const planfb::PlanT& plan) {
  MovingSlots slots;
  for (const auto& moving : plan.moving) {
    slots[moving->w_hot_gate_up] = moving->slots;
    std::vector<std::int32_t>& cold = slots[moving->w_cold_gate_up];
    for (std::size_t e = 0; e < moving->slots.size(); ++e) cold.push_back(moving->slots[e] < 0 ? static_cast<std::int32_t>(e) : -1);
  }
  return slots;
}

}  // namespace ktc::exec
