// Predicted time of every step of a plan, from shapes, placement and the rates of the target. Pure functions.
//
// The formulas are those of roofline models, with three terms that decide small steps: kernels' fixed times, hand-offs, and how
// many different experts a batch touches. Symbols: B rows of a step, k experts a token takes, p_e the probability that a token
// takes expert e (k * count_e / sum of the layer's counts, at most 1; k / E without counts).
//
//   experts touched    U = sum over the cold of 1 - (1 - p_e)^B: rows are independent, so real batches touch fewer
//   product on a CPU   max(r, c) + 0.5 min(r, c): r = bytes / (read rate * read_efficiency), c = operations / rate of the kernel
//                      that the rows per matrix select (tiles.h). The 0.5 is what overlap leaves, fitted to expert layers that
//                      were measured at 1 to 256 tokens per expert: within 17 % (cost_model_test.cpp)
//                      experts of prompts add a value for each row and column, for what is done once for all of them;
//                      c has the time of the values that are written: scaled, activated, quantised, added. In decode also
//                      min(product_us, that time): at the end of a product some workers have nothing left to read
//   product on a GPU   max(r, c) + kernels * (kernel_us + columns * column_ns); of prompts with times of their own, a router's products
//                      for each column at least prefill_column_ns, and 8 bytes moved for each value
//   attention          its products, and the KV cache read once for each row: context * bytes of a token; operations at a rate of
//                      their own
//   caches             of a CPU whose last cache holds all weights they are read at its rate; none of a plan half as large again
//   step               step_us, and the logits: over PCIe, and looked at by one thread
//   hand-off           (handoff_us and the bytes of record and result) times the probability that any pair is cold
//   MoE layer          before + max(GPU: shared + hot, hand-off + CPU: in time + what of late_{l-1} is not done yet)
//   deferral           of X cold pairs of a token, X binomial, min(D, X) are late (scope cpu), or D of all k. Late work of layer l
//                      runs on the CPU while the GPU is in layer l + 1. A chain of layers therefore tends to
//                      max(CPU time, GPU time), never less
//   streamed prefill   max(all cold experts over PCIe, GPU); the GPU also unpacks them
//
// One GPU works at a time (a chain of layers), but for hot experts elsewhere, which run beside it. Not modelled: a CPU whose
// bandwidth others take; experts that are chosen again while a cache has them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "placement/place.h"
#include "placement/rates.h"

namespace ktc::placement {

enum class Bound : std::uint8_t { cpu_read, cpu_compute, gpu_read, gpu_compute, pcie, handoff, kernels };
constexpr std::size_t kBounds = 7;
std::string_view to_string(Bound bound);  // "CPU bandwidth", "hand-off"

// What each part of a step takes by itself, in us; parts overlap, so they add up to more than the step.
struct StepParts {
  double cpu_experts = 0, cpu_other = 0, gpu_attention = 0, gpu_dense = 0, gpu_hot = 0, head = 0, handoff = 0, pcie = 0;
  double kernels = 0;  // fixed times, on every device
};

struct StepCost {
  std::string entry;            // "decode[4]", "extend[2048]", "stream[8192]": extend with streamed experts
  std::uint32_t rows = 0;       // tokens of the step
  double us = 0;
  double tokens_per_second = 0;
  StepParts parts;
  std::array<double, kBounds> critical{};  // us by what they are spent on, along the longest path: they add up to `us`
  Bound bound = Bound::kernels;            // the largest of these
  double cold_experts = 0;      // different cold experts touched in a MoE layer, mean; 0: no MoE layer
  double hit_rate = 0;          // share of routed pairs that hot experts serve
};

struct Prediction {
  std::vector<StepCost> steps;     // decode buckets, extend, and with batch.stream_chunk the streamed extend
  std::uint32_t context = 0;       // tokens of every sequence that decode steps are predicted for
  std::vector<std::string> notes;  // rates that were assumed
};

// A MoE layer in a streamed step of prefill whose experts of the CPU pass through the GPU of its router, in us.
struct StreamedLayer {
  std::uint32_t module = 0;  // RoutedExperts
  double chain = 0;          // of that GPU, from the end of the layer before to the router's choice
  double beside = 0;         // of that GPU, with the choice: shared and hot experts
  double values = 0;         // x and the choice of every row to the CPU, and a result back
  double cold = 0;           // experts that pass through; how many pairs of the step are theirs
  double pairs = 0;
};
// One of many experts of such a layer, chosen by so many rows; without the fixed times of kernels.
struct ExpertTime {
  double cpu = 0, gpu = 0, copy = 0;
};

struct CostOptions {
  std::uint32_t context = 0;  // 0: half of kv_cache.tokens
};

// Threading: immutable; keeps no reference to what it was made from.
class CostModel {
 public:
  // `modules` as resolved by place(); `counts` of all MoE layers, or empty. Errors: weights whose size overflows.
  static Expected<CostModel> create(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                    const Policy& policy, const Target& target, const ExpertCounts& counts,
                                    const CostOptions& options = {});

  // Several entries of one layer, on different GPUs, are allowed. Errors: as create().
  Expected<Prediction> predict(const std::vector<HotExperts>& hot) const;

  // Mean over the decode buckets of microseconds per token: what `auto` minimises.
  Expected<double> us_per_token(const std::vector<HotExperts>& hot) const;

  // The same for one MoE layer alone (`module`; `hot`: its experts on GPUs, one entry for each of these), as if its neighbours were
  // equal: without deferral us_per_token is a constant plus the sum of these. `expert_bytes`: of one hot expert.
  double layer_us_per_token(std::uint32_t module, const std::vector<HotExperts>& hot, double expert_bytes) const;

  // A step of prefill of `rows` tokens; `streamed`: all experts of the CPU pass through the GPU.
  Expected<StepCost> prefill(const std::vector<HotExperts>& hot, std::uint32_t rows, bool streamed) const;
  // Layers without a GPU for the experts of the CPU are left out.
  Expected<std::vector<StreamedLayer>> streamed_layers(const std::vector<HotExperts>& hot, std::uint32_t rows) const;
  ExpertTime expert_time(const StreamedLayer& layer, double rows) const;

  // Bytes of one hot expert of a layer.
  Expected<double> hot_expert_bytes(const HotExperts& hot) const;

 private:
  struct Impl;
  explicit CostModel(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ktc::placement
