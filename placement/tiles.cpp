#include "placement/tiles.h"

#include <algorithm>

namespace ktc::placement {

std::uint32_t tile_rows(const CpuTarget& cpu, Format weights, std::uint32_t group) {
  const auto has = [&](const char* feature) {
    return std::find(cpu.isa.begin(), cpu.isa.end(), feature) != cpu.isa.end();
  };
  const bool floats = weights == Format::bf16 || weights == Format::fp8;
  return has("amx_tile") && has(floats ? "amx_bf16" : "amx_int8") ? ktc::tile_rows(weights, group) : 0;
}

}  // namespace ktc::placement
