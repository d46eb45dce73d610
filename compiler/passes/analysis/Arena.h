// Addresses for live ranges: an offset in an arena for each, so that those that meet share no byte.
#pragma once

#include <cstdint>
#include <vector>

namespace ktc::compiler {

// Bytes that belong to one owner from step `first` to step `last`, both included.
struct LiveRange {
  uint32_t arena = 0;  // ranges of different arenas never meet
  uint64_t first = 0, last = 0;
  uint64_t bytes = 0;
  uint64_t alignment = 64;  // of the offset: 64, or 256 on a GPU
  bool pinned = false;  // wants the lowest offset: placed before all others
  uint64_t offset = 0;  // out, a multiple of the alignment

  bool meets(const LiveRange& other) const {
    return arena == other.arena && first <= other.last && other.first <= last;
  }
};

// Sets the offsets: pinned ranges first, then the largest first (ties: in the order given), each at the lowest offset
// where it fits between the ranges placed before it. Returns the size of each arena, `arenas` of them, multiples of the alignment.
std::vector<uint64_t> assignOffsets(std::vector<LiveRange>& ranges, uint32_t arenas);

}  // namespace ktc::compiler
