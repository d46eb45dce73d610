// Linear and Mlp on panels. Every output element is computed by one worker in an order that its row alone decides.
#include <cstring>

#include "runtime/exec/partition.h"
#include "runtime/exec/panel_steps.h"

namespace ktc::exec {
namespace {

// Panels of one item: enough work for a claim, few enough that the workers share evenly.
std::size_t panels_per_item(std::size_t panels, std::size_t outer, std::size_t threads) {
  const std::size_t items = kItemsPerWorker * threads;
  return std::clamp<std::size_t>(panels * outer / std::max<std::size_t>(1, items), 1, 8);
}

void fill_rows(const StepState& state, const Matrix& x, const PanelOperands& operands, kernels::PanelRow* rows, std::size_t count,
               bool tiled) {
  state.workers->parallel_for(count, claim_grain(4 * operands.columns), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      operands.fill(x.row(r), r, tiled, r);
      rows[r] = operands.row(r, tiled, r);
    }
  });
}

// body(panel, first row, rows, out) for every panel and piece of rows.
template <typename Body>
void all_panels(const StepState& state, const PanelWeight& w, const PanelOperands& operands, const kernels::PanelRow* rows,
                std::size_t count, bool tiled, const Body& body) {
  const std::size_t threads = static_cast<std::size_t>(state.workers->threads());
  const std::size_t row_step = std::min<std::size_t>(count, 4 * kPanelRowsAtOnce), row_blocks = blocks(count, row_step);
  const std::size_t step = panels_per_item(w.layout.panels, row_blocks, threads);
  const std::size_t items = row_blocks * blocks(w.layout.panels, step);
  const std::size_t work = row_step * step * kPanelFeatures * operands.padded / 4;
  state.workers->parallel_for(items, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    TileScope scope(state, tiled);
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t m = item % row_blocks * row_step, m_count = std::min(count, m + row_step) - m;
      const std::size_t p_begin = item / row_blocks * step, p_end = std::min<std::size_t>(w.layout.panels, p_begin + step);
      for (std::size_t p = p_begin; p < p_end; ++p) {
        const std::byte* next = p + 1 < w.layout.panels ? w.panel(0, p + 1) : nullptr;
        panel_product(w, w.panel(0, p), next, rows + m, m_count, tiled, operands.kb_stride(tiled), operands.granule,
                      scope.scratch(), [&](std::size_t first, std::size_t n, const float* out) { body(p, m + first, n, out); });
      }
    }
  });
}

}  // namespace

void run_step(const PanelLinearStep& s, const StepState& state) {
  const std::size_t count = state.count(s.of_rows);
  if (count == 0) return;
  const bool tiled = count >= s.tile_rows;
  fill_rows(state, s.x, s.operands, s.rows, count, tiled);
  all_panels(state, s.w, s.operands, s.rows, count, tiled,
             [&](std::size_t p, std::size_t first, std::size_t n, const float* out) {
               const std::size_t column = p * kPanelFeatures;
               const std::size_t columns = std::min<std::size_t>(kPanelFeatures, s.out.columns - column);
               for (std::size_t r = 0; r < n; ++r) {
                 float* y = s.out.row(first + r) + column;
                 std::memcpy(y, out + r * kPanelFeatures, columns * sizeof(float));
                 if (s.bias != nullptr)
                   for (std::size_t c = 0; c < columns; ++c) y[c] += s.bias[column + c];
               }
             });
}

void run_step(const PanelMlpStep& s, const StepState& state) {
  const std::size_t count = state.count(s.of_rows);
  if (count == 0) return;
  const bool tiled = count >= s.tile_rows;
  fill_rows(state, s.x, s.x_operands, s.rows, count, tiled);
  all_panels(state, s.gate_up, s.x_operands, s.rows, count, tiled,
             [&](std::size_t p, std::size_t first, std::size_t n, const float* out) {
               for (std::size_t r = 0; r < n; ++r)
                 s.swiglu(out + r * kPanelFeatures, s.hidden.row(first + r) + p * kBlockFeatures);
             });
  kernels::PanelRow* h_rows = s.rows + count;
  fill_rows(state, s.hidden, s.h_operands, h_rows, count, tiled);
  all_panels(state, s.down, s.h_operands, h_rows, count, tiled,
             [&](std::size_t p, std::size_t first, std::size_t n, const float* out) {
               const std::size_t column = p * kPanelFeatures;
               const std::size_t columns = std::min<std::size_t>(kPanelFeatures, s.out.columns - column);
               for (std::size_t r = 0; r < n; ++r)
                 std::memcpy(s.out.row(first + r) + column, out + r * kPanelFeatures, columns * sizeof(float));
             });
}

}  // namespace ktc::exec
