// Scratch memory of one GPU step, as a pure function of its shape: the compiler reserves it in the device's arena, the executor
// hands it to the kernels (runtime/kernels/cuda/gpu_kernels.h). All sizes are bytes and multiples of 256; areas lie one behind
// the other in the order of the fields. Callers bound the products beforehand, as for workspace.h: nothing here checks overflow.
//
// rope_table, embed, rms_norm, add, add_norm, select_rows, argmax, publish, await and unpack need none.
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

// ------------------------------------------------------------------------------------------------------------ attention
//
// The keys of a token are cut into up to `splits` parts, so that one token fills a GPU: about 512 blocks for GQA (four on an SM),
// 128 for MLA, whose blocks need an SM each. A function of the entry's bounds alone: it is fixed when a graph is captured.
constexpr std::uint64_t kGpuMostSplits = 128;
constexpr std::uint64_t kGpuMlaHeadTile = 64;  // heads that share one pass over the latent cache
constexpr std::uint64_t gpu_attend_splits(std::uint64_t blocks_wanted, std::uint64_t tokens, std::uint64_t groups) {
  const std::uint64_t items = tokens * groups == 0 ? 1 : tokens * groups;
  const std::uint64_t splits = blocks_wanted / items;
  return splits < 1 ? 1 : splits < kGpuMostSplits ? splits : kGpuMostSplits;
}
constexpr std::uint64_t gpu_gqa_splits(std::uint64_t tokens, std::uint64_t kv_heads) {
  return gpu_attend_splits(512, tokens, kv_heads);
}
constexpr std::uint64_t gpu_mla_splits(std::uint64_t tokens, std::uint64_t heads) {
  return gpu_attend_splits(128, tokens, (heads + kGpuMlaHeadTile - 1) / kGpuMlaHeadTile);
}
// Of each token, head and split: f32 [width] the unnormalised sum, then the maximum and the denominator. Nothing for one split.
constexpr std::uint64_t gpu_partial_bytes(std::uint64_t tokens, std::uint64_t heads, std::uint64_t splits, std::uint64_t width) {
  return splits <= 1 ? 0 : align256(tokens * heads * splits * (width + 2) * 4);
}

// gqa: query f32 [tokens, heads * head_dim] (GqaAppendArgs::query); partial: GqaAttendArgs::scratch.
struct GpuGqaWorkspace {
  std::uint64_t query;
  std::uint64_t partial;
  constexpr std::uint64_t total() const { return query + partial; }
};
constexpr GpuGqaWorkspace gpu_gqa_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t kv_heads,
                                            std::uint64_t head_dim) {
  return {align256(tokens * heads * head_dim * 4),
          gpu_partial_bytes(tokens, heads, gpu_gqa_splits(tokens, kv_heads), head_dim)};
}

// mla: query f32 [tokens, heads, latent + rope], context f32 [tokens, heads, latent]; partial: MlaAttendArgs::scratch.
struct GpuMlaWorkspace {
  std::uint64_t query;
  std::uint64_t context;
  std::uint64_t partial;
  constexpr std::uint64_t total() const { return query + context + partial; }
};
constexpr GpuMlaWorkspace gpu_mla_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t latent,
                                            std::uint64_t rope) {
  return {align256(tokens * heads * (latent + rope) * 4), align256(tokens * heads * latent * 4),
          gpu_partial_bytes(tokens, heads, gpu_mla_splits(tokens, heads), latent)};
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

constexpr std::uint64_t kGpuFewRows = 16;                  // up to here a product is a matter of bandwidth: matrix-vector kernels
constexpr std::uint64_t kGpuUnpackBytes = 32u << 20;       // a piece of a quantised matrix as bf16, for library products
constexpr std::uint64_t kGpuDownPairs = 8192;              // (token, expert) pairs whose down products wait to be added

// A left operand as products read it: [rows, columns padded to 64] in the format of the activations; nothing for f32, which is
// read in place.
constexpr std::uint64_t gpu_operand_bytes(Format activations, std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t padded = (columns + 63) / 64 * 64;
  return activations == Format::f32 ? 0 : align256(rows * padded * 2);
}
// For more than kGpuFewRows rows of quantised weights: bf16 rows of one matrix, in pieces of at most kGpuUnpackBytes.
constexpr std::uint64_t gpu_unpack_bytes(Format weights, Format activations, std::uint64_t tokens, std::uint64_t rows,
                                         std::uint64_t columns) {
  if (tokens <= kGpuFewRows || activations == Format::f32 || weights == Format::f32 || weights == Format::bf16) return 0;
  const std::uint64_t row = (columns + 63) / 64 * 64 * 2, whole = rows * row;
  return align256(whole < kGpuUnpackBytes ? whole : kGpuUnpackBytes < row ? row : kGpuUnpackBytes);
}

// linear: y[tokens, rows] = x[tokens, columns] w^T.
struct GpuLinearWorkspace {
  std::uint64_t x;
  std::uint64_t unpacked;
  constexpr std::uint64_t total() const { return x + unpacked; }
};
constexpr GpuLinearWorkspace gpu_linear_workspace(Format weights, Format activations, std::uint64_t tokens, std::uint64_t rows,
                                                  std::uint64_t columns) {
  return {gpu_operand_bytes(activations, tokens, columns), gpu_unpack_bytes(weights, activations, tokens, rows, columns)};
}

// mlp: x; gate and up f32 [tokens, 2 * intermediate] (few tokens use the first half for h alone); h.
struct GpuMlpWorkspace {
  std::uint64_t x;
  std::uint64_t gate_up;
  std::uint64_t h;
  std::uint64_t unpacked;
  constexpr std::uint64_t total() const { return x + gate_up + h + unpacked; }
};
constexpr GpuMlpWorkspace gpu_mlp_workspace(Format weights, Format activations, std::uint64_t tokens, std::uint64_t columns,
                                            std::uint64_t intermediate) {
  const std::uint64_t up = gpu_unpack_bytes(weights, activations, tokens, 2 * intermediate, columns);
  const std::uint64_t down = gpu_unpack_bytes(weights, activations, tokens, columns, intermediate);
  return {gpu_operand_bytes(activations, tokens, columns), align256(tokens * 2 * intermediate * 4),
          gpu_operand_bytes(activations, tokens, intermediate), up > down ? up : down};
}

// experts: x; pairs sorted by matrix i32 [2, pairs] (token, place in its top_k), first pair of each matrix i32 [experts + 1],
// cursors i32 [experts + 1]; h [pairs, intermediate padded to 64], f32 or in the format of the activations; down products f32
// [min(pairs, kGpuDownPairs), columns]. pairs = tokens * top_k; experts: of the router.
struct GpuExpertsWorkspace {
  std::uint64_t x;
  std::uint64_t pairs;
  std::uint64_t first;
  std::uint64_t h;
  std::uint64_t down;
  constexpr std::uint64_t total() const { return x + pairs + first + h + down; }
};
constexpr GpuExpertsWorkspace gpu_experts_workspace(Format weights, Format activations, std::uint64_t tokens, std::uint64_t top_k,
                                                    std::uint64_t columns, std::uint64_t intermediate, std::uint64_t experts) {
  const std::uint64_t pairs = tokens * top_k, at_once = pairs < kGpuDownPairs ? pairs : kGpuDownPairs;
  const std::uint64_t padded = (intermediate + 63) / 64 * 64;
  return {gpu_operand_bytes(activations, tokens, columns), align256(2 * pairs * 4), align256(2 * (experts + 1) * 4),
          align256(pairs * padded * 4), align256(at_once * columns * 4)};
}

}  // namespace ktc
