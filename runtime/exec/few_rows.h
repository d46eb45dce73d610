// Gate, up, activation and down for few rows as one loop of items: experts of a decode step, and dense MLPs and shared experts,
// which are one expert that every row wants. Design: docs/kernels.md.
#pragma once

#include <algorithm>
#include <cstddef>

#include "runtime/exec/panel_steps.h"
#include "runtime/exec/result_cells.h"
#include "runtime/exec/spin_wait.h"

namespace ktc::exec {

// Waits for another item of the same loop. Meanwhile this worker fetches what it will read into its cache, so that the memory
// does not wait too: line(i) is the address of the i-th of `lines` lines of 64 bytes.
template <typename Ready, typename Line>
void await_item(const Workers& workers, const Ready& ready, std::size_t lines, const Line& line) {
  constexpr std::size_t kMostLines = 4096, kLinesPerLook = 4;  // 256 KiB: a part of the second level
  if (ready()) return;
  lines = std::min(lines, kMostLines);
  for (std::size_t i = 0; i < lines && !ready(); i += kLinesPerLook)
    for (std::size_t k = i; k < std::min(lines, i + kLinesPerLook); ++k) __builtin_prefetch(line(k), 0, 2);
  for (SpinWait wait(workers.spin()); !ready();) wait.rest();
}

// What the loop works on. Matrices of `gate_up` and `down` are experts; rows sorted by expert are pairs.
struct FewRows {
  const PanelWeight& gate_up;
  const PanelWeight& down;
  const PanelOperands& x_operands;  // one row per row of x, plain
  const PanelOperands& h_operands;  // one row per pair, plain
  Matrix x, out, hidden;            // hidden: [pairs, intermediate padded to 16]
  kernels::PanelRow* x_rows;        // [pairs]
  kernels::PanelRow* h_rows;        // [pairs]
  kernels::SwigluFn swiglu;
  std::size_t rows, pairs;
  std::size_t active;               // experts with pairs
  const std::uint32_t* experts;     // [active], ascending
  const std::uint32_t* first;       // by expert: its first pair; behind it, that of the next
  ExpertPlace* places;              // [active]
  const std::uint32_t* pair_row;    // null: pair i is row i, which is then written as it is
  const float* pair_weight;
  kernels::AccumulateFn accumulate; // null without pair_row
  const ResultNear* near = nullptr;  // announced when the last item is claimed
  ResultCells* cells = nullptr;      // each panel of `out` as well, when it is summed
};

// Runs it on all workers. Needs neither order nor barriers around it but those of any step.
void run_few_rows(const FewRows& few, Workers& workers);

}  // namespace ktc::exec
