// What linear, mlp and experts share on the host side: weights as kernels see them, dispatch over formats, launches of the two
// product kernels, and the slow kernel for f32 activations.
#pragma once

#include <cuda_runtime.h>

#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/gpu_workspace.h"
#include "runtime/kernels/cuda/dependent_launch.cuh"
#include "runtime/kernels/cuda/dot_tile.cuh"
#include "runtime/kernels/cuda/tile_gemm.cuh"

namespace ktc::gpu {

inline Rows rows_of(const Weight& w) {
  Rows r = {w.data, w.matrix_bytes, w.row_bytes, 0, w.rows, w.columns, 1, w.group};
  if (w.packing == Packing::gpu_rows)
    if (const auto layout = gpu_rows_layout(w.format, w.group, w.rows, w.columns)) {
      r.matrix_bytes = layout->matrix_bytes;
      r.row_bytes = layout->row_bytes;
      r.scales_offset = layout->scales_offset;
      r.groups = static_cast<std::uint32_t>(layout->groups);
    }
  if (w.packing == Packing::row_major && r.matrix_bytes == 0) r.matrix_bytes = w.rows * w.row_bytes;
  return r;
}

template <Format F>
struct FormatTag {
  static constexpr Format value = F;
};
template <int B, bool Grouped>
struct GroupTag {
  static constexpr int bytes = B;
  static constexpr bool grouped = Grouped;
};

// fn(FormatTag) for formats that tensor cores take; cudaErrorNotSupported for others.
template <typename Fn>
int for_format(Format format, const Fn& fn) {
  switch (format) {
    case Format::bf16: return fn(FormatTag<Format::bf16>());
    case Format::int8: return fn(FormatTag<Format::int8>());
    case Format::int4: return fn(FormatTag<Format::int4>());
    case Format::fp8: return fn(FormatTag<Format::fp8>());
    default: return cudaErrorNotSupported;
  }
}
// fn(FormatTag, GroupTag): how lanes read the rows of a weight with such groups.
template <typename Fn>
int for_group(Format format, std::uint32_t group, const Fn& fn) {
  switch (format) {
    case Format::bf16: return fn(FormatTag<Format::bf16>(), GroupTag<16, false>());
    case Format::int8: return fn(FormatTag<Format::int8>(), GroupTag<16, false>());
    case Format::fp8:
      return group == 0 ? fn(FormatTag<Format::fp8>(), GroupTag<16, false>()) : fn(FormatTag<Format::fp8>(), GroupTag<16, true>());
    case Format::int4:
      switch (group) {
        case 0: return fn(FormatTag<Format::int4>(), GroupTag<16, false>());
        case 32: return fn(FormatTag<Format::int4>(), GroupTag<4, true>());
        case 64: return fn(FormatTag<Format::int4>(), GroupTag<8, true>());
        default: return fn(FormatTag<Format::int4>(), GroupTag<16, true>());
      }
    default: return cudaErrorNotSupported;
  }
}

constexpr unsigned kMostBlocks = 1024;  // of dot tile kernels: several on every SM, each with more than one tile where there are many

// How many rows of so many columns are staged at once: 96 KiB of shared memory hold them on every card.
inline std::uint32_t few_rows(std::uint32_t columns) {
  const std::uint32_t fit = 96 * 1024 / (2 * static_cast<std::uint32_t>(staged_stride(static_cast<int>(columns))));
  return fit < kGpuFewRows ? fit : static_cast<std::uint32_t>(kGpuFewRows);
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
inline unsigned ceil_div(std::uint64_t a, std::uint64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

// Lets a kernel use more shared memory than 48 KiB. Idempotent, allowed during capture.
template <typename Kernel>
int allow_shared(Kernel kernel, std::size_t bytes) {
  if (bytes <= 48 * 1024) return 0;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// x f32 to bf16 [rows][padded to 64], zeros behind the columns.
int round_rows(const Matrix& x, std::uint32_t rows, __nv_bfloat16* out, std::uint64_t out_stride, void* stream);

// The part that every product has; the rest is zero.
inline GemmArgs gemm_args(const __nv_bfloat16* a, std::uint64_t a_stride, const Weight& w) {
  GemmArgs g = {};
  g.a = a;
  g.a_stride = a_stride;
  g.w = rows_of(w);
  g.columns = w.columns;
  return g;
}

// `batch`: equal products, f32 to f32 in bf16 weights alone (GemmArgs::wide).
int launch_tile_gemm(Format format, const GemmArgs& args, std::uint32_t most_tiles, void* stream, std::uint32_t batch = 1);

// out[r][n] = x[r] . W[n] (+ bias), one warp per element: f32 activations, f32 weights.
int linear_slow(const LinearArgs& args, void* stream);

// out = x W^T for up to kGpuFewRows rows: f32 in, f32 out.
int linear_few(const Matrix& x, const Weight& w, const float* bias, const Matrix& out, std::uint32_t rows, void* stream);

// h[r][i] = silu(gate) * up for up to kGpuFewRows rows of one matrix; h f32 with `h_stride` elements a row.
int gate_up_few(const Matrix& x, const Weight& gate_up, float* h, std::uint64_t h_stride, std::uint32_t rows, void* stream);

}  // namespace ktc::gpu
