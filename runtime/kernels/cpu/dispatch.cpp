// Chooses the kernels of this process from kernels.def.
#include <array>

#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {
namespace {

constexpr std::array kLevels = {IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512};  // ascending

constexpr bool has_rows(IsaLevel wanted) {
#define KTC_KERNEL(slot, level, format, packing, function) \
  if (IsaLevel::level == wanted) return true;
#include "runtime/kernels/cpu/kernels.def"
  return false;
}

bool usable(IsaLevel level, const CpuFeatures& features) {
  return has_rows(level) && isa_level_available(level, features);
}

void take_rows(IsaLevel wanted, KernelSet& set) {
#define KTC_KERNEL(slot, level, format, packing, function) \
  if (IsaLevel::level == wanted) set.slot = function;
#include "runtime/kernels/cpu/kernels.def"
  set.level = wanted;
}

}  // namespace

KernelSet select_kernels(const CpuFeatures& features, IsaLevel level) {
  KernelSet set{};
  for (IsaLevel candidate : kLevels)
    if (candidate <= level && usable(candidate, features)) take_rows(candidate, set);
  return set;
}

std::span<const IsaLevel> available_levels(const CpuFeatures& features) {
  // One constant list per combination of the levels above scalar, so that the span outlives the call.
  static constexpr IsaLevel kScalar[] = {IsaLevel::scalar};
  static constexpr IsaLevel kAvx2[] = {IsaLevel::scalar, IsaLevel::avx2};
  static constexpr IsaLevel kAvx512[] = {IsaLevel::scalar, IsaLevel::avx512};
  const bool avx2 = usable(IsaLevel::avx2, features), avx512 = usable(IsaLevel::avx512, features);
  if (avx2 && avx512) return kLevels;
  if (avx2) return kAvx2;
  if (avx512) return kAvx512;
  return kScalar;
}

}  // namespace ktc::kernels
