#include "placement/target.h"

#include <fmt/format.h>

#include "models/yaml_reader.h"
#include "placement/read_text.h"

namespace ktc::placement {
namespace {

using yaml::Map;
using yaml::Node;

Status read_count(const Map& map, std::string_view key, std::int64_t least, std::int64_t most, std::uint32_t* target) {
  if (!map.has(key)) return Status();
  KTC_ASSIGN_OR_RETURN(std::int64_t value, map[key].integer(least, most));
  *target = static_cast<std::uint32_t>(value);
  return Status();
}

// A size that must not be zero when it is stated.
Status read_bytes(const Map& map, std::string_view key, std::uint64_t* target) {
  if (!map.has(key)) return Status();
  KTC_ASSIGN_OR_RETURN(*target, map[key].bytes());
  if (*target == 0) return map[key].error({}, "more than 0B");
  return Status();
}

Status read_rate(const Map& map, std::string_view key, double* target) {
  if (!map.has(key)) return Status();
  KTC_ASSIGN_OR_RETURN(*target, map[key].number());
  if (!(*target > 0))
    return map[key].error({}, "a rate above 0 in GB/s (10^9 bytes)", "remove the key if it is unknown");
  return Status();
}

Status read_positive(const Map& map, std::string_view key, std::string_view unit, double* target) {
  if (!map.has(key)) return Status();
  KTC_ASSIGN_OR_RETURN(*target, map[key].number());
  if (!(*target > 0)) return map[key].error({}, fmt::format("more than 0 {}", unit), "remove the key if it is unknown");
  return Status();
}

// `most`: a GPU's experts may be faster than the product that its rate was measured with.
Status read_fraction(const Node& node, double* target, double most = 1) {
  KTC_ASSIGN_OR_RETURN(*target, node.number());
  if (!(*target > 0 && *target <= most)) return node.error({}, fmt::format("a fraction above 0 and at most {}", most));
  return Status();
}

// One number for all formats, or a map of them.
Status read_efficiency(const Map& map, std::string_view key, Efficiency* target, double most = 1) {
  constexpr Format kWeights[] = {Format::f32, Format::bf16, Format::fp8, Format::int8, Format::int4};
  if (!map.has(key)) return Status();
  const Node node = map[key];
  if (node.is_scalar()) {
    double all = 0;
    KTC_RETURN_IF_ERROR(read_fraction(node, &all, most));
    for (const Format format : kWeights) (*target)[format] = all;
    return Status();
  }
  std::vector<std::string> names;
  for (const Format format : kWeights) names.emplace_back(to_string(format));
  KTC_ASSIGN_OR_RETURN(Map formats, node.map(names));
  for (const Format format : kWeights)
    if (formats.has(to_string(format))) KTC_RETURN_IF_ERROR(read_fraction(formats[to_string(format)], &(*target)[format], most));
  return Status();
}

Status read_isa(const Node& node, std::vector<std::string>* isa) {
  KTC_ASSIGN_OR_RETURN(std::vector<Node> items, node.sequence());
  CpuFeatures all;
#define KTC_CPU_FEATURE(name) all.name = true;
#include "runtime/base/cpu_features.def"
  for (const Node& item : items) {
    const auto name = item.string();
    if (!name.ok() || !is_cpu_feature(*name)) return item.error({}, "one of " + list_cpu_features(all));
    for (const std::string& earlier : *isa)
      if (earlier == *name) return item.error("named twice", "each feature once");
    isa->push_back(*name);
  }
  return Status();
}

Expected<CpuTarget> read_cpu(const Node& node) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"sockets", "nodes", "cores", "memory", "read_gb_per_s", "cache_gb_per_s", "isa", "l2", "l3", "vnni_tops", "amx_int8_tops",
                                            "read_efficiency", "matrix_efficiency", "many_rows_efficiency", "linear_efficiency", "attention_tflops", "value_ns", "kernel_us", "product_us", "step_us"}));
  CpuTarget cpu;
  KTC_RETURN_IF_ERROR(map.require("cores").status());
  KTC_RETURN_IF_ERROR(map.require("memory").status());
  KTC_RETURN_IF_ERROR(read_count(map, "sockets", 1, 64, &cpu.sockets));
  cpu.nodes = cpu.sockets;
  KTC_RETURN_IF_ERROR(read_count(map, "nodes", 1, 64, &cpu.nodes));
  KTC_RETURN_IF_ERROR(read_count(map, "cores", 1, 65536, &cpu.cores));
  if (cpu.cores < cpu.sockets)
    return map["cores"].error("physical cores over all sockets",
                              fmt::format("at least one for each of {} sockets", cpu.sockets));
  KTC_RETURN_IF_ERROR(read_bytes(map, "memory", &cpu.memory));
  KTC_RETURN_IF_ERROR(read_rate(map, "read_gb_per_s", &cpu.read_gb_per_s));
  KTC_RETURN_IF_ERROR(read_rate(map, "cache_gb_per_s", &cpu.cache_gb_per_s));
  if (map.has("isa")) KTC_RETURN_IF_ERROR(read_isa(map["isa"], &cpu.isa));
  KTC_RETURN_IF_ERROR(read_bytes(map, "l2", &cpu.l2_bytes));
  KTC_RETURN_IF_ERROR(read_bytes(map, "l3", &cpu.l3_bytes));
  KTC_RETURN_IF_ERROR(read_positive(map, "vnni_tops", "10^12 operations a second", &cpu.vnni_tops));
  KTC_RETURN_IF_ERROR(read_positive(map, "amx_int8_tops", "10^12 operations a second", &cpu.amx_int8_tops));
  KTC_RETURN_IF_ERROR(read_efficiency(map, "read_efficiency", &cpu.read_efficiency));
  KTC_RETURN_IF_ERROR(read_efficiency(map, "matrix_efficiency", &cpu.matrix_efficiency));
  KTC_RETURN_IF_ERROR(read_efficiency(map, "many_rows_efficiency", &cpu.many_rows_efficiency));
  KTC_RETURN_IF_ERROR(read_efficiency(map, "linear_efficiency", &cpu.linear_efficiency));
  KTC_RETURN_IF_ERROR(read_positive(map, "attention_tflops", "10^12 operations a second", &cpu.attention_tflops));
  KTC_RETURN_IF_ERROR(read_positive(map, "value_ns", "nanoseconds", &cpu.value_ns));
  KTC_RETURN_IF_ERROR(read_positive(map, "kernel_us", "microseconds", &cpu.kernel_us));
  KTC_RETURN_IF_ERROR(read_positive(map, "product_us", "microseconds", &cpu.product_us));
  KTC_RETURN_IF_ERROR(read_positive(map, "step_us", "microseconds", &cpu.step_us));
  return cpu;
}

Expected<GpuTarget> read_gpu(const Node& node, const std::vector<GpuTarget>& earlier) {
  KTC_ASSIGN_OR_RETURN(Map map, node.map({"device", "name", "sm", "memory", "context", "read_gb_per_s", "pcie_gb_per_s", "bf16_tflops",
                                            "attention_tflops", "attention_efficiency", "read_efficiency", "matrix_efficiency", "kernel_us", "column_ns",
                                            "prefill_kernel_us", "prefill_column_ns", "step_us", "handoff_us", "handoff_gb_per_s"}));
  GpuTarget gpu;
  KTC_ASSIGN_OR_RETURN(Node device, map.require("device"));
  const auto text = device.string();
  if (!text.ok() || !is_device_name(*text) || *text == "cpu") return device.error({}, "a GPU: cuda:0, cuda:1, ...");
  for (const GpuTarget& other : earlier)
    if (other.device == *text) return device.error("device named twice", "each GPU once");
  gpu.device = *text;
  KTC_RETURN_IF_ERROR(map.require("name", &gpu.name));
  KTC_RETURN_IF_ERROR(map.require("sm").status());
  KTC_RETURN_IF_ERROR(map.require("memory").status());
  KTC_RETURN_IF_ERROR(read_count(map, "sm", 70, 999, &gpu.sm));
  KTC_RETURN_IF_ERROR(read_bytes(map, "memory", &gpu.memory));
  KTC_RETURN_IF_ERROR(read_bytes(map, "context", &gpu.context));
  KTC_RETURN_IF_ERROR(read_rate(map, "read_gb_per_s", &gpu.read_gb_per_s));
  KTC_RETURN_IF_ERROR(read_rate(map, "pcie_gb_per_s", &gpu.pcie_gb_per_s));
  KTC_RETURN_IF_ERROR(read_positive(map, "bf16_tflops", "10^12 operations a second", &gpu.bf16_tflops));
  KTC_RETURN_IF_ERROR(read_positive(map, "attention_tflops", "10^12 operations a second", &gpu.attention_tflops));
  KTC_RETURN_IF_ERROR(read_efficiency(map, "read_efficiency", &gpu.read_efficiency));
  KTC_RETURN_IF_ERROR(read_efficiency(map, "matrix_efficiency", &gpu.matrix_efficiency, 4));
  if (map.has("attention_efficiency")) KTC_RETURN_IF_ERROR(read_fraction(map["attention_efficiency"], &gpu.attention_efficiency));
  KTC_RETURN_IF_ERROR(read_positive(map, "kernel_us", "microseconds", &gpu.kernel_us));
  KTC_RETURN_IF_ERROR(read_positive(map, "column_ns", "nanoseconds", &gpu.column_ns));
  KTC_RETURN_IF_ERROR(read_positive(map, "prefill_kernel_us", "microseconds", &gpu.prefill_kernel_us));
  KTC_RETURN_IF_ERROR(read_positive(map, "prefill_column_ns", "nanoseconds", &gpu.prefill_column_ns));
  KTC_RETURN_IF_ERROR(read_positive(map, "step_us", "microseconds", &gpu.step_us));
  KTC_RETURN_IF_ERROR(read_positive(map, "handoff_us", "microseconds", &gpu.handoff_us));
  KTC_RETURN_IF_ERROR(read_rate(map, "handoff_gb_per_s", &gpu.handoff_gb_per_s));
  return gpu;
}

}  // namespace

bool is_device_name(std::string_view text) {
  if (text == "cpu") return true;
  if (!text.starts_with("cuda:")) return false;
  text.remove_prefix(5);
  if (text.empty() || text.size() > 2 || (text.size() > 1 && text[0] == '0')) return false;
  for (char c : text)
    if (c < '0' || c > '9') return false;
  return true;
}

bool Target::has_device(std::string_view device) const {
  if (device == "cpu") return true;
  for (const GpuTarget& gpu : gpus)
    if (gpu.device == device) return true;
  return false;
}

std::string Target::list_devices() const {
  std::string text = "cpu";
  for (const GpuTarget& gpu : gpus) text += ", " + gpu.device;
  return text;
}

std::uint64_t Target::memory_of(std::string_view device) const {
  if (device == "cpu") return cpu.memory;
  for (const GpuTarget& gpu : gpus)
    if (gpu.device == device) return gpu.memory;
  return 0;
}

Expected<Target> parse_target(std::string_view text, std::string_view name) {
  const std::string file = std::filesystem::path(name).filename().string();
  KTC_ASSIGN_OR_RETURN(Node root, yaml::parse(text, file));
  if (root.kind() == yaml::Kind::null)
    return make_error(StatusCode::invalid_argument, {file, "empty target", "nothing", "version, name and cpu",
                                                     "start from one of the shipped targets (docs/policy.md)"});
  KTC_ASSIGN_OR_RETURN(Map map, root.map({"version", "name", "cpu", "gpus"}));
  KTC_ASSIGN_OR_RETURN(Node version, map.require("version"));
  const auto number = version.integer();
  if (!number.ok() || *number != 1) return version.error({}, "1", "this ktc reads version 1 only");
  Target target;
  KTC_RETURN_IF_ERROR(map.require("name", &target.name));
  KTC_ASSIGN_OR_RETURN(Node cpu, map.require("cpu"));
  KTC_ASSIGN_OR_RETURN(target.cpu, read_cpu(cpu));
  if (map.has("gpus")) {
    KTC_ASSIGN_OR_RETURN(std::vector<Node> items, map["gpus"].sequence());
    for (const Node& item : items) {
      KTC_ASSIGN_OR_RETURN(GpuTarget gpu, read_gpu(item, target.gpus));
      target.gpus.push_back(std::move(gpu));
    }
  }
  return target;
}

Expected<Target> read_target(const std::filesystem::path& path) {
  KTC_ASSIGN_OR_RETURN(std::string text, read_text(path, "target"));
  return parse_target(text, path.filename().string());
}

}  // namespace ktc::placement
