// Weights: shapes, sizes, places in their files, aliases.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "runtime/plan/verify.h"

namespace ktc::plan::detail {

using namespace planfb;

namespace {

Status check_shape(const PlanT& plan, const WeightT& weight, const std::string& place) {
  const auto format = static_cast<Format>(weight.format);
  if (!format_serves(format, FormatKind::weight))
    return wrong(place, "format",
                 is_valid(format) ? std::string(to_string(format)) : number(std::uint64_t{weight.format}),
                 "one of " + list_formats(FormatKind::weight));
  const auto packing = static_cast<Packing>(weight.packing);
  if (!is_valid(packing))
    return wrong(place, "packing", number(std::uint64_t{weight.packing}), "a packing that this ktc has");
  if (weight.batch == 0 || weight.rows == 0 || weight.columns == 0)
    return wrong(place, "shape", fmt::format("[{}, {}, {}]", weight.batch, weight.rows, weight.columns),
                 "no dimension of 0");
  if (!takes_packing(format, packing))
    return wrong(place, "packing", std::string(to_string(packing)), fmt::format("one that {} has", to_string(format)));
  if (packing != Packing::row_major && (packing == Packing::gpu_rows) != is_gpu(plan, weight.device))
    return wrong(place, "packing", std::string(to_string(packing)),
                 fmt::format("one that {} reads", shown(plan.devices[weight.device]->name)));
  if (!has_group(format, weight.group))
    return wrong(place, "group", number(std::uint64_t{weight.group}), fmt::format("one that {} has", to_string(format)));
  const auto bytes = packed_bytes(format, packing, weight.batch, weight.rows, weight.columns, weight.group);
  if (!bytes)
    return wrong(place, "shape", fmt::format("[{}, {}, {}]", weight.batch, weight.rows, weight.columns),
                 "fewer than 2^64 bytes");
  if (weight.bytes != *bytes)
    return wrong(place, "bytes", number(weight.bytes),
                 fmt::format("{} for {} [{}, {}, {}] in {}", *bytes, to_string(format), weight.batch, weight.rows,
                             weight.columns, to_string(packing)));
  return {};
}

Status check_in_file(const PlanT& plan, const WeightT& weight, const std::string& place) {
  KTC_RETURN_IF_ERROR(check_index(place, "file", weight.file, plan.weight_files.size(), "weight_files"));
  if (weight.offset % 64 != 0) return wrong(place, "offset", number(weight.offset), "a multiple of 64");
  const WeightFileT& file = *plan.weight_files[weight.file];
  const auto end = sum(weight.offset, weight.bytes);
  if (!end || *end > file.bytes)
    return wrong(
        place, "range in " + shown(file.path),
        end ? fmt::format("[{}, {})", weight.offset, *end) : fmt::format("[{}, more than 2^64)", weight.offset),
        fmt::format("inside its {} bytes", file.bytes));
  return {};
}

Status check_random(const WeightT& weight, const std::string& place) {
  if (!(weight.zipf >= 0 && weight.zipf <= 8)) return wrong(place, "zipf", real(weight.zipf), "an exponent from 0 to 8");
  if (!(weight.deviation >= 0 && weight.deviation <= 1e6)) return wrong(place, "deviation", real(weight.deviation), "from 0 to a million");
  if (weight.topics > weight.rows)
    return wrong(place, "topics", number(std::uint64_t{weight.topics}), fmt::format("at most its {} rows", weight.rows));
  const bool values = static_cast<Packing>(weight.packing) == Packing::row_major;
  if ((weight.zipf != 0 || weight.deviation != 0 || weight.topics != 0) && (!values || weight.batch != 1))
    return wrong(place, "zipf, deviation or topics", "one of them not 0", "0 for anything but rows of f32 or bf16");
  return {};
}

Status check_alias(const PlanT& plan, const WeightT& weight, const std::string& place) {
  KTC_RETURN_IF_ERROR(check_index(place, "alias_of", weight.alias_of, plan.weights.size(), "weights"));
  const WeightT& target = *plan.weights[weight.alias_of];
  const std::string of = item("weights", weight.alias_of, target.name);
  if (target.source == WeightSource::alias)
    return wrong(place, "alias_of", of + ", an alias itself", "a weight with bytes of its own");
  if (target.format != weight.format || target.packing != weight.packing || target.group != weight.group || target.batch != weight.batch ||
      target.rows != weight.rows || target.columns != weight.columns || target.device != weight.device)
    return wrong(place, "alias_of", of + " of another shape, format, group, packing or device", "an equal one");
  return {};
}

Status check_overlaps(const PlanT& plan) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < plan.weights.size(); ++i)
    if (plan.weights[i]->source == WeightSource::file) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const WeightT &x = *plan.weights[a], &y = *plan.weights[b];
    if (x.file != y.file) return x.file < y.file;
    return x.offset != y.offset ? x.offset < y.offset : a < b;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const WeightT &before = *plan.weights[order[i - 1]], &after = *plan.weights[order[i]];
    if (before.file == after.file && before.offset + before.bytes > after.offset)
      return wrong(item("weights", order[i], after.name), "offset", number(after.offset),
                   fmt::format("{} or more, behind {}", before.offset + before.bytes,
                               item("weights", order[i - 1], before.name)));
  }
  return {};
}

}  // namespace

Status verify_weight_table(const PlanT& plan) {
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightT& weight = *plan.weights[i];
    const std::string place = item("weights", i, weight.name);
    if (weight.name.empty()) return wrong(place, "name", "nothing", "a name");
    if (!names.insert(weight.name).second) return wrong(place, "name", "it twice", "every name once");
    KTC_RETURN_IF_ERROR(check_index(place, "device", weight.device, plan.devices.size(), "devices"));
    KTC_RETURN_IF_ERROR(check_shape(plan, weight, place));
    switch (weight.source) {
      case WeightSource::file: KTC_RETURN_IF_ERROR(check_in_file(plan, weight, place)); break;
      case WeightSource::splat:
        if (!std::isfinite(weight.splat_value))
          return wrong(place, "splat_value", real(weight.splat_value), "a finite number");
        break;
      case WeightSource::alias: KTC_RETURN_IF_ERROR(check_alias(plan, weight, place)); break;
      case WeightSource::random: KTC_RETURN_IF_ERROR(check_random(weight, place)); break;
      default:
        return wrong(place, "source", number(static_cast<std::uint64_t>(weight.source)), "file, splat, alias or random");
    }
  }
  return check_overlaps(plan);
}

}  // namespace ktc::plan::detail
