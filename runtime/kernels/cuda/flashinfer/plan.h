// The lists of work that FlashInfer's attention kernels want, made on the device from the step block: what a launch carries depends on
// the numbers of tokens and sequences alone, and no list can be older than the step. FlashInfer's own planner is a host function,
// whose result must be copied before every step.
//
// Rows: (token, head of a group) pairs of a sequence, token by token; an item is 128 rows of one sequence. Where the padding of a step
// has tokens, the dummy sequence behind the live ones is planned as any other. GQA takes items as they are. MLA, whose blocks stay on
// their SMs, goes through them in pairs of blocks, the workers: many items are dealt to them, of few ones the keys are cut as well.
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

// Cutting: the visible keys of all items, in units, lie on one line, and every worker has `span` units of it. Item i lies at
// [begin, end), end > begin; the first item begins at 0.
constexpr std::uint32_t kPlanKeys = 64;       // of a unit
constexpr std::uint32_t kPlanLeastSpan = 4;
constexpr std::uint32_t kPlanCutItems = 512;  // at most

KTC_BOTH_SIDES std::uint32_t plan_span(std::uint32_t units, std::uint32_t workers) {
  const std::uint32_t span = (units + workers - 1) / workers;
  return span < kPlanLeastSpan ? kPlanLeastSpan : span;
}
// Keys that any row of an item sees. Tokens of the padding see what there is of the dummy sequence.
KTC_BOTH_SIDES std::uint32_t plan_visible(std::uint32_t kv_length, std::uint32_t tokens, std::uint32_t tile, std::uint32_t group) {
  if (kv_length < tokens) return kv_length;
  const std::uint32_t seen = kv_length - tokens + ((tile + 1) * static_cast<std::uint32_t>(kGpuPlanRows) + group - 1) / group;
  return seen < kv_length ? seen : kv_length;
}
// Of a worker's list the entries are pairs (item, worker) on a path from (0, 0) to (items - 1, workers - 1) that moves on by one item
// or one worker, the item first where both end. So entry (item, worker) is number item + worker, and there are items + workers - 1.
// An entry may have no keys: where both ended, and for workers behind the end of the line.
KTC_BOTH_SIDES std::uint32_t path_first(std::uint32_t begin, std::uint32_t span) { return begin == 0 ? 0 : (begin - 1) / span; }
KTC_BOTH_SIDES std::uint32_t path_last(std::uint32_t end, std::uint32_t span, std::uint32_t workers, bool last_item) {
  return last_item ? workers - 1 : (end - 1) / span;
}
// Whether (item, worker) is where the worker's list begins.
KTC_BOTH_SIDES bool path_enters(std::uint32_t worker, std::uint32_t begin, std::uint32_t span) {
  return begin == 0 || worker > path_first(begin, span);
}
struct PlanPart {
  std::uint32_t begin, end;     // keys, of the item
  std::uint32_t number, parts;  // which part of the item it is, of how many; no part where begin == end
};
KTC_BOTH_SIDES PlanPart plan_part(std::uint32_t begin, std::uint32_t end, std::uint32_t worker, std::uint32_t span, std::uint32_t visible) {
  const std::uint32_t from = begin > worker * span ? begin : worker * span;
  const std::uint32_t to = end < (worker + 1) * span ? end : (worker + 1) * span;
  if (from >= to) return {0, 0, 0, 0};
  const std::uint32_t last_key = (to - begin) * kPlanKeys;
  return {(from - begin) * kPlanKeys, last_key < visible ? last_key : visible, worker - begin / span, (end - 1) / span - begin / span + 1};
}
// Rows [first, end) of an item's `rows` that the merger of part `number` adds up.
KTC_BOTH_SIDES void merged_rows(std::uint32_t rows, std::uint32_t number, std::uint32_t parts, std::uint32_t& first, std::uint32_t& end) {
  const std::uint32_t each = (rows + parts - 1) / parts;
  first = number * each < rows ? number * each : rows;
  end = first + each < rows ? first + each : rows;
}

// GQA: prompts, where most tokens have neighbours of their own sequence, and lists that fit the scratch memory.
inline bool gqa_plan_serves(const Batch& b, std::uint64_t group, std::uint64_t scratch_bytes) {
  return b.tokens >= kGpuPlanTokens * (std::uint64_t{b.sequences} + 1) && std::uint64_t{b.tokens} * group < (std::uint64_t{1} << 31) &&
         gpu_gqa_plan(gpu_plan_items(b.tokens, b.sequences, group), b.sequences).bytes <= scratch_bytes;
}
// MLA: rows enough, in tiles that are mostly full: prompts, or so many heads that a token fills a tile.
inline bool mla_plan_serves(const Batch& b, std::uint64_t heads, std::uint64_t scratch_bytes) {
  return std::uint64_t{b.tokens} * heads >= kGpuMlaFewest && std::uint64_t{b.tokens} * heads < (std::uint64_t{1} << 31) &&
         (heads == kGpuPlanRows || b.tokens * heads >= kGpuPlanRows * (std::uint64_t{b.sequences} + 1)) && b.sequences <= b.tokens &&
         gpu_mla_plan(gpu_plan_items(b.tokens, b.sequences, heads)).bytes <= scratch_bytes;
}

}  // namespace ktc::gpu
