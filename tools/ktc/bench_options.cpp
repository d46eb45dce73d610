#include "tools/ktc/bench_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "runtime/exec/parallel.h"
#include "runtime/kernels/cpu/kernels.h"

namespace ktc::bench {
namespace {

constexpr std::uint32_t kMostFeatures = 1u << 16;  // int32 sums of int8 products hold for twice as many
constexpr std::uint32_t kMostTokens = 1u << 14;

Status refuse(std::string flag, std::string found, std::string expected) {
  return make_error(StatusCode::invalid_argument,
                    {.place = std::move(flag), .found = std::move(found), .expected = std::move(expected)});
}

Status in_range(std::string flag, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return refuse(std::move(flag), std::to_string(value), fmt::format("{} to {}", low, high));
}

Status granule_of(std::string flag, std::uint32_t granule) {
  if (granule == 0 || granule == 64 || granule == 128) return {};
  return refuse(std::move(flag), std::to_string(granule), "64, 128, or 0 for the whole row");
}

Status find_level(ExpertsOptions& options) {
  const auto levels = kernels::available_levels(host_cpu_features());
  std::string names;
  for (const IsaLevel level : levels) names += std::string(ktc::to_string(level)) + ", ";
  names += "best";
  const auto level = parse_isa_level(options.isa);
  if (!level || (*level != IsaLevel::best && std::find(levels.begin(), levels.end(), *level) == levels.end()))
    return refuse("--isa", "'" + options.isa + "'", "one of " + names);
  options.level = *level;
  return {};
}

}  // namespace

std::string to_string(const WeightFormat& format) {
  const std::string name(ktc::to_string(format.format));
  if (format.format == Format::bf16) return name;
  return name + "/" + (format.group == 0 ? std::string("row") : std::to_string(format.group));
}

Expected<WeightFormat> parse_weight_format(const std::string& text) {
  const auto wrong = [&] {
    return refuse("--format", "'" + text + "'", "int8, int4/row, int4/32, int4/64, int4/128, fp8/row, fp8/128 or bf16");
  };
  const std::size_t slash = text.find('/');
  const auto format = parse_format(text.substr(0, slash));
  if (!format || !takes_packing(*format, Packing::panel)) return wrong();
  WeightFormat result{*format, 0};
  if (slash == text.npos) {
    if (*format == Format::int4 || *format == Format::fp8) return wrong();  // which group is too much to guess
    return result;
  }
  const std::string group = text.substr(slash + 1);
  if (*format == Format::bf16) return wrong();
  if (group != "row") {
    const auto [end, error] = std::from_chars(group.data(), group.data() + group.size(), result.group);
    if (error != std::errc() || end != group.data() + group.size() || result.group == 0) return wrong();
  }
  if (!has_group(*format, result.group)) return wrong();
  return result;
}

Expected<TileVariant> parse_tile_variant(const std::string& text) {
  TileVariant variant;
  variant.name = text;
  const auto wrong = [&](const std::string& word) {
    return refuse("--variant", "'" + word + "' in '" + text + "'",
                  "default, 2x1, 1x2, 1x1, 2x2, probe, nofetch, or one of inner, outer, rows, up, down, sums with =N");
  };
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word == "default" || word == "probe") continue;
    if (word == "nofetch") {
      variant.tuning.fetch_values = false;
      continue;
    }
    bool found = false;
    for (const kernels::TileShape shape : kernels::kTileShapes)
      if (word == kernels::to_string(shape)) {
        variant.shape = shape;
        found = true;
      }
    if (found) continue;
    const std::size_t equals = word.find('=');
    if (equals == word.npos) return wrong(word);
    std::size_t value = 0;
    const auto [rest, error] = std::from_chars(word.data() + equals + 1, word.data() + word.size(), value);
    if (error != std::errc() || rest != word.data() + word.size() || value > 65536) return wrong(word);
    exec::TileTuning& t = variant.tuning;
    const std::string key = word.substr(0, equals);
    if (key == "inner")
      t.inner = value;
    else if (key == "outer")
      t.outer_bytes = value << 10;
    else if (key == "rows")
      t.rows = value;
    else if (key == "up")
      t.up_panels = std::max<std::size_t>(1, value);
    else if (key == "down")
      t.down_panels = std::max<std::size_t>(1, value);
    else if (key == "sums")
      t.sum_bytes = value << 10;
    else
      return wrong(word);
  }
  return variant;
}

Status check(ExpertsOptions& o) {
  KTC_RETURN_IF_ERROR(in_range("--experts", o.experts, 1, 1u << 14));
  KTC_RETURN_IF_ERROR(in_range("--hidden", o.hidden, 1, kMostFeatures));
  KTC_RETURN_IF_ERROR(in_range("--intermediate", o.intermediate, 1, kMostFeatures));
  KTC_RETURN_IF_ERROR(in_range("--top-k", o.top_k, 1, o.experts));
  if (o.tokens.empty()) return refuse("--tokens", "nothing", "tokens per expert, as in 1,4,16");
  for (const std::uint32_t m : o.tokens) KTC_RETURN_IF_ERROR(in_range("--tokens", m, 1, kMostTokens));
  if (o.threads != 0) KTC_RETURN_IF_ERROR(in_range("--threads", static_cast<std::uint64_t>(std::max(0, o.threads)), 1, exec::kMostThreads));
  KTC_RETURN_IF_ERROR(in_range("--rounds", o.rounds, 1, 1000));
  if (!(o.gib >= 0 && o.gib <= 4096)) return refuse("--gib", fmt::format("{}", o.gib), "0 to 4096");
  KTC_RETURN_IF_ERROR(granule_of("--x-granule", o.x_granule));
  KTC_RETURN_IF_ERROR(granule_of("--h-granule", o.h_granule));
  if (o.tile_rows < -1 || o.tile_rows > 65535) return refuse("--tile-rows", std::to_string(o.tile_rows), "0 to 65535");
  if (o.format_names.empty()) return refuse("--format", "nothing", "a format of weights, as in int8");
  o.variants.clear();
  for (const std::string& name : o.variant_names) {
    KTC_ASSIGN_OR_RETURN(const TileVariant variant, parse_tile_variant(name));
    o.variants.push_back(variant);
  }
  if (o.variants.empty()) o.variants.emplace_back();
  o.formats.clear();
  for (const std::string& name : o.format_names) {
    KTC_ASSIGN_OR_RETURN(const WeightFormat format, parse_weight_format(name));
    o.formats.push_back(format);
  }
  return find_level(o);
}

}  // namespace ktc::bench
