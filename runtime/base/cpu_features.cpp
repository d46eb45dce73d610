#include "runtime/base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ktc {
namespace {

#if defined(__x86_64__)
std::uint64_t enabled_state() {
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// Linux grants tile data per process on request (arch_prctl ARCH_REQ_XCOMP_PERM, component 18).
bool request_amx() {
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures probe() {
  CpuFeatures f;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return f;
  const bool leaf1_fma = c & bit_FMA, leaf1_f16c = c & bit_F16C;
  const std::uint64_t state = enabled_state();
  const bool ymm = (state & 0x6) == 0x6;
  const bool zmm = ymm && (state & 0xe0) == 0xe0;
  const bool tiles = (state & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = ymm && (b & bit_AVX2);
  f.fma = ymm && leaf1_fma;
  f.f16c = ymm && leaf1_f16c;
  f.avx512f = zmm && (b & bit_AVX512F);
  f.avx512bw = zmm && (b & bit_AVX512BW);
  f.avx512vl = zmm && (b & bit_AVX512VL);
  f.avx512dq = zmm && (b & bit_AVX512DQ);
  f.avx512_vnni = zmm && (c & bit_AVX512VNNI);
  const bool amx_tile = d & (1u << 24), amx_int8 = d & (1u << 25), amx_bf16 = d & (1u << 22);
  if (tiles && amx_tile && request_amx()) {
    f.amx_tile = true;
    f.amx_int8 = amx_int8;
    f.amx_bf16 = amx_bf16;
  }
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512_bf16 = zmm && (a & (1u << 5));
  return f;
}
#else
CpuFeatures probe() { return {}; }
#endif

}  // namespace

const CpuFeatures& host_cpu_features() {
  static const CpuFeatures features = probe();
  return features;
}

std::string list_cpu_features(const CpuFeatures& features) {
  std::string text;
  auto add = [&text](bool has, const char* name) {
    if (!has) return;
    if (!text.empty()) text += ", ";
    text += name;
  };
#define KTC_CPU_FEATURE(name) add(features.name, #name);
#include "runtime/base/cpu_features.def"
  return text;
}

bool is_cpu_feature(std::string_view name) {
#define KTC_CPU_FEATURE(feature) \
  if (name == #feature) return true;
#include "runtime/base/cpu_features.def"
  return false;
}

std::string_view to_string(IsaLevel level) {
  switch (level) {
    case IsaLevel::scalar: return "scalar";
    case IsaLevel::avx2: return "avx2";
    case IsaLevel::avx512: return "avx512";
    case IsaLevel::avx512_vnni: return "avx512_vnni";
    case IsaLevel::amx: return "amx";
    case IsaLevel::best: return "best";
  }
  return "invalid";
}

std::optional<IsaLevel> parse_isa_level(std::string_view name) {
  for (IsaLevel level : {IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::avx512_vnni, IsaLevel::amx,
                         IsaLevel::best})
    if (to_string(level) == name) return level;
  return std::nullopt;
}

bool isa_level_available(IsaLevel level, const CpuFeatures& f) {
  switch (level) {
    case IsaLevel::scalar: return true;
    case IsaLevel::avx2: return f.avx2 && f.fma && f.f16c;
    case IsaLevel::avx512: return f.avx2 && f.fma && f.avx512f && f.avx512bw && f.avx512vl && f.avx512dq;
    case IsaLevel::avx512_vnni: return isa_level_available(IsaLevel::avx512, f) && f.avx512_vnni;
    case IsaLevel::amx:
      return isa_level_available(IsaLevel::avx512_vnni, f) && f.avx512_bf16 && f.amx_tile && f.amx_int8 && f.amx_bf16;
    case IsaLevel::best: return true;
  }
  return false;
}

}  // namespace ktc
