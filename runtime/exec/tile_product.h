// Rows in tiles times panels: calls of a tile kernel for any number of rows.
#pragma once

#include "runtime/exec/panel_product.h"
#include "runtime/exec/tile_cut.h"

namespace ktc::exec {

// What a worker will read after a product, for prefetch.
struct TileNext {
  const std::byte* panel = nullptr;   // of the same layout
  const std::byte* values = nullptr;
  std::size_t value_bytes = 0;
};

// The tiles of rows [16 tile, 16 tile + m) of `x` against panels [p, p + count) of a matrix. `args` holds result, out and what
// belongs to it, for row 0 and panel p. Calls take as many rows as `tuning` says; their panels stay in the second cache.
inline void tile_product(const PanelWeight& w, std::size_t matrix, std::size_t p, std::size_t count, const PanelOperands& x,
                         std::size_t tile, std::size_t m, const TileTuning& tuning, std::byte* scratch, const TileNext& next,
                         kernels::TileArgs args) {
  const std::size_t at_once = tile_rows_at_once(w.layout.k_blocks, tuning);
  const TileCut cut = tile_cut(w.layout.k_blocks, std::min(m, at_once), x.element(), tuning);
  args.panels = w.panel(matrix, p);
  args.count = count;
  args.layout = &w.layout;
  args.x_granule = x.granule;
  args.k_outer = cut.outer;
  args.k_inner = cut.inner;
  args.scratch = scratch;
  for (std::size_t first = 0; first < m; first += at_once) {
    const bool last = first + at_once >= m;
    args.x = x.tiles(tile + first / kernels::kTileRows);
    args.m = std::min(at_once, m - first);
    args.next_panel = last ? next.panel : nullptr;
    args.next_values = last ? next.values : nullptr;
    args.next_value_bytes = next.value_bytes;
    w.kernels.many(args);
    switch (args.result) {
      case kernels::TileResult::rows: args.out += at_once * args.out_stride; break;
      case kernels::TileResult::gated: args.out += at_once / kernels::kTileRows * args.out_stride; break;
      case kernels::TileResult::sums:
        args.out_row += at_once;
        args.out_scale += at_once;
        break;
    }
  }
}

}  // namespace ktc::exec
