// From `experts:` of a policy to the hot experts of every layer.
#pragma once

#include "placement/place.h"
#include "placement/strategies.h"

namespace ktc::placement {

// Chooses among the routed experts that rules put on the CPU without `pin`. `counts` are those of all MoE layers, or
// empty. Errors: formats the GPU's kernels do not take, more experts per layer than there are, several GPUs (not in
// this version), and those of choose().
// Strategy `auto` asks the cost model (cost_model.h) for `policy` on `target`; the others look at `policy.experts` alone.
Expected<std::vector<HotExperts>> choose_hot_experts(const models::ModelDesc& model,
                                                     const std::vector<ModulePlacement>& modules, const Policy& policy,
                                                     const Target& target, const ExpertCounts& counts);

}  // namespace ktc::placement
