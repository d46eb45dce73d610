// From `experts:` of a policy to the hot experts of every layer.
#pragma once

#include "placement/place.h"
#include "placement/strategies.h"

namespace ktc::placement {

// Chooses among the routed experts that rules put on the CPU without `pin`. `counts` are those of all MoE layers, or empty. One entry
// for each layer and GPU that has any of its experts, by layer, the GPU of the layer's router first.
// Strategy `auto` asks the cost model (cost_model.h) for `policy` on `target`; with several GPUs their room is asked of the account
// (memory.h); the others look at `policy.experts` alone.
// `most`: no more than so many in all. `reduced`: set where the policy says best-effort and several GPUs have room for fewer than it
// demands.
// Errors: formats the GPU's kernels do not take, more experts per layer than there are, several GPUs without room (names each), with
// `update` hot experts of a layer that are not together on one GPU, and those of choose().
Expected<std::vector<HotExperts>> choose_hot_experts(const models::ModelDesc& model,
                                                     const std::vector<ModulePlacement>& modules, const Policy& policy,
                                                     const Target& target, const ExpertCounts& counts,
                                                     std::uint64_t most = UINT64_MAX, Difference* reduced = nullptr);

}  // namespace ktc::placement
