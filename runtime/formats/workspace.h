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
// `value_rows` >= rows: room for values alone. Tiles (kernels::PanelTiles) use an area of value_rows = rows rows, all matrices
// padded to 16: values [tile][K padded / 64][16][64], scales [tile][granules][16], sums [tile][16].
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

// Rows of left operands in tile form, gathered from an area of plain rows: nothing where no matrix can have tile_rows of them.
constexpr PanelRowsWorkspace panel_tiles_workspace(Format activations, std::uint64_t rows, std::uint64_t matrices,
                                                   std::uint64_t columns, std::uint32_t granule, std::uint32_t tile_rows) {
  if (tile_rows == 0 || rows < tile_rows) return {0, 0, 0};
  const std::uint64_t value_rows = tiled_rows(rows, matrices, tile_rows);
  return panel_rows_workspace(activations, value_rows, value_rows, columns, granule);
}

// linear: x in panel form; the same in tiles from tile_rows rows; one PanelRow per row.
struct PanelLinearWorkspace {
  PanelRowsWorkspace x;
  PanelRowsWorkspace x_tiles;
  std::uint64_t rows;
  constexpr std::uint64_t total() const { return x.total() + x_tiles.total() + rows; }
};
constexpr PanelLinearWorkspace panel_linear_workspace(Format activations, std::uint64_t rows, std::uint64_t columns,
                                                      std::uint32_t x_granule, std::uint32_t tile_rows) {
  return {panel_rows_workspace(activations, rows, rows, columns, x_granule),
          panel_tiles_workspace(activations, rows, 1, columns, x_granule, tile_rows), align64(rows * kPanelRowBytes)};
}

// mlp: x as above; hidden f32 [rows, intermediate padded to 16], or as a tile kernel leaves it, [tiles][blocks of 16][16][16];
// h in panel form or in tiles; PanelRow [2, rows], of x and h.
struct PanelMlpWorkspace {
  PanelRowsWorkspace x;
  PanelRowsWorkspace x_tiles;
  std::uint64_t hidden;
  PanelRowsWorkspace h;
  std::uint64_t rows;
  constexpr std::uint64_t total() const { return x.total() + x_tiles.total() + hidden + h.total() + rows; }
};
constexpr std::uint64_t padded16(std::uint64_t columns) { return (columns + 15) / 16 * 16; }
constexpr PanelMlpWorkspace panel_mlp_workspace(Format activations, std::uint64_t rows, std::uint64_t columns,
                                                std::uint64_t intermediate, std::uint32_t x_granule,
                                                std::uint32_t h_granule, std::uint32_t tile_rows) {
  const std::uint64_t value_rows = tiled_rows(rows, 1, tile_rows);
  return {panel_rows_workspace(activations, rows, rows, columns, x_granule),
          panel_tiles_workspace(activations, rows, 1, columns, x_granule, tile_rows),
          align64(value_rows * padded16(intermediate) * 4),
          panel_rows_workspace(activations, value_rows, value_rows, intermediate, h_granule),
          align64(2 * rows * kPanelRowBytes)};
}

// experts: x of every token in panel form; the same gathered by expert in tiles; hidden and h as in mlp, by sorted pair, padded
// to tiles for the experts that tile kernels serve; PanelRow [2, pairs], of x and h; pairs, offsets and weights as in
// ExpertsWorkspace; one line of 64 bytes per expert for where its rows lie and how far it is. pairs = tokens * top_k.
// Where there may be tiles also: the expert of every 16 sorted pairs u32; the output in panels, f32 [columns padded to 32 / 32]
// [tokens][32], because rows of 2^n bytes that a worker walks down share few places in a cache; a line per panel for its turn.
struct PanelExpertsWorkspace {
  PanelRowsWorkspace x;
  PanelRowsWorkspace x_tiles;
  std::uint64_t hidden;
  PanelRowsWorkspace h;
  std::uint64_t rows;
  std::uint64_t pairs;
  std::uint64_t offsets;
  std::uint64_t weights;
  std::uint64_t progress;
  std::uint64_t sixteens;
  std::uint64_t out_panels;
  std::uint64_t turns;
  constexpr std::uint64_t total() const {
    return x.total() + x_tiles.total() + hidden + h.total() + rows + pairs + offsets + weights + progress + sixteens + out_panels +
           turns;
  }
};
constexpr PanelExpertsWorkspace panel_experts_workspace(Format activations, std::uint64_t tokens, std::uint64_t top_k,
                                                        std::uint64_t columns, std::uint64_t intermediate,
                                                        std::uint64_t experts, std::uint32_t x_granule,
                                                        std::uint32_t h_granule, std::uint32_t tile_rows) {
  const std::uint64_t pairs = tokens * top_k, value_rows = tiled_rows(pairs, experts, tile_rows);
  const std::uint64_t panels = tile_rows == 0 ? 0 : (columns + 31) / 32, active = pairs < experts ? pairs : experts;
  return {panel_rows_workspace(activations, tokens, tokens, columns, x_granule),
          panel_tiles_workspace(activations, pairs, experts, columns, x_granule, tile_rows),
          align64(value_rows * padded16(intermediate) * 4),
          panel_rows_workspace(activations, value_rows, value_rows, intermediate, h_granule),
          align64(2 * pairs * kPanelRowBytes),
          align64(pairs * 8),
          align64((experts + 1) * 4),
          align64(pairs * 4),
          experts * 64,
          tile_rows == 0 ? 0 : align64((pairs / 16 + active) * 4),
          panels * tokens * 128,
          panels * 64};
}

}  // namespace ktc
