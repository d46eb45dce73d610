// Declares every function of kernels.def with the type of the KernelSet slot that it fills.
#pragma once

#include <type_traits>

#include "runtime/kernels/cpu/kernels.h"

namespace ktc::kernels {

#define KTC_KERNEL(slot, level, format, packing, function) std::remove_pointer_t<decltype(KernelSet::slot)> function;
#include "runtime/kernels/cpu/kernels.def"

}  // namespace ktc::kernels
