// Kernels over the packing `panel` (runtime/formats/panel.h): weights int8, int4, fp8 or bf16, activations int8 or bf16.
//
// Every kernel is single-threaded, allocates nothing and keeps no state. A row's result depends neither on the number of rows
// nor on the kernel (few, many) nor on how rows and K were cut: the arithmetic below fixes the order of every rounding.
//
// int8 activations (weights int8, int4): equal to the bit on every ISA level. One scale per granule of `x_granule` input
// features (64, 128, or 0 = the whole row): scale = amax / 127, code = round to nearest even of x * (127 / amax). An amax below
// 2^-100 gives codes and scale 0; a granule with an infinity or a NaN gives codes 0 and a scale of NaN.
// step = min(weight group or all K, activation granule or all K). For each step in ascending K,
//   c = float(int32 sum of code_x * code_w), rounded to nearest; then, f starting at 0,
//   both grouped: f = fma(c, ws * as, f); weights alone: f = fma(c, ws, f); activations alone: f = fma(c, as, f); neither: f = c
// and at the end f *= as when x has one scale, then f *= ws when the feature has one scale. (ws * as is one f32 product.)
// int32 sums limit K to 2^17.
//
// bf16 activations (weights bf16, fp8): f32 sums in the order of the tile instructions. For every 32 K in ascending order
//   even = fma over ascending even k of x * w, from 0;  odd likewise over odd k;  c = c + (even + odd), c starting at 0
// bf16: the result is c. fp8: a step of `group` (or all K) ends with f = fma(c, ws, f), f and the next c starting at 0; with one
// scale per feature the result is c * ws. An FP8 code of NaN is NaN. Products of such factors are exact in f32, so every level
// gives the same bits while no product and no sum is subnormal or overflows: tile instructions flush subnormals to zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/formats/panel.h"

namespace ktc::kernels {

// One row of activations. `values`: the K padded to 64 with zeros, in pieces of 64 elements `kb_stride` bytes apart.
struct PanelRow {
  const std::byte* values;      // int8 or bf16
  const float* scales;          // per granule; null for bf16
  const std::int32_t* sums;     // int8: sum of the codes of every 32 input features, for zero points; null for bf16
};

// out[r][0..16) = block 0, out[r][16..32) = block 1 of one panel, for rows r in [0, m).
struct PanelArgs {
  const std::byte* panel;       // 64-byte aligned
  const std::byte* next;        // what the caller will read after this panel, for prefetch; null: nothing
  const PanelLayout* layout;
  const PanelRow* rows;
  std::size_t m;                // in [1, kFewRows]
  std::size_t kb_stride;
  std::uint32_t x_granule;      // 64, 128, 0; ignored for bf16 activations
  float* out;                   // [m][32], 64-byte aligned
};
using PanelFn = void (*)(const PanelArgs&);
constexpr std::size_t kFewRows = 8;

// Rows of activations for tile kernels: 16 rows make a tile, and tiles lie one behind the other. In a matrix of m rows the last
// tile may be incomplete; its other rows exist, hold anything, and change nothing.
constexpr std::size_t kTileRows = 16;
struct PanelTiles {
  const std::byte* values;      // [tiles][K padded / 64][16][64] int8 or bf16, 64-byte aligned
  const float* scales;          // int8: [tiles][granules][16], 64-byte aligned; granules: 1 when one scale serves the row
  const std::int32_t* sums;     // int8: [tiles][16]: sum of the codes of the row; read when it has one scale
};

// What a tile kernel does with f, the [m][32] that PanelArgs would have in `out` for panel p of the call:
//   rows   out[r * out_stride + 32 p + c] = f[r][c] (+ bias[32 p + c])   where 32 p + c < columns
//   gated  out[r / 16 * out_stride + (p * 16 + r % 16) * 16 + c] = silu(f[r][c]) * f[r][16 + c]   for a paired panel, c < 16
//   sums   out[p * out_stride + 32 out_row[r] + c] = fma(out_scale[r], f[r][c], the value there)
// Each element as swiglu and accumulate below would make it. `gated` and `sums`: out is 64-byte aligned, out_stride a multiple
// of 16.
enum class TileResult : std::uint8_t { rows, gated, sums };

struct TileArgs {
  const std::byte* panels;      // the first of `count`, which lie one behind the other; 64-byte aligned
  std::size_t count;            // in [1, kMostTilePanels]
  const PanelLayout* layout;
  PanelTiles x;
  std::size_t m;                // in [1, kMostTileRows]
  std::uint32_t x_granule;      // as above
  // How the product is cut, in pieces of 64 K; 0: not at all. Even, and k_outer a multiple of k_inner. A worker's second cache
  // holds m rows of k_outer; its first cache holds a panel's k_inner. No result depends on them.
  std::size_t k_outer, k_inner;
  // For prefetch: the panel of the same layout, and the bytes of activations, that the caller reads after this call; or null.
  const std::byte* next_panel;
  const std::byte* next_values;
  std::size_t next_value_bytes;
  TileResult result;
  float* out;
  std::size_t out_stride;
  std::size_t columns;          // rows
  const float* bias;            // rows: from the first panel's first feature; or null
  const std::uint32_t* out_row; // sums: [m]
  const float* out_scale;       // sums: [m]
  std::byte* scratch;           // panel_scratch_bytes(*layout) bytes, 64-byte aligned, of this thread alone
};
using TileFn = void (*)(const TileArgs&);
constexpr std::size_t kMostTilePanels = 8, kMostTileRows = 512;

// Sums of all rows and panels of a call (512 KiB), and the weights of a panel as the tile instructions take them: at K = 2048
// another 64 KiB (int8, int4) or 128 KiB (fp8). Holds nothing between calls.
inline std::size_t panel_scratch_bytes(const PanelLayout& layout) {
  const std::size_t tile_pair = layout.format == Format::bf16 ? 0 : layout.format == Format::fp8 ? 4096 : 2048;
  return kMostTilePanels * kMostTileRows * 128 + static_cast<std::size_t>(layout.k_blocks) * tile_pair;
}

// A family of rows of panel_kernels.def for one weight format.
struct PanelKernels {
  PanelFn few = nullptr;
  TileFn many = nullptr;        // null: no tile kernel
};

// codes[k], scales[g], sums[k / 32] of one row of f32; codes are written in pieces of 64 `kb_stride` bytes apart and padded
// with zeros to a multiple of 64 (sums likewise: two per piece). columns >= 1. granule 64, 128 or 0.
using QuantiseRowFn = void (*)(const float* x, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                               std::size_t kb_stride, float* scales, std::int32_t* sums);
// The same to bf16, round to nearest even. NaN stays NaN.
using RoundRowFn = void (*)(const float* x, std::size_t columns, std::uint16_t* values, std::size_t kb_stride);

// Both for `rows` <= 16 rows that a tile kernel left `gated`: x is [ceil(columns / 16)][16][16]; the results make one tile of
// PanelTiles, with zeros for what its other rows have of scales and sums.
using QuantiseTileFn = void (*)(const float* x, std::size_t rows, std::size_t columns, std::uint32_t granule,
                                std::int8_t* codes, float* scales, std::int32_t* sums);
using RoundTileFn = void (*)(const float* x, std::size_t rows, std::size_t columns, std::uint16_t* values);
// h[i] = silu(gate[i]) * up[i], i in [0, 16): the two halves of one row of a paired panel's output. Equal on every level.
using SwigluFn = void (*)(const float* gate_up, float* h);
// y[i] = fma(scale, x[i], y[i]), or scale * x[i] when `first`; i in [0, n). Equal on every level.
using AccumulateFn = void (*)(const float* x, float scale, std::size_t n, bool first, float* y);

// Around a thread's use of `many`: enter makes sure that the operating system grants tile registers, leave empties them, so that
// a switch of threads need not save them. Calls nest per thread; nothing at levels without tile kernels.
using TileScopeFn = void (*)();

}  // namespace ktc::kernels
