#include "placement/product_time.h"

#include <algorithm>
#include <cmath>

#include "placement/device_formats.h"
#include "placement/tiles.h"

namespace ktc::placement {
namespace {

constexpr double kNoOverlap = 0.5;     // of the shorter of reading and computing on a CPU that is not hidden
constexpr double kVectorReach = 0.9;   // of vnni_tops that the kernels for few rows reach
constexpr double kRowScales = 1.58;    // how much faster tile kernels are with one scale of activations per row than with one per 64
// Rows that a tile kernel's start and rounding up to whole tiles are worth, for each matrix; from so many rows on activations are read
// from behind the second cache, and up to so many they are not.
constexpr double kTileRest = 8, kFewEnough = 64, kMany = 512;

bool in_tiles(const DeviceRates& rate, const CpuTarget& cpu, const Product& p) {
  const std::uint32_t tiles = tile_rows(cpu, p.weights, p.group);
  return tiles > 0 && rate.tile > 0 && p.rows >= tiles && has_panels(p.weights, p.activations);
}

double cpu_speed(const DeviceRates& rate, const CpuTarget& cpu, const Product& p, bool tiled) {
  if (!has_panels(p.weights, p.activations))
    return rate.vector / 4 * rate.matrices.at(Format::f32);  // four times as many int8 as f32 products per instruction
  const double vector = rate.vector * kVectorReach;
  const bool integer = p.weights != Format::fp8 && p.weights != Format::bf16;
  if (!tiled) return integer ? vector : vector / 4;
  const double many = std::clamp(std::log(p.rows / kFewEnough) / std::log(kMany / kFewEnough), 0.0, 1.0);
  const auto linear = p.linear ? rate.linear.find(p.weights) : rate.linear.end();
  const double reach = linear != rate.linear.end() ? linear->second
                                                   : (1 - many) * rate.matrices.at(p.weights) + many * rate.many_rows.at(p.weights);
  return rate.tile * reach * (integer ? (p.row_scales ? kRowScales : 1) : 0.5) * p.rows / (p.rows + kTileRest);
}

}  // namespace

ProductTime product_time(const DeviceRates& rate, const CpuTarget& cpu, const Product& p) {
  ProductTime time;
  time.read = p.bytes / (rate.read * rate.reads.at(p.weights));
  if (rate.device != "cpu") {
    const double share = p.experts ? rate.matrices.at(p.weights) : 1;
    time.compute = p.operations / (p.activations == Format::f32 ? rate.tile / 16 : rate.tile * share);
    time.us = std::max(time.read, time.compute);
    return time;
  }
  if (p.cached > 0) time.read = (1 - p.cached) * time.read + p.cached * std::min(time.read, p.bytes / rate.cache);
  const bool tiled = in_tiles(rate, cpu, p);
  // tiles write many values at once, and their efficiency was measured with that
  time.compute = p.operations / cpu_speed(rate, cpu, p, tiled) + (tiled ? 0 : p.values * rate.value_us);
  time.us = std::max(time.read, time.compute) + kNoOverlap * std::min(time.read, time.compute);
  return time;
}

}  // namespace ktc::placement
