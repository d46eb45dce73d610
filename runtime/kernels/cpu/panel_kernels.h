// Kernels over the packing `panel` (runtime/formats/panel.h): weights int8, int4, fp8 or bf16, activations int8 or bf16.
//
// Every kernel is single-threaded, allocates nothing and keeps no state. Integer paths agree to the bit on every ISA level,
// whatever the number of rows and however they are cut: the arithmetic below fixes the order of every rounding.
//
// int8 activations have one scale per granule of `x_granule` input features (64, 128, or 0 = the whole row): scale =
// amax / 127, code = round to nearest even of x * (127 / amax); amax 0 gives codes and scale 0.
// step = min(weight group or all K, activation granule or all K). For each step in ascending K,
//   c = float(int32 sum of code_x * code_w), rounded to nearest; then, f starting at 0,
//   both grouped: f = fma(c, ws * as, f); weights alone: f = fma(c, ws, f); activations alone: f = fma(c, as, f); neither: f = c
// and at the end f *= as when x has one scale, then f *= ws when the feature has one scale. (ws * as is one f32 product.)
// bf16 activations (weights bf16, fp8): f32 sums; levels may differ by rounding, rows of one level never do.
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
  const std::byte* panel;
  const std::byte* next;        // what the caller will read after this panel, for prefetch; null: nothing
  const PanelLayout* layout;
  const PanelRow* rows;
  std::size_t m;
  std::size_t kb_stride;
  std::uint32_t x_granule;
  float* out;                   // [m][32], 64-byte aligned
};
using PanelFn = void (*)(const PanelArgs&);

// A family of rows of kernels.def for one weight format.
struct PanelKernels {
  PanelFn few = nullptr;        // any layout of values; m in [1, kFewRows]
  PanelFn many = nullptr;       // tile layout only: kb_stride is a tile (16 rows x 64 elements), rows[16 t + i] is row i of
                                // tile t, tiles of consecutive t need not be adjacent; any m. Null: no tile kernel
};
constexpr std::size_t kFewRows = 8;
constexpr std::size_t kTileRows = 16;

// codes[k], scales[g], sums[k / 32] of one row of f32; codes are written in pieces of 64 `kb_stride` bytes apart and padded
// with zeros to a multiple of 64. columns >= 1. granule 64, 128 or 0.
using QuantiseRowFn = void (*)(const float* x, std::size_t columns, std::uint32_t granule, std::int8_t* codes,
                               std::size_t kb_stride, float* scales, std::int32_t* sums);
// The same to bf16, round to nearest even.
using RoundRowFn = void (*)(const float* x, std::size_t columns, std::uint16_t* values, std::size_t kb_stride);
// h[i] = silu(gate[i]) * up[i], i in [0, 16): the two halves of one row of a paired panel's output.
using SwigluFn = void (*)(const float* gate_up, float* h);
// y[i] = fma(scale, x[i], y[i]), or scale * x[i] when `first`; i in [0, n).
using AccumulateFn = void (*)(const float* x, float scale, std::size_t n, bool first, float* y);

// Asks the operating system once for AMX, loads the tile configuration that `many` kernels of this thread need, and releases
// it again. Calls nest per thread; cheap when the level has no tile kernels.
using TileScopeFn = void (*)();

}  // namespace ktc::kernels
