// Steps of a GPU as the table of joint launches sees them (runtime/formats/launch_groups.h): for the pass that marks
// them, the memory plan that keeps them alive together, and the check of both.
#pragma once

#include <string>
#include <vector>

#include "dialects/kt/Kt.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/DenseMap.h"
#include "runtime/formats/launch_groups.h"

namespace ktc::compiler {

Joinable joinableOf(kt::StepOpInterface step);
std::string namesOf(llvm::ArrayRef<Joinable> steps);  // "await, add_norm"

// The steps of an entry that one GPU takes part in, in their order: its own and copies from and to it.
using StepsOfGpu = std::vector<kt::StepOpInterface>;
std::vector<StepsOfGpu> stepsOfGpus(kt::EntryOp entry);

// The row that steps, taken as if they followed each other, match: kinds, one graph, what each takes from the one in
// front of it. Null: none.
const LaunchSequence* sequenceOf(llvm::ArrayRef<kt::StepOpInterface> steps);

// During which steps of the entry, counted from 1, an op of it is at work on its own device: its own number, and in a
// launch group those from the first to the last member.
struct Span {
  uint64_t first = 0, last = 0;
};
llvm::DenseMap<mlir::Operation*, Span> launchSpans(kt::EntryOp entry);

}  // namespace ktc::compiler
