// Placement: where every module lives and in which formats. A pure function of model, policy and target; reads no
// files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/model_desc.h"
#include "placement/policy.h"
#include "placement/strategies.h"
#include "placement/target.h"
#include "runtime/base/status.h"
#include "runtime/formats/expert_share.h"

namespace ktc::placement {

struct ModulePlacement {
  std::string device;             // for RoutedExperts: where the cold ones live
  Format weights = Format::bf16;  // resolved: never `native`. Of the matrices; vectors (norm weights, biases)
                                  // are always packed as f32, which holds every f16, bf16 and f32 exactly.
                                  // Weights with scales: W_UK and W_UV of latent attention keep `unrounded`
  Format unrounded = Format::bf16;  // of matrices that weights with scales do not serve: f32 or bf16
  Format activations = Format::f32;
  std::uint32_t group = 0;  // input features per scale of the weights; 0: one scale per row, or none
  bool pin = false;
  int rule = -1;  // index in Policy::rules
};

// How often a rule applied, for reports: overlaps are legal (first match wins) but should be seen.
struct RuleUse {
  std::uint32_t matched = 0;  // modules that its class and name match
  std::uint32_t decided = 0;  // of those, the ones that no earlier rule matched
};

// The routed experts of one layer that live on one GPU, by `experts:` of the policy. Others may be on further GPUs, the rest on the
// module's device.
struct HotExperts {
  std::uint32_t module = 0;  // index in ModelDesc::modules, class RoutedExperts
  std::string device;
  Format weights = Format::bf16;
  Format activations = Format::bf16;
  std::vector<std::uint32_t> ids;  // ascending
  std::uint32_t group = 0;         // input features per scale of the weights; 0: one scale per row, or none
};

// What a device holds, known before any weight is read. The final account is made by kt-plan-memory.
struct MemoryLine {
  std::string device, category, name;  // category: weights, hot-experts, kv-cache, arena, step-block, records, context
  std::uint64_t bytes = 0;
};

// A step of prefill of so many tokens, predicted (us): its experts of the CPU pass through the GPU, the CPU taking its share; the
// same without a share; the CPU computes them, in steps of at most batch.chunk.
struct StreamPoint {
  std::uint32_t tokens = 0;
  double streamed = 0, unshared = 0, on_cpu = 0;
};
// Which steps stream, and why (streaming.h).
struct StreamChoice {
  std::uint32_t from = 0;  // fewest tokens of a step that streams; 0: none does
  bool stated = false;     // by batch.stream_from; otherwise predicted
  std::map<std::uint32_t, ExpertShare> shares;  // by module, of those whose experts the CPU shares
  std::vector<StreamPoint> points;              // ascending, around `from`; empty: nothing to choose
};

struct Placement {
  std::vector<ModulePlacement> modules;  // parallel to ModelDesc::modules
  std::vector<RuleUse> rules;            // parallel to Policy::rules
  std::vector<HotExperts> hot;           // by layer and GPU; layers without any are left out
  ExpertCounts counts;                   // of all MoE layers, as the strategy saw them; empty: none
  StreamChoice stream;
  std::string kv_device;                 // device of the first attention module
  std::vector<Difference> differences;   // empty unless the policy says best-effort
  std::vector<MemoryLine> memory;        // weights and kv-cache exactly, arena as an upper bound (memory.h)
  std::vector<std::string> notes;        // "rule policy.yaml:9:5 ... matches nothing": one line each
};

// Errors: a module that no rule matches, a rule with a name that matches nothing, an unknown device, a format that the
// device's kernels do not take, a budget that does not fit (with the lines, the excess and the largest knob that fits).
// With `best-effort: true` differences are listed instead, and hot experts are as many as fit where the demanded number does not.
// `counts`: activations of the experts of every MoE layer; empty: those that read_policy found in the file that
// `experts.statistics` names.
Expected<Placement> place(const models::ModelDesc& model, const Policy& policy, const Target& target,
                          const ExpertCounts& counts = {});

}  // namespace ktc::placement
