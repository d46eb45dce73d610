// Memory for experts that change sides between the CPU and a GPU while a plan runs (Plan.moving): spare areas of a GPU in which an
// expert lands as the CPU packs it, until it is repacked between two steps. They are copied from where the CPU reads them, which is
// pinned; where a system refuses to pin that much, they pass through a few pinned areas. Sizes only; the executor has the order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/formats/gpu_workspace.h"

namespace ktc {

struct SpareExpert {
  std::uint64_t gate_up = 0;  // bytes of one matrix as the CPU packs it; it lies at 0
  std::uint64_t down = 0;     // the same; it lies behind gate_up
  std::uint64_t down_at() const { return align256(gate_up); }
  std::uint64_t bytes() const { return align256(gate_up) + align256(down); }
};

// Spare areas of a GPU, each for an expert of so many bytes. What landed is taken over between steps, so this is also how many move
// in one step: as many as fit into 128 MiB, which a GPU takes over in some tenths of a millisecond. Two at least: one lands while
// the other is repacked.
constexpr std::uint64_t kMostSpareBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t spare_experts(std::uint64_t bytes) {
  return bytes == 0 ? 0 : std::clamp<std::uint64_t>(kMostSpareBytes / bytes, 2, 32);
}
// At least what they take together, for whom the size of an expert is not exact but no less than it is.
constexpr std::uint64_t spare_bound(std::uint64_t bytes) {
  return bytes > kMostSpareBytes / 2 ? (bytes > UINT64_MAX / 2 ? UINT64_MAX : 2 * bytes) : std::min(32 * bytes, kMostSpareBytes);
}

// Pinned areas of the host for each GPU, which only copies from memory that is not pinned need.
constexpr std::uint64_t kStagedExperts = 2;

}  // namespace ktc
