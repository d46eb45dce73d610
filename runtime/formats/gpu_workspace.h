// Scratch memory of one GPU step, as a pure function of its shape: the compiler reserves it in the device's arena, the executor
// hands it to the kernels (runtime/kernels/cuda/gpu_kernels.h). All sizes are bytes and multiples of 256; areas lie one behind
// the other in the order of the fields. Callers bound the products beforehand, as for workspace.h: nothing here checks overflow.
//
// rope_table, embed, rms_norm, add, add_norm, select_rows, publish, await and unpack need none.
#pragma once

#include <cstdint>

#include "runtime/formats/formats.h"

namespace ktc {

constexpr std::uint64_t align256(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Tables of one rope: cos f32 [tokens, dim / 2], then sin. Not scratch: they live for a step and are shared by its layers.
struct GpuRopeTable {
  std::uint64_t cos;
  std::uint64_t sin;
  constexpr std::uint64_t total() const { return cos + sin; }
};
constexpr GpuRopeTable gpu_rope_table(std::uint64_t tokens, std::uint64_t dim) {
  return {align256(tokens * (dim / 2) * 4), align256(tokens * (dim / 2) * 4)};
}

// Sums and thresholds of each row.
constexpr std::uint64_t kGpuSampleRowBytes = 2816;
constexpr std::uint64_t gpu_sample_workspace(std::uint64_t rows) { return rows * kGpuSampleRowBytes; }

// ------------------------------------------------------------------------------------------------------------ attention
//
// The keys of a token are cut into up to `splits` parts, so that one token fills a GPU: about 264 blocks for GQA (two on each SM
// of an H200), 128 for MLA, whose blocks need an SM each. A function of the entry's bounds alone: fixed when a graph is captured.
constexpr std::uint64_t kGpuMostSplits = 128;
constexpr std::uint64_t kGpuMlaHeadTile = 64;  // heads that share one pass over the latent cache
constexpr std::uint64_t gpu_attend_splits(std::uint64_t blocks_wanted, std::uint64_t tokens, std::uint64_t groups) {
  const std::uint64_t items = tokens * groups == 0 ? 1 : tokens * groups;
  const std::uint64_t splits = blocks_wanted / items;
  return splits < 1 ? 1 : splits < kGpuMostSplits ? splits : kGpuMostSplits;
}
constexpr std::uint64_t gpu_gqa_splits(std::uint64_t tokens, std::uint64_t kv_heads) {
  return gpu_attend_splits(264, tokens, kv_heads);
}
constexpr std::uint64_t gpu_mla_splits(std::uint64_t tokens, std::uint64_t heads) {
  return gpu_attend_splits(128, tokens, (heads + kGpuMlaHeadTile - 1) / kGpuMlaHeadTile);
}
// Of each token, head and split: f32 [width] the unnormalised sum, then the maximum and the denominator. Nothing for one split.
constexpr std::uint64_t gpu_partial_bytes(std::uint64_t tokens, std::uint64_t heads, std::uint64_t splits, std::uint64_t width) {
  return splits <= 1 ? 0 : align256(tokens * heads * splits * (width + 2) * 4);
}

// FlashInfer's kernels (runtime/kernels/cuda/flashinfer/plan.h) want lists of work, made on the device in the step. Items are 128 rows,
// a row per token and head of a key. The structs have offsets in bytes; `bytes` is all of it.
constexpr std::uint64_t kGpuPlanRows = 128;
constexpr std::uint64_t kGpuPlanTokens = 2;   // GQA: batches of at least so many tokens per sequence, the dummy counted, are served so
constexpr std::uint64_t kGpuMlaSms = 144;     // MLA: one block on each SM; cards with more are served by our own kernels
constexpr std::uint64_t kGpuMlaFewest = 8 * kGpuPlanRows;  // rows of a step
struct GpuGqaPlan {
  std::uint64_t page_first;  // i32 [sequences + 2], then the number 1
  std::uint64_t item;        // i32 [3][items]
  std::uint64_t bytes;
};
constexpr GpuGqaPlan gpu_gqa_plan(std::uint64_t items, std::uint64_t sequences) {
  const std::uint64_t item = align256((sequences + 3) * 4);
  return {0, item, item + align256(3 * items * 4)};
}
struct GpuMlaPlan {
  std::uint64_t work;   // i32 [72 + 1]: first entry of each pair of SMs
  std::uint64_t merge;  // i32 [5][144]
  std::uint64_t entry;  // i32 [8][items + 72]
  std::uint64_t lse;    // f32 [144 * 128]: of parts of items whose keys are cut, at most one per SM
  std::uint64_t sums;   // bf16 [144 * 128, 512]
  std::uint64_t bytes;
};
constexpr GpuMlaPlan gpu_mla_plan(std::uint64_t items) {
  GpuMlaPlan p = {};
  p.merge = align256((kGpuMlaSms / 2 + 1) * 4);
  p.entry = p.merge + align256(5 * kGpuMlaSms * 4);
  p.lse = p.entry + align256(8 * (items + kGpuMlaSms / 2) * 4);
  p.sums = p.lse + align256(kGpuMlaSms * kGpuPlanRows * 4);
  p.bytes = p.sums + align256(kGpuMlaSms * kGpuPlanRows * 512 * 2);
  return p;
}
// Items of a step at most: each sequence, the dummy counted, has one tile that is not full.
constexpr std::uint64_t gpu_plan_items(std::uint64_t tokens, std::uint64_t sequences, std::uint64_t rows_per_token) {
  return tokens * rows_per_token / kGpuPlanRows + sequences + 1;
}
// What the bounds of an entry need, whatever batch comes; nothing for shapes that are never served so.
constexpr std::uint64_t gpu_gqa_plan_bytes(std::uint64_t tokens, std::uint64_t group) {
  const std::uint64_t sequences = tokens / kGpuPlanTokens;  // the dummy counted
  return sequences == 0 ? 0 : gpu_gqa_plan(gpu_plan_items(tokens, sequences - 1, group), sequences - 1).bytes;
}
constexpr std::uint64_t gpu_mla_plan_bytes(std::uint64_t tokens, std::uint64_t heads, std::uint64_t latent, std::uint64_t rope) {
  return latent != 512 || rope != 64 || tokens * heads < kGpuMlaFewest ? 0 : gpu_mla_plan(gpu_plan_items(tokens, tokens, heads)).bytes;
}
constexpr std::uint64_t gpu_larger(std::uint64_t a, std::uint64_t b) { return a > b ? a : b; }
constexpr std::uint64_t gpu_smaller(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

// gqa: query f32 [tokens, heads * head_dim] (GqaAppendArgs::query); partial: GqaAttendArgs::scratch, sums of parts or a plan.
struct GpuGqaWorkspace {
  std::uint64_t query;
  std::uint64_t partial;
  constexpr std::uint64_t total() const { return query + partial; }
};
constexpr GpuGqaWorkspace gpu_gqa_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t kv_heads,
                                            std::uint64_t head_dim) {
  return {align256(tokens * heads * head_dim * 4),
          gpu_larger(gpu_partial_bytes(tokens, heads, gpu_gqa_splits(tokens, kv_heads), head_dim),
                     gpu_gqa_plan_bytes(tokens, heads / kv_heads))};
}

// mla: query f32 [tokens, heads, latent + rope], context f32 [tokens, heads, latent]; partial: MlaAttendArgs::scratch,
// as above.
struct GpuMlaWorkspace {
  std::uint64_t query;
  std::uint64_t context;
  std::uint64_t partial;
  constexpr std::uint64_t total() const { return query + context + partial; }
};
constexpr GpuMlaWorkspace gpu_mla_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t latent,
                                            std::uint64_t rope) {
  return {align256(tokens * heads * (latent + rope) * 4), align256(tokens * heads * latent * 4),
          gpu_larger(gpu_partial_bytes(tokens, heads, gpu_mla_splits(tokens, heads), latent),
                     gpu_mla_plan_bytes(tokens, heads, latent, rope))};
}

// ------------------------------------------------------------------------------------------------------------- products
//
// route: logits f32 [tokens, experts].
struct GpuRouteWorkspace {
  std::uint64_t logits;
  constexpr std::uint64_t total() const { return logits; }
};
constexpr GpuRouteWorkspace gpu_route_workspace(std::uint64_t tokens, std::uint64_t experts) {
  return {align256(tokens * experts * 4)};
}

constexpr std::uint64_t kGpuFewRows = 8;                   // up to here a product is a matter of reading the weight
constexpr std::uint64_t kGpuTileRows = 128;                // of a tile of sorted pairs
constexpr std::uint64_t kGpuDownBytes = 256u << 20;        // down products that wait to be added; more columns are taken in turn
constexpr std::uint64_t kGpuDownColumns = 128;             // of them at least

// A left operand as products read it: [rows, columns padded to 64] in the format of the activations; nothing for f32, which is
// read in place.
constexpr std::uint64_t gpu_operand_bytes(Format activations, std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t padded = (columns + 63) / 64 * 64;
  return activations == Format::f32 ? 0 : align256(rows * padded * 2);
}
// linear: y[tokens, rows] = x[tokens, columns] w^T.
struct GpuLinearWorkspace {
  std::uint64_t x;
  constexpr std::uint64_t total() const { return x; }
};
constexpr GpuLinearWorkspace gpu_linear_workspace(Format activations, std::uint64_t tokens, std::uint64_t columns) {
  return {gpu_operand_bytes(activations, tokens, columns)};
}

// mlp: x; h [tokens, intermediate padded to 64], f32 or bf16; where gate and up are made first (f32 weights or activations), they are
// twice as wide and half of the tokens are worked on at once, so that one row more is enough.
struct GpuMlpWorkspace {
  std::uint64_t x;
  std::uint64_t h;
  constexpr std::uint64_t total() const { return x + h; }
};
constexpr GpuMlpWorkspace gpu_mlp_workspace(Format activations, std::uint64_t tokens, std::uint64_t columns,
                                            std::uint64_t intermediate) {
  return {gpu_operand_bytes(activations, tokens, columns), align256((tokens + 1) * ((intermediate + 63) / 64 * 64) * 4)};
}

// Tokens whose pairs are worked on at once: every expert is read once for them, so they are many. Their h in bf16 takes no more than
// kGpuDownBytes.
constexpr std::uint64_t gpu_experts_tokens(std::uint64_t tokens, std::uint64_t top_k, std::uint64_t intermediate) {
  const std::uint64_t padded = (intermediate + 63) / 64 * 64;
  const std::uint64_t of_h = padded * 2, of_down = kGpuDownColumns * 4;
  const std::uint64_t most = kGpuDownBytes / (top_k * (of_h > of_down ? of_h : of_down));
  return most < 1 ? 1 : tokens < most ? tokens : most;
}
// Columns of the down products of so many pairs at once.
constexpr std::uint64_t gpu_experts_columns(std::uint64_t pairs, std::uint64_t columns) {
  const std::uint64_t most = kGpuDownBytes / (pairs * 4) / kGpuDownColumns * kGpuDownColumns;
  const std::uint64_t some = most < kGpuDownColumns ? kGpuDownColumns : most;
  return columns < some ? columns : some;
}

// experts: x; matrix of each pair i32 [pairs], -1 for none; source and target of each sorted pair u32 [2, pairs]; tiles
// u32 [pairs / 128 + experts][3], their number u32 [64]; h [pairs, intermediate padded to 64] bf16, or for few tokens f32 (f32
// weights or activations: as many tokens as fit); down products f32 [pairs, gpu_experts_columns], or kGpuDownBytes: with fewer tokens
// nothing is larger. pairs = gpu_experts_tokens * top_k; experts: matrices of the bank at most.
struct GpuExpertsWorkspace {
  std::uint64_t x;
  std::uint64_t matrix;
  std::uint64_t sorted;
  std::uint64_t tiles;
  std::uint64_t tile_count;
  std::uint64_t h;
  std::uint64_t down;
  constexpr std::uint64_t total() const { return x + matrix + sorted + tiles + tile_count + h + down; }
};
constexpr GpuExpertsWorkspace gpu_experts_workspace(Format activations, std::uint64_t tokens, std::uint64_t top_k,
                                                    std::uint64_t columns, std::uint64_t intermediate, std::uint64_t experts) {
  const std::uint64_t at_once = gpu_experts_tokens(tokens, top_k, intermediate), pairs = at_once * top_k;
  const std::uint64_t padded = (intermediate + 63) / 64 * 64, few = at_once < 2 * kGpuFewRows ? at_once : 2 * kGpuFewRows;
  return {gpu_operand_bytes(activations, tokens, columns), align256(pairs * 4), align256(2 * pairs * 4),
          align256((pairs / kGpuTileRows + experts) * 12), 256, align256(gpu_larger(pairs * padded * 2, few * top_k * padded * 4)),
          align256(gpu_smaller(pairs * columns * 4, kGpuDownBytes))};
}

}  // namespace ktc
