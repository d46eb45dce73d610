#include "runtime/exec/halves.h"

#include <algorithm>

#include "runtime/formats/halves.h"

namespace ktc::exec {
namespace {

// Ids [from, to) of the sequence.
void add(StepHalf& half, const StepSequence& s, std::size_t from, std::size_t to) {
  if (from == to) return;
  StepSequence& part = half.sequences.emplace_back(s);
  part.ids = s.ids.subspan(from, to - from);
  part.position = s.position + static_cast<std::uint32_t>(from);
  part.logits_from = static_cast<std::uint32_t>(part.ids.size());
  half.tokens += static_cast<std::uint32_t>(to - from);
  half.rows += static_cast<std::uint32_t>(to - std::clamp<std::size_t>(s.logits_from, from, to));
}

}  // namespace

std::array<StepHalf, 2> cut_step(std::span<const StepSequence> sequences, std::uint64_t max_tokens) {
  std::uint64_t tokens = 0;
  for (const StepSequence& s : sequences) tokens += s.ids.size();
  std::uint64_t left = first_half_tokens(tokens, max_tokens);
  std::array<StepHalf, 2> halves;
  for (const StepSequence& s : sequences) {
    const std::size_t taken = static_cast<std::size_t>(std::min<std::uint64_t>(left, s.ids.size()));
    add(halves[0], s, 0, taken);
    add(halves[1], s, taken, s.ids.size());
    left -= taken;
  }
  return halves;
}

}  // namespace ktc::exec
