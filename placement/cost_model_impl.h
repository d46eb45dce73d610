// What a CostModel keeps, and the sums that its answers are made of. For the cost model's own files alone: cost_products.cpp
// has the time of one module or bank of experts, cost_steps.cpp that of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "placement/cost_model.h"
#include "placement/cost_terms.h"

namespace ktc::placement {

struct CostModel::Impl {
  Rates rates;
  CpuTarget cpu;
  DeferPolicy defer;
  bool row_scales = false;  // of int8 activations
  std::uint32_t context = 0;
  double hidden = 0, vocabulary = 0, cache_bytes = 2;  // of one element of the KV cache
  double cached = 0;        // share of what the CPU reads that its last cache holds
  std::vector<ModulePlacement> modules;
  std::vector<MoeLayer> moe;
  std::vector<Step> steps;
  models::ModelDesc shapes;  // modules, slots and layers alone: no tensors

  // One product. `rows`: per matrix; `values`: that it writes, of all rows.
  Time work(const DeviceRates& rate, Format weights, Format activations, std::uint32_t group, double bytes,
            double operations, double rows, Fixed fixed, double values = 0, bool experts = false, bool linear = false) const;
  static Time with_fixed(Time time, Fixed fixed);
  // What workers wait at the ends of `products` one behind the other that take `us` without: in steps of decode, on a CPU.
  Time ends(const DeviceRates& rate, const Step& step, double products, double us) const;
  // Few rows are in a graph. Of many, a router's products walk through all columns on few processors before any has a
  // result.
  Fixed kernel_time(const DeviceRates& rate, const Step& step, bool router = false) const;
  // Keys and values read, and multiplied. `items`: that workers of a CPU share.
  Time attend(const DeviceRates& rate, double bytes, double operations, double scores, double items) const;
  // What a step takes besides its kernels: of the host, and the logits that it looks at.
  Time step_time(double rows) const;
  // From one device to another and on: rows of the residual.
  Time transfer(const DeviceRates& gpu, double rows) const;
  // Values that the products and choices of `rows` write. On a CPU one row's experts are chosen by one worker.
  double values_of(const models::Module& module, double rows, bool on_cpu) const;
  // Of any module but routed experts; `parts` counts it too.
  Expected<Time> module_time(const Step& step, std::uint32_t index, StepParts* parts) const;
  // Of the experts of one layer that one device has.
  Time expert_time(const Step& step, const MoeLayer& layer, const DeviceRates& rate, Format weights, Format activations,
                   std::uint32_t group, double expert_bytes, const Load& load) const;

  Expected<Step> make_step(std::string entry, std::uint32_t rows, bool decode, bool streamed) const;
  void count_experts(Step& step) const;
  Load load_of(const Step& step, std::size_t index, const std::vector<std::uint32_t>& ids) const;
  // The experts that are none of `hot`, whose ids may be those of several devices.
  Load load_without(const Step& step, std::size_t index, const std::vector<const HotExperts*>& hot) const;
  // One MoE layer after `line->now`. `late`: it may deliver experts with the next one.
  void add_moe(const Step& step, const MoeLayer& layer, const Load& cold, const std::vector<HotLoad>& hot, bool late,
               Timeline* line) const;
  std::size_t moe_index(std::uint32_t module) const;  // in `moe`; its size: none
  Expected<double> expert_bytes(const HotExperts& hot) const;
  Expected<StepCost> cost(const Step& step, const std::vector<HotExperts>& hot) const;
};

}  // namespace ktc::placement
