// From the plan's tables to a Program of raw pointers. Everything that a CPU executor cannot run is refused here, by name.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/exec/entry_program.h"
#include "runtime/exec/moving_slots.h"
#include "runtime/exec/shared_experts.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/weight_store.h"

namespace ktc::exec {

// What a Program points into.
struct Memory {
  std::byte* arena = nullptr;
  std::vector<std::byte*> caches;  // one per Plan.caches
  std::vector<RopeTable> ropes;    // one per Plan.ropes; must not move while programs live
  std::span<std::uint64_t> expert_counts;
  const MovingSlots* moving = nullptr;  // instead of the plan's slots; null: nothing moves
  const SharedSlots* shared = nullptr;  // the same, of ops that take a share of what a GPU streams
};

// Devices, step kinds, formats and packings alone, before anything is allocated. A plan for the CPU alone.
Status check_runnable(const planfb::PlanT& plan);
// The same for what the CPU does of a plan with GPUs.
Status check_hybrid(const planfb::PlanT& plan);

// One step of the CPU. As below.
Expected<Step> resolve_step(const planfb::PlanT& plan, const planfb::EntryT& entry, const planfb::StepT& step,
                            const weights::WeightStore& weights, const kernels::KernelSet& kernels, const Memory& memory);

// One Program per decode and extend entry, ascending by tokens. The plan was verified and passed check_runnable.
Expected<std::vector<Program>> resolve(const planfb::PlanT& plan, const weights::WeightStore& weights,
                                       const kernels::KernelSet& kernels, const Memory& memory);

}  // namespace ktc::exec
