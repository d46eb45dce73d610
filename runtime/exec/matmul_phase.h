// One phase of a matrix product: rows x columns cut into items, each one kernel call.
#pragma once

#include "runtime/exec/partition.h"
#include "runtime/exec/program.h"

namespace ktc::exec {

// Calls body(row_begin, row_end, column_begin, column_end) for a grid over [rows, columns]; `depth` is the length of each dot
// product, `column_bytes` what the weights of one column take. Row blocks of one column block are claimed one after the
// other, so that its weights are read from memory once.
template <typename Body>
void matmul_phase(Workers& workers, std::size_t rows, std::size_t columns, std::size_t depth, std::size_t column_bytes,
                  const Body& body) {
  if (rows == 0 || columns == 0) return;
  const std::size_t threads = static_cast<std::size_t>(workers.threads());
  const std::size_t row_step = row_block(rows, depth * sizeof(float));
  const std::size_t row_blocks = blocks(rows, row_step);
  const std::size_t column_step = column_block(columns, column_bytes, row_blocks, threads);
  const std::size_t items = row_blocks * blocks(columns, column_step);
  workers.parallel_for(items, claim_grain(row_step * column_step * depth), [&](std::size_t begin, std::size_t end) {
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t m = item % row_blocks * row_step, n = item / row_blocks * column_step;
      body(m, std::min(rows, m + row_step), n, std::min(columns, n + column_step));
    }
  });
}

// Rows [m, m_end) of x times features [n, n_end) of w, to the same rows of y.
inline kernels::MatmulArgs product_args(const Matrix& x, const Weight& w, const Matrix& y, std::size_t m, std::size_t m_end,
                                        std::size_t n, std::size_t n_end) {
  kernels::MatmulArgs args = {};
  args.x = x.row(m);
  args.x_stride = x.stride;
  args.w = w.data;
  args.w_row_bytes = w.row_bytes;
  args.y = y.row(m);
  args.y_stride = y.stride;
  args.m = m_end - m;
  args.k = w.columns;
  args.n_begin = n;
  args.n_end = n_end;
  return args;
}

// Calls body(row_begin, row_end); `work` is the elements that one row touches.
template <typename Body>
void row_phase(Workers& workers, std::size_t rows, std::size_t work, const Body& body) {
  workers.parallel_for(rows, claim_grain(work), body);
}

}  // namespace ktc::exec
