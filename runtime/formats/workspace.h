// Scratch memory of one CPU step, as a pure function of its shape: the compiler reserves it in the arena, the executor uses it.
// All sizes are bytes and multiples of 64. Areas lie one behind the other in the order of the fields.
#pragma once

#include <cstdint>

#include "runtime/formats/formats.h"

namespace ktc {

constexpr std::uint64_t align64(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// gqa: q after norm and rope, f32 [tokens, heads * head_dim].
struct GqaWorkspace {
  std::uint64_t query;
  constexpr std::uint64_t total() const { return query; }
};
constexpr GqaWorkspace gqa_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t head_dim) {
  return {align64(tokens * heads * head_dim * 4)};
}

// mla: latent query f32 [tokens, heads, latent + rope], context f32 [tokens, heads, latent].
struct MlaWorkspace {
  std::uint64_t query;
  std::uint64_t context;
  constexpr std::uint64_t total() const { return query + context; }
};
constexpr MlaWorkspace mla_workspace(std::uint64_t tokens, std::uint64_t heads, std::uint64_t latent, std::uint64_t rope) {
  return {align64(tokens * heads * (latent + rope) * 4), align64(tokens * heads * latent * 4)};
}

// route: logits f32 [tokens, experts].
struct RouteWorkspace {
  std::uint64_t logits;
  constexpr std::uint64_t total() const { return logits; }
};
constexpr RouteWorkspace route_workspace(std::uint64_t tokens, std::uint64_t experts) {
  return {align64(tokens * experts * 4)};
}

// experts: hidden activations f32 [tokens * top_k, intermediate], pairs sorted by expert u32 [2, tokens * top_k],
// first pair of each expert u32 [experts + 1], routing weight of each sorted pair f32 [tokens * top_k].
struct ExpertsWorkspace {
  std::uint64_t hidden;
  std::uint64_t pairs;
  std::uint64_t offsets;
  std::uint64_t weights;
  constexpr std::uint64_t total() const { return hidden + pairs + offsets + weights; }
};
constexpr ExpertsWorkspace experts_workspace(std::uint64_t tokens, std::uint64_t top_k, std::uint64_t intermediate,
                                             std::uint64_t experts) {
  return {align64(tokens * top_k * intermediate * 4), align64(tokens * top_k * 8), align64((experts + 1) * 4),
          align64(tokens * top_k * 4)};
}

// mlp: hidden activations f32 [rows, intermediate].
struct MlpWorkspace {
  std::uint64_t hidden;
  constexpr std::uint64_t total() const { return hidden; }
};
constexpr MlpWorkspace mlp_workspace(std::uint64_t rows, std::uint64_t intermediate) {
  return {align64(rows * intermediate * 4)};
}

// ------------------------------------------------------------------------------------ products with weights in panels
//
// Callers bound the products beforehand (rows * columns below 2^58): these functions do not check for overflow.

constexpr std::uint64_t kTileRowsPadded = 16;  // rows of a tile; a matrix of activations in tile layout is padded to it

// Left operands for panel kernels (runtime/kernels/cpu/panel_kernels.h): K padded to 64.
// int8: codes [rows, K padded], scales f32 [rows, granules], sums i32 [rows, K padded / 32]; granules = ceil(K / granule),
// 1 for granule 0. bf16: values [rows, K padded], no scales, no sums. Rows of an area lie one behind the other, unpadded.
// `value_rows` >= rows is for tile layout, where the rows of every matrix are padded to 16: values then lie as
// [tile][K padded / 64][16 rows][64 elements]; scales and sums stay one row per real row.
struct PanelRowsWorkspace {
  std::uint64_t values;
  std::uint64_t scales;
  std::uint64_t sums;
  constexpr std::uint64_t total() const { return values + scales + sums; }
};
constexpr std::uint64_t panel_granules(std::uint64_t columns, std::uint32_t granule) {
  return granule == 0 ? 1 : (columns + granule - 1) / granule;
}
constexpr PanelRowsWorkspace panel_rows_workspace(Format activations, std::uint64_t rows, std::uint64_t value_rows,
                                                  std::uint64_t columns, std::uint32_t granule) {
  const std::uint64_t padded = align64(columns);
  if (activations != Format::int8) return {align64(value_rows * padded * 2), 0, 0};
  return {align64(value_rows * padded), align64(rows * panel_granules(columns, granule) * 4), align64(rows * (padded / 32) * 4)};
}
// int8 rows without tile layout.
constexpr std::uint64_t quantised_rows_bytes(std::uint64_t rows, std::uint64_t columns, std::uint32_t granule) {
  return panel_rows_workspace(Format::int8, rows, rows, columns, granule).total();
}

// Rows that `rows` left operands of at most `matrices` matrices take in tile layout: every matrix that tile kernels serve has
// at least `tile_rows` rows and is padded to 16; the others follow one behind the other. tile_rows 0: no tile layout.
constexpr std::uint64_t tiled_rows(std::uint64_t rows, std::uint64_t matrices, std::uint32_t tile_rows) {
  if (tile_rows == 0) return rows;
  const std::uint64_t tiled = rows / tile_rows < matrices ? rows / tile_rows : matrices;
  return rows + tiled * (kTileRowsPadded - 1);
}

constexpr std::uint64_t kPanelRowBytes = 24;  // sizeof(kernels::PanelRow), which refers to one left operand

// linear: x in panel form, in tile layout from tile_rows rows; one PanelRow per row.
struct PanelLinearWorkspace {
  PanelRowsWorkspace x;
  std::uint64_t rows;
  constexpr std::uint64_t total() const { return x.total() + rows; }
};
constexpr PanelLinearWorkspace panel_linear_workspace(Format activations, std::uint64_t rows, std::uint64_t columns,
                                                      std::uint32_t x_granule, std::uint32_t tile_rows) {
  return {panel_rows_workspace(activations, rows, tiled_rows(rows, 1, tile_rows), columns, x_granule),
          align64(rows * kPanelRowBytes)};
}

// mlp: x as above; hidden f32 [rows, intermediate padded to 16]; h in panel form, laid out as x; PanelRow [2, rows], of x and h.
struct PanelMlpWorkspace {
  PanelRowsWorkspace x;
  std::uint64_t hidden;
  PanelRowsWorkspace h;
  std::uint64_t rows;
  constexpr std::uint64_t total() const { return x.total() + hidden + h.total() + rows; }
};
constexpr std::uint64_t padded16(std::uint64_t columns) { return (columns + 15) / 16 * 16; }
constexpr PanelMlpWorkspace panel_mlp_workspace(Format activations, std::uint64_t rows, std::uint64_t columns,
                                                std::uint64_t intermediate, std::uint32_t x_granule,
                                                std::uint32_t h_granule, std::uint32_t tile_rows) {
  const std::uint64_t value_rows = tiled_rows(rows, 1, tile_rows);
  return {panel_rows_workspace(activations, rows, value_rows, columns, x_granule),
          align64(rows * padded16(intermediate) * 4),
          panel_rows_workspace(activations, rows, value_rows, intermediate, h_granule), align64(2 * rows * kPanelRowBytes)};
}

// experts: x of every token in panel form, not in tile layout; the values of x gathered by expert for tile kernels (nothing
// when tile_rows is 0), [tiled_rows(pairs, experts, tile_rows), K padded]: scales and sums stay those of the token; hidden f32
// [pairs, intermediate padded to 16]; h in panel form by sorted pair, in tile layout for the experts that tile kernels serve;
// PanelRow [2, pairs], of x and h; pairs, offsets and weights as in ExpertsWorkspace; one line of 64 bytes per expert for the
// counter of its finished slices. pairs = tokens * top_k.
struct PanelExpertsWorkspace {
  PanelRowsWorkspace x;
  std::uint64_t x_tiles;
  std::uint64_t hidden;
  PanelRowsWorkspace h;
  std::uint64_t rows;
  std::uint64_t pairs;
  std::uint64_t offsets;
  std::uint64_t weights;
  std::uint64_t progress;
  constexpr std::uint64_t total() const {
    return x.total() + x_tiles + hidden + h.total() + rows + pairs + offsets + weights + progress;
  }
};
constexpr PanelExpertsWorkspace panel_experts_workspace(Format activations, std::uint64_t tokens, std::uint64_t top_k,
                                                        std::uint64_t columns, std::uint64_t intermediate,
                                                        std::uint64_t experts, std::uint32_t x_granule,
                                                        std::uint32_t h_granule, std::uint32_t tile_rows) {
  const std::uint64_t pairs = tokens * top_k, value_rows = tiled_rows(pairs, experts, tile_rows);
  const std::uint64_t element = activations == Format::int8 ? 1 : 2;
  return {panel_rows_workspace(activations, tokens, tokens, columns, x_granule),
          tile_rows == 0 ? 0 : align64(value_rows * align64(columns) * element),
          align64(pairs * padded16(intermediate) * 4),
          panel_rows_workspace(activations, pairs, value_rows, intermediate, h_granule),
          align64(2 * pairs * kPanelRowBytes),
          align64(pairs * 8),
          align64((experts + 1) * 4),
          align64(pairs * 4),
          experts * 64};
}

}  // namespace ktc
