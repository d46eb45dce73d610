// What this CPU can execute: CPUID and the operating system's permission, probed once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ktc {

struct CpuFeatures {
#define KTC_CPU_FEATURE(name) bool name = false;
#include "runtime/base/cpu_features.def"
};

// Of this machine. AMX counts only when the kernel granted this process the tile state. Thread-safe.
const CpuFeatures& host_cpu_features();

std::string list_cpu_features(const CpuFeatures& features);  // "avx2, fma, avx512f"
bool is_cpu_feature(std::string_view name);                  // a name of cpu_features.def

// Kernel families, each with all features it needs (isa_level_available). Ordered: a higher level is faster, and from avx512 on
// each includes the features of the one below.
enum class IsaLevel : std::uint8_t { scalar, avx2, avx512, avx512_vnni, amx, best = 255 };
std::string_view to_string(IsaLevel level);
std::optional<IsaLevel> parse_isa_level(std::string_view name);  // "scalar", "avx512_vnni", "best", …
bool isa_level_available(IsaLevel level, const CpuFeatures& features);

}  // namespace ktc
