// Memory for experts that change sides between the CPU and a GPU while a plan runs (Plan.moving): spare areas of a GPU in which an
// expert lands as the CPU packs it, until it is repacked between two steps, and as much pinned memory of the host, from where it
// is copied. Sizes only; the executor has the order.
#pragma once

#include <cstdint>

#include "runtime/formats/gpu_workspace.h"

namespace ktc {

constexpr std::uint64_t kSpareExperts = 2;  // per GPU: one lands while the other is repacked

struct SpareExpert {
  std::uint64_t gate_up = 0;  // bytes of one matrix as the CPU packs it; it lies at 0
  std::uint64_t down = 0;     // the same; it lies behind gate_up
  std::uint64_t down_at() const { return align256(gate_up); }
  std::uint64_t bytes() const { return align256(gate_up) + align256(down); }
};

}  // namespace ktc
