// Declares every function of kernels.def and panel_kernels.def with the type of the KernelSet slot that it fills.
#pragma once

#include <type_traits>
#include <utility>

#include "runtime/kernels/cpu/kernels.h"

namespace ktc::kernels {

#define KTC_KERNEL(slot, level, format, packing, function) std::remove_pointer_t<decltype(KernelSet::slot)> function;
#include "runtime/kernels/cpu/kernels.def"
#define KTC_PANEL_KERNEL(slot, level, format, function) \
  std::remove_pointer_t<decltype(std::declval<KernelSet&>().slot)> function;
#include "runtime/kernels/cpu/panel_kernels.def"

}  // namespace ktc::kernels
