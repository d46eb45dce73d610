// Steps of a GPU that follow each other in a decode entry and have one kernel together: a launch less is two microseconds less, and
// what one step leaves for the next need not go through memory. Every buffer of the plan is written as by the steps themselves, so
// nothing but the rounding of a norm depends on it.
#pragma once

#include <map>
#include <variant>

#include "runtime/exec/hybrid_program.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::exec {

class StepJoiner {
 public:
  using Args = std::variant<gpu::AwaitArgs, gpu::AddNormArgs, gpu::RouteArgs, gpu::PublishArgs>;

  // Of the step with this index in HybridProgram::steps: its only launch, on all tokens. Counts are filled in later.
  void saw(std::size_t step, const gpu::KernelSet& kernels, const Args& args) { seen_[step] = {&kernels, args}; }

  // await and the add_norm behind it; route and the publish behind it, with the add_norm in front of it. The last step of a group
  // gets the launch, the others keep none. Only within a graph, where nothing can come between them.
  void join(HybridProgram& program) const;

 private:
  struct Seen {
    const gpu::KernelSet* kernels = nullptr;
    Args args;
  };
  template <typename T>
  const T* at(std::size_t step) const {
    const auto found = seen_.find(step);
    return found == seen_.end() ? nullptr : std::get_if<T>(&found->second.args);
  }
  std::map<std::size_t, Seen> seen_;
};

}  // namespace ktc::exec
