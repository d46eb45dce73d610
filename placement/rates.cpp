#include "placement/rates.h"

#include <algorithm>

namespace ktc::placement {
namespace {

struct Assume {
  std::string device;
  std::string keys;
  double operator()(double stated, double otherwise, const char* key) {
    if (stated > 0) return stated;
    keys += keys.empty() ? key : std::string(", ") + key;
    return otherwise;
  }
  Efficiency operator()(Efficiency stated, const Efficiency& otherwise, const char* key) {
    bool missing = false;
    for (const auto& [format, value] : otherwise) missing = stated.emplace(format, value).second || missing;
    if (missing) keys += keys.empty() ? key : std::string(", ") + key;
    return stated;
  }
  void note(std::vector<std::string>* notes) const {
    if (!keys.empty())
      notes->push_back("the target states no " + keys + " of " + device + ": predictions assume some; ktc probe measures them");
  }
};

DeviceRates cpu_rates(const CpuTarget& cpu, std::vector<std::string>* notes) {
  const auto has = [&](const char* name) { return std::find(cpu.isa.begin(), cpu.isa.end(), name) != cpu.isa.end(); };
  const double cores = cpu.cores;
  Assume assume{"cpu", {}};
  DeviceRates rates;
  rates.device = "cpu";
  rates.read = 1e3 * assume(cpu.read_gb_per_s, std::min(10.0 * cores, 80.0 * cpu.sockets), "read_gb_per_s");
  rates.cache = 1e3 * assume(cpu.cache_gb_per_s, 3e-3 * rates.read, "cache_gb_per_s");
  rates.vector = 1e6 * assume(cpu.vnni_tops, cores * (has("avx512_vnni") ? 0.37 : has("avx2") ? 0.09 : 0.01), "vnni_tops");
  if (has("amx_tile") && has("amx_int8")) rates.tile = 1e6 * assume(cpu.amx_int8_tops, 2.0 * cores, "amx_int8_tops");
  rates.reads = assume(cpu.read_efficiency,
                       {{Format::f32, 0.85}, {Format::bf16, 0.85}, {Format::fp8, 0.8}, {Format::int8, 0.87}, {Format::int4, 0.77}},
                       "read_efficiency");
  Efficiency matrices{{Format::f32, 0.7}};
  if (rates.tile > 0) matrices.insert({{Format::bf16, 0.45}, {Format::fp8, 0.2}, {Format::int8, 0.26}, {Format::int4, 0.19}});
  rates.matrices = assume(cpu.matrix_efficiency, matrices, "matrix_efficiency");
  if (rates.tile > 0) {
    Efficiency many;
    for (const auto& [format, share] : rates.matrices)
      if (format != Format::f32) many[format] = 0.9 * share;
    rates.many_rows = assume(cpu.many_rows_efficiency, many, "many_rows_efficiency");
  }
  rates.attention = 1e6 * assume(cpu.attention_tflops, 1e-6 * rates.vector / 16, "attention_tflops");
  rates.value_us = 1e-3 / cores * assume(cpu.value_ns, 0.5, "value_ns");
  rates.kernel_us = assume(cpu.kernel_us, 1.0, "kernel_us");
  rates.product_us = cpu.product_us;
  rates.linear = cpu.linear_efficiency;
  rates.step_us = assume(cpu.step_us, 20.0, "step_us");
  assume.note(notes);
  return rates;
}

DeviceRates gpu_rates(const GpuTarget& gpu, std::vector<std::string>* notes) {
  Assume assume{gpu.device, {}};
  DeviceRates rates;
  rates.device = gpu.device;
  rates.read = 1e3 * assume(gpu.read_gb_per_s, 500, "read_gb_per_s");
  rates.tile = 1e6 * assume(gpu.bf16_tflops, rates.read * 1e-3 * 0.137, "bf16_tflops");
  rates.attention = 1e6 * assume(gpu.attention_tflops, 1e-6 * rates.tile / 3, "attention_tflops");
  rates.pcie = 1e3 * assume(gpu.pcie_gb_per_s, 20, "pcie_gb_per_s");
  rates.reads = assume(gpu.read_efficiency,
                       {{Format::f32, 0.6}, {Format::bf16, 0.6}, {Format::fp8, 0.6}, {Format::int8, 0.6}, {Format::int4, 0.6}},
                       "read_efficiency");
  rates.matrices = assume(gpu.matrix_efficiency,
                          {{Format::f32, 0.02}, {Format::bf16, 0.33}, {Format::fp8, 0.3}, {Format::int8, 0.3}, {Format::int4, 0.3}},
                          "matrix_efficiency");
  rates.kernel_us = assume(gpu.kernel_us, 2.0, "kernel_us");
  rates.attention_read = assume(gpu.attention_efficiency, 0.5, "attention_efficiency");
  rates.column_us = 1e-3 * assume(gpu.column_ns, 0.4, "column_ns");
  rates.prefill_kernel_us = assume(gpu.prefill_kernel_us, 8.0, "prefill_kernel_us");
  rates.prefill_column_us = 1e-3 * assume(gpu.prefill_column_ns, 60.0, "prefill_column_ns");
  rates.step_us = assume(gpu.step_us, 60.0, "step_us");
  rates.handoff_us = assume(gpu.handoff_us, 5.0, "handoff_us");
  rates.handoff = 1e3 * assume(gpu.handoff_gb_per_s, 4, "handoff_gb_per_s");
  assume.note(notes);
  return rates;
}

}  // namespace

const DeviceRates& Rates::of(std::string_view device) const {
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const DeviceRates& d) { return d.device == device; });
  return found == devices.end() ? devices.front() : *found;
}

Rates rates_of(const Target& target) {
  Rates rates;
  rates.devices.push_back(cpu_rates(target.cpu, &rates.notes));
  for (const GpuTarget& gpu : target.gpus) rates.devices.push_back(gpu_rates(gpu, &rates.notes));
  return rates;
}

}  // namespace ktc::placement
