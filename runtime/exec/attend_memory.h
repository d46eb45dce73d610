// What attention needs beside the plan's workspace: memory of the workers, and which tokens of a step share their keys.
#pragma once

#include <vector>

#include "runtime/exec/entry_program.h"
#include "runtime/exec/halves.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/host_memory.h"

namespace ktc::exec {

class AttendMemory {
 public:
  // For the attention steps of `entries`. Errors: not enough memory.
  Status allocate(const planfb::PlanT& plan, const std::vector<const std::vector<Step>*>& entries, int threads);

  // Cuts the tokens of a step, or of a part of it, into runs and hands the memory to `state`, whose tokens and workers are set. Runs of
  // other parts stay.
  void fill(StepState& state, Part part = Part::whole);

 private:
  weights::HostBlock memory_;  // scratch of each worker, then parts
  std::size_t scratch_each_ = 0, scratch_floats_ = 0, parts_floats_ = 0;
  std::vector<TokenRun> runs_[3];  // by part
};

}  // namespace ktc::exec
