// Launch groups of a plan (Step.launch_group, runtime/formats/launch_groups.h) become launches: a group of which this
// device has the kernel gets one, on its last step, and its other steps keep none. Every buffer of the plan is written
// as by the steps themselves, so nothing but the rounding of a norm depends on it.
#pragma once

#include <map>
#include <variant>
#include <vector>

#include "runtime/exec/hybrid_program.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::exec {

class StepJoiner {
 public:
  using Args = std::variant<gpu::AwaitArgs, gpu::AddNormArgs, gpu::RouteArgs, gpu::PublishArgs>;

  // The step with this index in HybridProgram::steps belongs to a group of the plan.
  void member(std::uint32_t group, std::size_t step) { groups_[group].push_back(step); }
  // Its only launch, on all tokens. Counts are filled in later.
  void saw(std::size_t step, const gpu::KernelSet& kernels, const Args& args) { seen_[step] = {&kernels, args}; }

  // Joins the groups that the plan has and no others. Not the ones with a member that was not seen, because it is no
  // launch here (host nodes), or without a kernel: their steps stay as they are. The plan is a verified one: members
  // are a row of the table, and hand on what it says.
  void join(HybridProgram& program) const;

 private:
  struct Seen {
    const gpu::KernelSet* kernels = nullptr;
    Args args;
  };
  std::map<std::uint32_t, std::vector<std::size_t>> groups_;
  std::map<std::size_t, Seen> seen_;
};

}  // namespace ktc::exec
