// One policy for several machines: what a target does not have is replaced where the policy says best-effort, and named.
#pragma once

#include "placement/policy.h"
#include "placement/target.h"

namespace ktc::placement {

// The policy as `target` can have it. Without best_effort, or where every device exists, it comes back as it is: place() then
// refuses what is missing. With best_effort, for GPUs that the target lacks:
// * a rule's device becomes cpu; formats stay what they are, and activations default to those of a CPU;
// * they are taken out of experts.gpu.devices; without any left no expert is hot;
// * their limits go.
// Without any GPU left in rules and experts, nothing streams and nothing is deferred: both hide one device's work behind another's.
// Each replacement is a Difference in `replaced`, which place() adds to its own. Pure.
Policy for_target(Policy policy, const Target& target);

}  // namespace ktc::placement
