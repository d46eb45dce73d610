// Rows times panels: the inner loop that linear, mlp and experts share.
#pragma once

#include <algorithm>

#include "runtime/exec/panel_operands.h"
#include "runtime/formats/panel.h"
#include "runtime/kernels/cpu/kernels.h"
#include "runtime/weights/node_split.h"

namespace ktc::exec {

// A packed weight of one or more matrices in panels, with the kernels of its format.
struct PanelWeight {
  const std::byte* data = nullptr;
  PanelLayout layout;
  kernels::PanelKernels kernels;
  const weights::PanelSplit* split = nullptr;  // where its panels are on several nodes; null: all at `data`
  // Panels one behind the other of one matrix and node are neighbours in memory.
  const std::byte* panel(std::size_t matrix, std::size_t p) const {
    if (split != nullptr) return split->panel(matrix, p, layout.panel_bytes);
    return data + matrix * layout.matrix_bytes + p * layout.panel_bytes;
  }
};

// Runs the plain rows[0, m) against one panel and calls body(first_row, rows, out) for pieces of at most kFewRows rows; out is
// [rows][32].
template <typename Body>
void panel_product(const PanelWeight& w, const std::byte* panel, const std::byte* next, const kernels::PanelRow* rows,
                   std::size_t m, const PanelOperands& operands, const Body& body) {
  alignas(64) float out[kernels::kFewRows * kPanelFeatures];
  kernels::PanelArgs args = {};
  args.panel = panel;
  args.layout = &w.layout;
  args.kb_stride = operands.piece_bytes();
  args.x_granule = operands.granule;
  args.out = out;
  for (std::size_t first = 0; first < m; first += kernels::kFewRows) {
    args.rows = rows + first;
    args.m = std::min(kernels::kFewRows, m - first);
    args.next = first + kernels::kFewRows < m ? panel : next;
    w.kernels.few(args);
    body(first, args.m, out);
  }
}

}  // namespace ktc::exec
