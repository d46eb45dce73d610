// The memory account of a placement, from shapes alone.
//
// weights      exact: ktc::packed_bytes of every packed weight, row_major for f32 and bf16, for formats with scales panels on a CPU
//              and gpu_rows on a GPU. (Where projections are joined into one matrix, that needs a little less than this.)
//              Embedding and head that share a slot, a device and a format are counted once.
// hot-experts  on their GPU, one line per layer; the CPU's bank holds the others, or all of them when the policy moves experts at
//              run time (`experts.update`), which also reserves spare slots. Gaps that alignment leaves between weights of a
//              file are not counted.
// kv-cache     exact: pages * page bytes, summed over the layers whose attention is on the device; pages = sequences *
//              ceil(tokens / page) as in table Cache of runtime/plan/plan.fbs, and on a GPU one more for padding tokens.
// arena        an upper bound: every buffer of the largest layer side by side, the residual, inputs and the head's buffers, at the
//              largest entry. kt-plan-memory reuses addresses inside a layer and needs less.
// step-block   exact, on a GPU that has modules: what runtime/formats/step_block.h says of the largest entry.
// records      on the CPU, a bound: records and results of every decode entry and layer whose router is on a GPU and whose experts
//              are not all there (runtime/formats/handoff.h).
// context      on a GPU that is used: what its driver takes, as the target says.
#pragma once

#include "placement/place.h"

namespace ktc::placement {

// How the matrices of a module are packed.
struct WeightChoice {
  Format format;
  std::uint32_t group = 0;
  Format unrounded = Format::bf16;  // ModulePlacement::unrounded
  bool gpu = false;                 // matrices with scales: gpu_rows instead of panels
  Format activations = Format::f32;  // on a CPU they decide whether bf16 matrices are panels or rows (device_formats.h)
};

// Bytes of the packed weights of one module on its own. Errors: 64-bit overflow.
Expected<std::uint64_t> weight_bytes(const models::ModelDesc& model, const models::Module& module,
                                     const WeightChoice& weights);

// Bytes of one page over all layers whose attention module is on `device`; 0: none is.
std::uint64_t page_bytes(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules,
                         const KvCachePolicy& kv, std::string_view device);

// Rows of an extend entry that may ask for logits: every token while the logits stay below 64 MiB, and never fewer than
// one for each sequence of the step. More rows than that in one step are asked for in several (perplexity of long
// texts).
std::uint64_t extend_rows(std::uint64_t tokens, std::uint64_t sequences, std::uint64_t vocab);

std::uint64_t arena_bound(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules,
                          const std::vector<HotExperts>& hot, const Policy& policy, std::string_view device);

// All lines, by device in the order of the target: weights in the order of modules, then hot experts, kv-cache, arena, and where
// a GPU is used the three that it needs besides.
Expected<std::vector<MemoryLine>> account(const models::ModelDesc& model, const std::vector<ModulePlacement>& modules,
                                          const std::vector<HotExperts>& hot, const Policy& policy,
                                          const Target& target);

// An error for the first device whose lines exceed its limit: lines by class, the excess, the largest kv_cache.tokens
// and kv_cache.sequences that fit. Devices of unknown memory without a limit are not checked.
Status check_budget(const models::ModelDesc& model, const Placement& placement, const Policy& policy,
                    const Target& target);

}  // namespace ktc::placement
