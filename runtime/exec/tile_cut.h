// How products on tiles are cut into calls, and calls into pieces of K: measured choices for caches of 48 KiB and 2 MiB per
// core. Nothing here changes a result.
#pragma once

#include <algorithm>
#include <cstddef>

#include "runtime/exec/partition.h"
#include "runtime/kernels/cpu/kernels.h"

namespace ktc::exec {

struct TileTuning {
  std::size_t inner = 8;                               // 64 K of an inner piece at most; 0: as long as an outer one
  std::size_t outer_bytes = std::size_t{1} << 20;      // of activations that a call keeps in the second cache
  std::size_t rows = kernels::kMostTileRows;           // of one call
  std::size_t up_panels = 8, down_panels = 4;          // of one call at most
  std::size_t sum_bytes = std::size_t{512} << 10;      // of output panels that a worker adds to for many experts
  bool fetch_values = true;                            // ask for the next call's activations
};

struct TileCut {
  std::size_t outer = 0, inner = 0;  // TileArgs::k_outer and k_inner
};

// `blocks`: 64 K in a row of activations of `element` bytes.
inline TileCut tile_cut(std::size_t blocks, std::size_t rows, std::size_t element, const TileTuning& tuning) {
  // Equal pieces, even because a scale may serve 128 K.
  const auto equal = [](std::size_t total, std::size_t most) {
    return total <= most ? total : round_up(exec::blocks(total, exec::blocks(total, most)), 2);
  };
  const std::size_t row_tile = round_up(rows, kernels::kTileRows) * 64 * element;
  TileCut cut;
  cut.outer = equal(blocks, std::max<std::size_t>(2, tuning.outer_bytes / row_tile));
  cut.inner = tuning.inner == 0 ? cut.outer : equal(cut.outer, std::max<std::size_t>(2, tuning.inner / element));
  if (cut.outer < blocks) cut.outer = std::min(blocks, round_up(cut.outer, cut.inner));
  return cut;
}

// Rows of one call of m: few where long rows leave room for few.
inline std::size_t tile_rows_at_once(std::size_t blocks, const TileTuning& tuning) {
  const std::size_t most = blocks <= 32 ? tuning.rows : tuning.rows / 2;
  return std::clamp(most / kernels::kTileRows * kernels::kTileRows, kernels::kTileRows, kernels::kMostTileRows);
}

}  // namespace ktc::exec
