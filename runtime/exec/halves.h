// Parts of a step: all of its tokens, and the halves of an entry that is cut (runtime/formats/halves.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/exec/program.h"

namespace ktc::exec {

enum class Part : std::uint8_t { whole = 0, first = 1, second = 2 };
constexpr Part part_of(planfb::Symbol symbol) {
  return symbol == planfb::Symbol::first_half ? Part::first : symbol == planfb::Symbol::second_half ? Part::second : Part::whole;
}

// A step's sequences as two steps behind one another. Ids and pages are those of the step, which outlives this.
struct StepHalf {
  std::vector<StepSequence> sequences;  // one that the cut goes through is in both halves; none of them has rows
  std::uint32_t tokens = 0;
  std::uint32_t rows = 0;               // rows with logits among its tokens
};
// Of an entry with `max_tokens`, in which the step has room.
std::array<StepHalf, 2> cut_step(std::span<const StepSequence> sequences, std::uint64_t max_tokens);

// Inputs of one half in the CPU's arena.
struct HalfInputs {
  std::vector<Ids> ids, positions, deferred;
};

}  // namespace ktc::exec
