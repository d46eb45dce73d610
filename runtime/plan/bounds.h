// What FlatBuffers' own verifier leaves open, private to runtime/plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ktc::plan {

// A plan of 100 entries and 100 layers takes some 30 MB; FlatBuffers' offsets end at 2 GiB.
constexpr std::uint64_t kMaxPlanBytes = std::uint64_t{1} << 30;

// True when `body` (8-byte aligned, footer cut off) can be unpacked: every offset, string and vector lies inside, and
// the tables, strings and vectors together need no more bytes than the file has. Without the second condition a small
// file whose offsets all point at one long vector would unpack to gigabytes.
bool structure_is_sound(std::span<const std::byte> body);

}  // namespace ktc::plan
