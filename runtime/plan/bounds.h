// What FlatBuffers' own verifier leaves open, private to runtime/plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/status.h"

namespace ktc::plan {

// A plan of 100 entries and 100 layers takes some 30 MB. Unpacked, the smallest tables grow some eightfold, so this
// bounds what a hostile file can make a reader allocate.
constexpr std::uint64_t kMaxPlanBytes = std::uint64_t{256} << 20;

constexpr std::size_t kFooterBytes = 16;
constexpr std::size_t kSmallestPlan = 8 + kFooterBytes;  // root offset, identifier, footer

// Length and identifier. A version comes before everything else: a newer plan may have another footer and another
// digest.
Status check_head(std::span<const std::byte> bytes, std::string_view name);

// True when `body` (8-byte aligned, footer cut off) can be unpacked: every offset, string and vector lies inside, and
// the tables, strings and vectors together need no more bytes than the file has. Without the second condition a small
// file whose offsets all point at one long vector would unpack to gigabytes.
bool structure_is_sound(std::span<const std::byte> body);

}  // namespace ktc::plan
