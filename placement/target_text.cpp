#include "placement/target_text.h"

#include <fmt/format.h>

#include <sstream>

namespace ktc::placement {
namespace {

// In double quotes, with what YAML would read otherwise escaped.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string size(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes % 1024 == 0 && bytes > 0) bytes /= 1024, ++unit;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

void rate(std::string* text, const char* indent, const char* key, double value) {
  if (value > 0) *text += fmt::format("{}{}: {:.4g}\n", indent, key, value);
}

void efficiency(std::string* text, const char* indent, const char* key, const Efficiency& values) {
  if (values.empty()) return;
  std::string map;
  for (const auto& [format, value] : values) map += fmt::format("{}{}: {:.4g}", map.empty() ? "" : ", ", to_string(format), value);
  *text += fmt::format("{}{}: {{{}}}\n", indent, key, map);
}

}  // namespace

std::string target_text(const Target& target, const std::string& comment) {
  std::string text;
  std::istringstream lines(comment);
  for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  const CpuTarget& cpu = target.cpu;
  text += fmt::format("version: 1\nname: {}\ncpu:\n  sockets: {}\n  nodes: {}\n  cores: {}\n", quoted(target.name), cpu.sockets,
                      cpu.nodes, cpu.cores);
  if (cpu.memory > 0) text += "  memory: " + size(cpu.memory) + "\n";
  rate(&text, "  ", "read_gb_per_s", cpu.read_gb_per_s);
  rate(&text, "  ", "cache_gb_per_s", cpu.cache_gb_per_s);
  if (!cpu.isa.empty()) text += fmt::format("  isa: [{}]\n", fmt::join(cpu.isa, ", "));
  if (cpu.l2_bytes > 0) text += "  l2: " + size(cpu.l2_bytes) + "\n";
  if (cpu.l3_bytes > 0) text += "  l3: " + size(cpu.l3_bytes) + "\n";
  rate(&text, "  ", "vnni_tops", cpu.vnni_tops);
  rate(&text, "  ", "amx_int8_tops", cpu.amx_int8_tops);
  efficiency(&text, "  ", "read_efficiency", cpu.read_efficiency);
  efficiency(&text, "  ", "matrix_efficiency", cpu.matrix_efficiency);
  efficiency(&text, "  ", "many_rows_efficiency", cpu.many_rows_efficiency);
  efficiency(&text, "  ", "linear_efficiency", cpu.linear_efficiency);
  rate(&text, "  ", "attention_tflops", cpu.attention_tflops);
  rate(&text, "  ", "value_ns", cpu.value_ns);
  rate(&text, "  ", "kernel_us", cpu.kernel_us);
  rate(&text, "  ", "product_us", cpu.product_us);
  rate(&text, "  ", "step_us", cpu.step_us);
  if (!target.gpus.empty()) text += "gpus:\n";
  for (const GpuTarget& gpu : target.gpus) {
    text += fmt::format("  - device: {}\n    name: {}\n    sm: {}\n    memory: {}\n    context: {}\n", gpu.device, quoted(gpu.name),
                        gpu.sm, size(gpu.memory), size(gpu.context));
    rate(&text, "    ", "read_gb_per_s", gpu.read_gb_per_s);
    rate(&text, "    ", "pcie_gb_per_s", gpu.pcie_gb_per_s);
    rate(&text, "    ", "bf16_tflops", gpu.bf16_tflops);
    rate(&text, "    ", "attention_tflops", gpu.attention_tflops);
    efficiency(&text, "    ", "read_efficiency", gpu.read_efficiency);
    efficiency(&text, "    ", "matrix_efficiency", gpu.matrix_efficiency);
    rate(&text, "    ", "attention_efficiency", gpu.attention_efficiency);
    rate(&text, "    ", "kernel_us", gpu.kernel_us);
    rate(&text, "    ", "column_ns", gpu.column_ns);
    rate(&text, "    ", "prefill_kernel_us", gpu.prefill_kernel_us);
    rate(&text, "    ", "prefill_column_ns", gpu.prefill_column_ns);
    rate(&text, "    ", "step_us", gpu.step_us);
    rate(&text, "    ", "handoff_us", gpu.handoff_us);
    rate(&text, "    ", "handoff_gb_per_s", gpu.handoff_gb_per_s);
  }
  return text;
}

}  // namespace ktc::placement
