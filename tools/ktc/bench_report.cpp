#include "tools/ktc/bench_report.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace ktc::bench {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12;

bool nearer_is_read(const CaseResult& c) { return c.of_read.median >= c.of_compute.median; }

std::string granule(std::uint32_t g) { return g == 0 ? "row" : std::to_string(g); }

nlohmann::ordered_json spread(const Spread& s, double unit = 1) {
  return {{"low", s.low / unit}, {"median", s.median / unit}, {"high", s.high / unit}};
}

std::string shares(const CaseResult& c) {
  const double all = c.gather + c.gate_up + c.h + c.down + c.waiting;
  if (!c.tiled || all == 0) return "";
  return fmt::format("{:.0f}/{:.0f}/{:.0f}/{:.0f}/{:.0f}", 100 * c.gather, 100 * c.gate_up, 100 * c.h, 100 * c.down, 100 * c.waiting);
}

// Times of the other formats over those of int8, by tokens and variant.
std::string ratios(const ExpertsOptions& o, const ExpertsResult& r) {
  std::string text;
  for (const CaseResult& base : r.cases) {
    if (to_string(base.format) != "int8/row") continue;
    std::string line;
    for (const CaseResult& c : r.cases)
      if (&c != &base && c.routing.per_expert == base.routing.per_expert && c.variant == base.variant && c.format.format != Format::int8)
        line += fmt::format("  {} {:.2f}", to_string(c.format), c.seconds.median / base.seconds.median);
    if (!line.empty()) text += fmt::format("time over int8, {:>5} tokens per expert{}:{}\n", base.routing.per_expert,
                                           o.variants.size() > 1 && base.tiled ? ", " + base.variant : "", line);
  }
  return text;
}

std::string fraction(const Spread& s) { return fmt::format("{:.3f} ({:.3f}-{:.3f})", s.median, s.low, s.high); }

}  // namespace

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0)
      if (const std::size_t colon = line.find(": "); colon != line.npos) return line.substr(colon + 2);
  return "unknown";
}

std::string to_table(const ExpertsOptions& o, const ExpertsResult& r) {
  std::string text = fmt::format("{} experts, {} x {}, top {}; {}, kernels {}, {} threads, {} rounds; x per {}, h per {}\n",
                                 o.experts, o.hidden, o.intermediate, o.top_k, cpu_name(), ktc::to_string(r.level), r.threads, r.rounds,
                                 granule(o.x_granule), granule(o.h_granule));
  text += "weights";
  for (std::size_t f = 0; f < r.pool_bytes.size(); ++f)
    text += fmt::format("{} {} {:.2f} GiB", f == 0 ? "" : ",", to_string(o.formats[f]), static_cast<double>(r.pool_bytes[f]) / (1u << 30));
  text += fmt::format("; read {:.1f} GB/s ({:.1f}-{:.1f})", r.read.median / kGiga, r.read.low / kGiga, r.read.high / kGiga);
  const char* kernel = r.peak_tiled ? "bare tile loop" : "few-row kernel";
  const auto peak = [&](const char* name, const Spread& s) {
    if (s.median > 0)
      text += fmt::format("; {} in L2, {}: {:.2f} TOPS ({:.2f}-{:.2f})", kernel, name, s.median / kTera, s.low / kTera, s.high / kTera);
  };
  peak("int8", r.integer_peak);
  peak("bf16", r.float_peak);
  if (r.peak_tiled) text += fmt::format("; tiles {}", kernels::to_string(r.shapes));
  text += fmt::format("\n{:<9} {:>6} {:>7} {:>7} {:>6} {:>11} {:>8} {:>8}  {:<21} {:<21} {:<7}  {:<19} {}\n", "format", "tok/ex", "tokens", "active",
                      "kernel", "us/layer", "GB/s", "TOPS", "of read bandwidth", "of compute", "nearer", "x/up/h/down/wait %", "tiles");
  for (const CaseResult& c : r.cases)
    text += fmt::format("{:<9} {:>6} {:>7} {:>7} {:>6} {:>11.1f} {:>8.1f} {:>8.3f}  {:<21} {:<21} {:<7}  {:<19} {}\n", to_string(c.format),
                        c.routing.per_expert, c.routing.tokens, c.routing.active, c.tiled ? "many" : "few", c.seconds.median * 1e6,
                        c.bytes_per_second.median / kGiga, c.operations_per_second.median / kTera, fraction(c.of_read),
                        fraction(c.of_compute), nearer_is_read(c) ? "read" : "compute",
                        shares(c), c.tiled ? c.variant : "");
  text += ratios(o, r);
  return text;
}

std::string to_json(const ExpertsOptions& o, const ExpertsResult& r) {
  nlohmann::ordered_json json = {
      {"benchmark", "experts"},
      {"machine", {{"cpu", cpu_name()}, {"features", list_cpu_features(host_cpu_features())}, {"threads", r.threads}}},
      {"isa", std::string(ktc::to_string(r.level))},
      {"shape", {{"experts", o.experts}, {"hidden", o.hidden}, {"intermediate", o.intermediate}, {"top_k", o.top_k}}},
      {"granules", {{"x", o.x_granule}, {"h", o.h_granule}}},
      {"rounds", r.rounds},
      {"ceilings", {{"read_bytes_per_second", spread(r.read)}, {"peak_kernel", r.peak_tiled ? "bare tile loop" : "few"}, {"tile_shape", std::string(kernels::to_string(r.shapes.integers))}, {"tile_shape_floats", std::string(kernels::to_string(r.shapes.floats))}}}};
  if (r.integer_peak.median > 0) json["ceilings"]["int8_operations_per_second"] = spread(r.integer_peak);
  if (r.float_peak.median > 0) json["ceilings"]["bf16_operations_per_second"] = spread(r.float_peak);
  for (std::size_t f = 0; f < r.pool_bytes.size(); ++f)
    json["weights"].push_back({{"format", to_string(o.formats[f])}, {"bytes", r.pool_bytes[f]}});
  for (const CaseResult& c : r.cases)
    json["cases"].push_back({{"format", to_string(c.format)},
                             {"tokens_per_expert", c.routing.per_expert},
                             {"tokens", c.routing.tokens},
                             {"active_experts", c.routing.active},
                             {"kernel", c.tiled ? "many" : "few"},
                             {"variant", c.variant},
                             {"shares", {{"x", c.gather}, {"gate_up", c.gate_up}, {"h", c.h}, {"down", c.down}, {"waiting", c.waiting}}},
                             {"active_bytes", c.bytes},
                             {"operations", c.operations},
                             {"microseconds", spread(c.seconds, 1e-6)},
                             {"bytes_per_second", spread(c.bytes_per_second)},
                             {"operations_per_second", spread(c.operations_per_second)},
                             {"read_bytes_per_second", spread(c.read)},
                             {"fraction_of_read", spread(c.of_read)},
                             {"fraction_of_compute", spread(c.of_compute)},
                             {"nearer", nearer_is_read(c) ? "read" : "compute"},
                             {"fraction_of_nearer", spread(nearer_is_read(c) ? c.of_read : c.of_compute)},
                             {"checked", c.format.integer() ? "equal to the scalar kernels to the bit" : "within 1e-3 of the scalar kernels"}});
  return json.dump(1) + "\n";
}

}  // namespace ktc::bench
