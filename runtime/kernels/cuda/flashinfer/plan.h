// The lists of work that FlashInfer's attention kernels want, made on the device from the step block: what a launch carries depends on
// the numbers of tokens and sequences alone, and no list can be older than the step. FlashInfer's own planner is a host function,
// whose result must be copied before every step.
//
// Rows: (token, head of a group) pairs of a sequence, token by token; an item is 128 rows of one sequence. Where the padding of a step
// has tokens, the dummy sequence behind the live ones is planned as any other. Keys are not split: enough items are a condition.
// Functions of this header run on both sides.
#pragma once

#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

#ifdef __CUDACC__
#define KTC_BOTH_SIDES __host__ __device__ inline
#else
#define KTC_BOTH_SIDES inline
#endif

namespace ktc::gpu {

struct PlanItem {
  std::uint32_t sequence, tile;
};

KTC_BOTH_SIDES std::uint32_t plan_tiles(const Batch& b, std::uint32_t sequence, std::uint32_t group) {
  const auto tokens = static_cast<std::uint32_t>(b.q_first[sequence + 1] - b.q_first[sequence]);
  return (tokens * group + kGpuPlanRows - 1) / kGpuPlanRows;
}
KTC_BOTH_SIDES bool plan_has_padding(const Batch& b) { return static_cast<std::uint32_t>(b.q_first[b.sequences]) < b.tokens; }
KTC_BOTH_SIDES std::uint32_t plan_sequences(const Batch& b) { return b.sequences + (plan_has_padding(b) ? 1 : 0); }

// Item `index`, or false behind the last one. Of a sequence the last tile comes first: it sees the most keys.
KTC_BOTH_SIDES bool plan_item(const Batch& b, std::uint32_t group, std::uint32_t index, PlanItem& item) {
  const std::uint32_t sequences = plan_sequences(b);
  for (std::uint32_t s = 0; s < sequences; ++s) {
    const std::uint32_t tiles = plan_tiles(b, s, group);
    if (index < tiles) {
      item = {s, tiles - 1 - index};
      return true;
    }
    index -= tiles;
  }
  return false;
}
KTC_BOTH_SIDES std::uint32_t plan_item_count(const Batch& b, std::uint32_t group) {
  std::uint32_t items = 0;
  for (std::uint32_t s = 0; s < plan_sequences(b); ++s) items += plan_tiles(b, s, group);
  return items;
}

// Items at most, from what the host knows: each sequence has one tile that is not full.
KTC_BOTH_SIDES std::uint64_t plan_most_items(std::uint64_t tokens, std::uint64_t sequences, std::uint64_t group) {
  return tokens * group / kGpuPlanRows + sequences + 1;
}

// Items dealt to `workers` like cards, to and fro, since they come from heavy to light. The list lies worker by worker.
KTC_BOTH_SIDES std::uint32_t dealt_first(std::uint32_t worker, std::uint32_t items, std::uint32_t workers) {  // of a worker's items
  const std::uint32_t rounds = items / workers, rest = items % workers;
  if (rounds % 2 == 0) return worker * rounds + (worker < rest ? worker : rest);
  const std::uint32_t without = workers - rest;  // in a round that goes backwards the first ones get nothing of the rest
  return worker * rounds + (worker > without ? worker - without : 0);
}
KTC_BOTH_SIDES std::uint32_t dealt_place(std::uint32_t item, std::uint32_t items, std::uint32_t workers) {  // in the list
  const std::uint32_t round = item / workers, card = item % workers;
  return dealt_first(round % 2 == 0 ? card : workers - 1 - card, items, workers) + round;
}

// Prompts, where most tokens have neighbours of their own sequence, and lists that fit the scratch memory.
inline bool plan_serves(const Batch& b, std::uint64_t group, std::uint64_t scratch_bytes) {
  return b.tokens >= kGpuPlanTokens * (std::uint64_t{b.sequences} + 1) && std::uint64_t{b.tokens} * group < (std::uint64_t{1} << 31) &&
         gpu_attend_plan(plan_most_items(b.tokens, b.sequences, group), b.sequences).bytes <= scratch_bytes;
}

}  // namespace ktc::gpu
