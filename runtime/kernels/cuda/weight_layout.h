// How a GPU's kernels read a weight of some format and shape: one place for the executor, tests and benchmarks.
#pragma once

#include "runtime/formats/gpu_rows.h"
#include "runtime/formats/gpu_stream.h"
#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::gpu {

// `w` with packing, row_bytes and matrix_bytes from its format, group, rows and columns: row_major for bf16, else gpu_rows. A shape without
// a layout (gpu_rows_layout; f32 has none and is row_major as it comes) keeps its bytes.
inline Weight laid_out(Weight w) {
  w.packing = unpacked_packing(w.format);
  if (w.packing == Packing::row_major) {
    w.row_bytes = packed_row_bytes(w.format, w.packing, w.columns);
    w.matrix_bytes = w.row_bytes * w.rows;
  } else if (const auto layout = gpu_rows_layout(w.format, w.group, w.rows, w.columns)) {
    w.row_bytes = layout->row_bytes;
    w.matrix_bytes = layout->matrix_bytes;
  }
  return w;
}

}  // namespace ktc::gpu
