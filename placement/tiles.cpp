#include "placement/tiles.h"

#include <algorithm>

namespace ktc::placement {

std::uint32_t tile_rows(const CpuTarget& cpu, Format weights, std::uint32_t group) {
  const auto has = [&](const char* feature) {
    return std::find(cpu.isa.begin(), cpu.isa.end(), feature) != cpu.isa.end();
  };
  if (!has("amx_tile") || !has(weights == Format::fp8 ? "amx_bf16" : "amx_int8")) return 0;
  if (weights == Format::int8 || weights == Format::fp8) return kFewestTileRows;
  if (weights != Format::int4) return 0;
  return group == 0 ? 11 : 13;
}

}  // namespace ktc::placement
