// A step as it was asked for, against what a plan can run: what every executor checks before it computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/exec/executor.h"

namespace ktc::exec {

// An entry of kind decode or extend.
struct EntryBounds {
  std::uint32_t entry = 0;  // index in Plan.entries
  bool decode = false;
  std::uint32_t max_tokens = 0, max_rows = 0, max_sequences = 0;
  std::uint32_t from_tokens = 0;  // Entry.from_tokens
};

// Those of a plan that can be run, ascending by tokens.
std::vector<EntryBounds> entry_bounds(const planfb::PlanT& plan);

// Of the largest decode or extend entry; zeros when there is none.
StepLimits largest(std::span<const EntryBounds> entries, bool decode);

// Ids, lengths and pages of each sequence. Errors name the sequence.
Status check_sequences(const planfb::PlanT& plan, std::span<const StepSequence> sequences);

// Index in `entries` of the one that runs the step (Executor::run says which that is).
Expected<std::size_t> choose_entry(std::span<const EntryBounds> entries, std::span<const StepSequence> sequences);

// How many of `waiting` tokens the next extend step should take, at least 1: all that the largest entry has room for, or, where a
// large entry is only for more of them (from_tokens), what fits into the others.
std::uint32_t best_tokens(std::span<const EntryBounds> entries, std::uint32_t waiting);

// Whether the token at `position` is deferred, wherever the plan has late experts.
inline bool is_deferred(const planfb::PlanT& plan, const StepSequence& sequence, std::uint32_t position) {
  return position >= sequence.generated_from ? plan.defer_decode : plan.defer_prefill;
}

}  // namespace ktc::exec
