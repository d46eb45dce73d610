// An order of an entry's steps, and what the cost model predicts of it: devices run beside each other, each its steps in their order.
// kt-schedule orders by it, kt-halve-batches compares with it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "compiler/passes/analysis/StepTime.h"
#include "dialects/kt/Kt.h"

namespace ktc::compiler {

struct Order {
  std::vector<std::size_t> steps;  // numbers of the entry's steps
  double us = 0;                   // predicted, at the entry's bounds
};

// All steps have places; the entry lives as long as this.
class EntrySchedule {
 public:
  EntrySchedule(kt::EntryOp entry, const StepTimes& times);
  ~EntrySchedule();

  bool onOneDevice() const;
  Order given() const;
  // By critical path; given() where that is predicted to be no slower and permitted, so that a body once ordered keeps its order.
  Order best() const;
  // Returns how many steps have another predecessor than before.
  unsigned apply(const Order& order);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ktc::compiler
