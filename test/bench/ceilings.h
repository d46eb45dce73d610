// What one thread of this machine can do at most, measured in this process: kernels are judged against it.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/cpu_features.h"

namespace ktc::bench {

// Bytes per second of reading `memory` once, front to back. Shared machines drift: measure next to what is compared.
double read_bandwidth(std::span<const std::byte> memory);

// Floating-point operations per second of independent multiply-adds in registers (two each), at the level's vector
// width. The level must be available.
double multiply_add_rate(IsaLevel level);

}  // namespace ktc::bench
