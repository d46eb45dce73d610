// What kt-halve-batches and what follows it would make of an extend entry, by hand and in the plainest order.
#pragma once

#include "runtime/plan/plan.h"

namespace ktc::test {

// Every step over tokens becomes two behind each other, one for each half, with buffers of their own: the first half keeps those of
// the whole, the second half gets as many behind the arenas' ends. Arenas, their lines of the account, step blocks and features
// follow.
void cut_in_halves(planfb::PlanT& plan, planfb::EntryT& entry);

}  // namespace ktc::test
