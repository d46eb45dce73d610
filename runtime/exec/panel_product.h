// Rows times panels: the inner loop that linear, mlp and experts share.
#pragma once

#include <algorithm>

#include "runtime/exec/panel_operands.h"
#include "runtime/formats/panel.h"
#include "runtime/kernels/cpu/kernels.h"

namespace ktc::exec {

// A packed weight of one or more matrices in panels, with the kernels of its format.
struct PanelWeight {
  const std::byte* data = nullptr;
  PanelLayout layout;
  kernels::PanelKernels kernels;
  const std::byte* panel(std::size_t matrix, std::size_t p) const {
    return data + matrix * layout.matrix_bytes + p * layout.panel_bytes;
  }
};

constexpr std::size_t kPanelRowsAtOnce = 64;  // of outputs on the stack: 8 KiB; a tile kernel unpacks int4 once for so many

// Runs `rows[0, m)` against one panel and calls body(first_row, rows, out) for pieces of at most kPanelRowsAtOnce rows;
// out is [rows][32]. `scratch`: of this worker, for tile kernels.
template <typename Body>
void panel_product(const PanelWeight& w, const std::byte* panel, const std::byte* next, const kernels::PanelRow* rows,
                   std::size_t m, bool tiled, std::size_t kb_stride, std::uint32_t granule, std::byte* scratch,
                   const Body& body) {
  alignas(64) float out[kPanelRowsAtOnce * kPanelFeatures];
  kernels::PanelArgs args = {};
  args.panel = panel;
  args.layout = &w.layout;
  args.kb_stride = kb_stride;
  args.x_granule = granule;
  args.scratch = scratch;
  const std::size_t at_once = tiled ? kPanelRowsAtOnce : kernels::kFewRows;
  for (std::size_t first = 0; first < m; first += at_once) {
    args.rows = rows + first;
    args.m = std::min(at_once, m - first);
    args.next = first + at_once < m ? panel : next;
    args.out = out;
    (tiled ? w.kernels.many : w.kernels.few)(args);
    body(first, args.m, out);
  }
}

}  // namespace ktc::exec
