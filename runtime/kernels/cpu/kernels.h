// CPU kernels: single-threaded primitives on raw pointers. The executor cuts an op into ranges and calls these.
//
// A kernel allocates nothing, keeps no state, and calls nothing but its own code: any number of threads may run it at
// once. Every argument struct states its equation. f32 activations, f32 accumulation. The order of every sum depends on
// the shape of the row alone, never on how rows or columns were cut into ranges, so results do not depend on the number
// of threads nor on the neighbours in a batch (m = 1 and m = 64 give the same bits for a row). Strides are in elements
// for float arrays and in bytes for packed weights. Pointers need no alignment unless stated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/cpu_features.h"
#include "runtime/formats/formats.h"
#include "runtime/kernels/cpu/panel_kernels.h"

namespace ktc::kernels {

// y[m, n] = bias[n] + sum_k x[m, k] * w[n, k]                        for n in [n_begin, n_end)
// With scale: y[y_row(m), n] += scale[m] * (bias[n] + sum_k …)       (adds to y)
// x row m is x + x_row(m) * x_stride; x_rows / y_rows map m to a row where not null.
// Rows of m that share a row of y add to it in ascending m. Weights: packing row_major, the format of the kernel row.
// m = 0 and an empty range do nothing; k >= 1. x, w and bias must not overlap y.
struct MatmulArgs {
  const float* x;
  std::size_t x_stride;
  const std::uint32_t* x_rows;  // [m] or null
  const std::byte* w;           // row 0
  std::size_t w_row_bytes;
  const float* bias;  // [rows of w] or null
  float* y;
  std::size_t y_stride;
  const std::uint32_t* y_rows;  // [m] or null
  const float* scale;           // [m] or null: overwrite
  std::size_t m, k, n_begin, n_end;
};
using MatmulFn = void (*)(const MatmulArgs&);

// h[m, i] = silu(x[m] . w[i]) * (x[m] . w[intermediate + i])          for i in [n_begin, n_end)
// MatmulArgs with w of 2 * intermediate rows, gate rows first; bias and scale are null.
using GateUpFn = void (*)(const MatmulArgs&, std::size_t intermediate);

// out[c] = x[c] * rsqrt(mean(x^2) + eps) * weight[c]; out may be x.
using RmsNormFn = void (*)(const float* x, const float* weight, float eps, std::size_t columns, float* out);

// In place on one head of `dim` elements. style half: pairs (i, i + dim/2); interleaved: (2i, 2i+1).
// cos/sin: [dim / 2], factor included.
using RopeFn = void (*)(float* x, const float* cos, const float* sin, std::size_t dim, bool interleaved);

// out[c] = sum over inputs, left to right; out may be inputs[0].
using AddFn = void (*)(const float* const* inputs, std::size_t count, std::size_t columns, float* out);

// dst[c] = format(src[c]): f32 to f32/bf16, for caches.
using StoreFn = void (*)(const float* src, std::size_t count, std::byte* dst);
// dst[c] = f32(src[c]): for embedding rows.
using LoadFn = void (*)(const std::byte* src, std::size_t count, float* dst);

// Attention of `heads` queries of one token over one shared key/value head in a paged cache:
//   s_j = scale * (q[0..width1) . k1_j + q[width1..width1+width2) . k2_j),  out = softmax(s) v   over j in [0, context)
// Key j lies in page pages[j / page_tokens], slot j % page_tokens. GQA: k1 = k, width2 = 0, v = v.
// MLA: k1 = latent, k2 = rope part, v = latent. Online softmax, pages in order.
//
// `rows`: as many tokens of one sequence at consecutive positions, whose keys are read once: row r sees context + r keys, and
// gets the bits that it gets alone. `first`, `most`: a part of the keys, j in [first, first + most) of those that a row sees, at
// least one for each row; first is a multiple of 64. Parts are joined by AttendJoinFn: `top` and `weight`, where not null, take
// of every head max s_j and the sum of e^(s_j - top), and out is not divided by it.
struct AttendArgs {
  const float* q;  // [heads, q_stride]
  std::size_t q_stride;
  std::size_t heads;
  std::size_t width1, width2, value_width;
  const std::byte* cache;      // of this layer
  const std::uint32_t* pages;  // page ids of the sequence
  std::size_t page_bytes, page_tokens;
  std::size_t k1_offset, k2_offset, v_offset;  // bytes in a page; slots are width * sizeof(format) apart
  std::size_t context;                         // keys visible, at least 1
  float scale;
  float* out;  // [heads, out_stride]
  std::size_t out_stride;
  std::size_t rows = 1;                         // with more than one, rows * heads is at most kMostAttendRows
  std::size_t q_row_stride = 0, out_row_stride = 0;
  std::size_t first = 0, most = SIZE_MAX;
  float* top = nullptr;     // [rows * heads], row after row, or null
  float* weight = nullptr;  // the same; null where top is
};
using AttendFn = void (*)(const AttendArgs&);
inline constexpr std::size_t kMostAttendRows = 128;

// Adds a later part of the keys to an earlier one, for `heads` queries, with m = max(top, part_top):
//   out = e^(top - m) out + e^(part_top - m) part,  weight likewise,  top = m
// part null: there is none. divide: out /= weight at the end.
struct AttendJoinArgs {
  std::size_t heads, width;
  float* out;  // [heads, out_stride]
  std::size_t out_stride;
  float* top;     // [heads]
  float* weight;  // [heads]
  const float* part;  // [heads, part_stride] or null
  std::size_t part_stride;
  const float* part_top;     // [heads]
  const float* part_weight;  // [heads]
  bool divide;
};
using AttendJoinFn = void (*)(const AttendJoinArgs&);

// Largest number of experts that route_token takes (its scores live on the stack).
inline constexpr std::size_t kMaxExperts = 4096;

// Routing of one token: top_k ids and weights from logits (models.md 1.5.2). Ids are in descending order of the
// selection score, ties by the lower id. Scalar: E is small. Needs 1 <= top_k <= experts <= kMaxExperts and groups (0
// or 1: none) that divide experts. A group's score is the sum of its two best with sigmoid, its best with softmax. An
// expert with a NaN score, or outside the kept groups, is chosen only when no other is left.
struct RouteArgs {
  const float* logits;  // [experts]
  const float* bias;    // [experts] or null
  std::size_t experts, top_k, groups, topk_groups;
  bool sigmoid;  // false: softmax over all experts
  bool normalise;
  float scale;
  std::int32_t* ids;  // [top_k]
  float* weights;     // [top_k]
};
void route_token(const RouteArgs& args);

// The kernels of one ISA level, resolved once per process. Never null after select_kernels, PanelKernels::many excepted.
struct KernelSet {
  IsaLevel level;
  MatmulFn matmul_f32, matmul_bf16;  // by the weights' format
  GateUpFn gate_up_f32, gate_up_bf16;
  RmsNormFn rms_norm;
  RopeFn rope;
  AddFn add;
  StoreFn store_f32, store_bf16;
  LoadFn load_f32, load_bf16;
  AttendFn attend_f32, attend_bf16;  // by the cache's format
  AttendJoinFn attend_join;
  PanelKernels panel_int8, panel_int4, panel_fp8, panel_bf16;  // by the weights' format
  QuantiseRowFn quantise_row;
  RoundRowFn round_row;
  QuantiseTileFn quantise_tile;
  RoundTileFn round_tile;
  SwigluFn swiglu;
  AccumulateFn accumulate;
  TileScopeFn enter_tiles, leave_tiles;

  MatmulFn matmul(Format weights) const { return weights == Format::bf16 ? matmul_bf16 : matmul_f32; }
  GateUpFn gate_up(Format weights) const { return weights == Format::bf16 ? gate_up_bf16 : gate_up_f32; }
  const PanelKernels& panel(Format weights) const {
    return weights == Format::int8   ? panel_int8
           : weights == Format::int4 ? panel_int4
           : weights == Format::fp8  ? panel_fp8
                                     : panel_bf16;
  }
  StoreFn store(Format format) const { return format == Format::bf16 ? store_bf16 : store_f32; }
  LoadFn load(Format format) const { return format == Format::bf16 ? load_bf16 : load_f32; }
  AttendFn attend(Format cache) const { return cache == Format::bf16 ? attend_bf16 : attend_f32; }
};

// The best rows of kernels.def and panel_kernels.def that `features` allows, at `level` or below.
KernelSet select_kernels(const CpuFeatures& features, IsaLevel level = IsaLevel::best);

// Which levels the tables have and this machine can run; for tests, benchmarks and --isa errors.
std::span<const IsaLevel> available_levels(const CpuFeatures& features);

}  // namespace ktc::kernels
