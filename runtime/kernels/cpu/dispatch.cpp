// Chooses the kernels of this process from kernels.def and panel_kernels.def.
#include "runtime/kernels/cpu/kernel_table.h"

namespace ktc::kernels {
namespace {

constexpr IsaLevel kLevels[] = {IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::avx512_vnni,
                                IsaLevel::amx};  // ascending

constexpr bool has_rows(IsaLevel wanted) {
#define KTC_KERNEL(slot, level, format, packing, function) \
  if (IsaLevel::level == wanted) return true;
#include "runtime/kernels/cpu/kernels.def"
#define KTC_PANEL_KERNEL(slot, level, format, function) \
  if (IsaLevel::level == wanted) return true;
#include "runtime/kernels/cpu/panel_kernels.def"
  return false;
}

bool usable(IsaLevel level, const CpuFeatures& features) {
  return has_rows(level) && isa_level_available(level, features);
}

void take_rows(IsaLevel wanted, KernelSet& set) {
#define KTC_KERNEL(slot, level, format, packing, function) \
  if (IsaLevel::level == wanted) set.slot = function;
#include "runtime/kernels/cpu/kernels.def"
#define KTC_PANEL_KERNEL(slot, level, format, function) \
  if (IsaLevel::level == wanted) set.slot = function;
#include "runtime/kernels/cpu/panel_kernels.def"
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
  // Constant lists, so that the span outlives the call. From avx512 on every level needs the one below; avx2 stands alone.
  static constexpr IsaLevel kWithoutAvx2[] = {IsaLevel::scalar, IsaLevel::avx512, IsaLevel::avx512_vnni, IsaLevel::amx};
  const bool avx2 = usable(IsaLevel::avx2, features);
  const std::span<const IsaLevel> all = avx2 ? std::span<const IsaLevel>(kLevels) : kWithoutAvx2;
  std::size_t count = avx2 ? 2 : 1;
  while (count < all.size() && usable(all[count], features)) ++count;
  return all.first(count);
}

}  // namespace ktc::kernels
