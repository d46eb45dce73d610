// The step block of a GPU (runtime/formats/step_block.h) as the host fills it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/exec/step_request.h"
#include "runtime/formats/step_block.h"

namespace ktc::exec {

// Writes the block of an entry. A decode entry gets its padding; the others compute what is live and no more. No sequences: a
// step of padding alone. Returns the bytes that must be copied. to: at least layout.bytes.
std::uint64_t fill_step_block(const planfb::PlanT& plan, const EntryBounds& bounds, const StepBlockLayout& layout,
                              std::span<const StepSequence> sequences, std::uint32_t epoch, std::byte* to);

}  // namespace ktc::exec
