// Linear and Mlp on panels. Every output element is computed by one worker in an order that its row alone decides.
#include <atomic>
#include <cstring>

#include "runtime/exec/few_rows.h"
#include "runtime/exec/node_grid.h"
#include "runtime/exec/tile_product.h"

namespace ktc::exec {
namespace {

using kernels::kTileRows;

// Panels of one item: enough work for a claim, few enough that the workers share evenly.
std::size_t panels_per_item(std::size_t panels, std::size_t outer, std::size_t threads) {
  const std::size_t items = kItemsPerWorker * threads;
  return std::clamp<std::size_t>(panels * outer / std::max<std::size_t>(1, items), 1, kernels::kMostTilePanels);
}

void fill_rows(const StepState& state, const Matrix& x, const PanelOperands& operands, kernels::PanelRow* rows, std::size_t count) {
  state.workers->parallel_for(count, claim_grain(4 * operands.columns), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      operands.fill(x.row(r), r);
      rows[r] = operands.row(r);
    }
  });
}

// body(panel, first row, rows, out) for every panel and piece of rows.
template <typename Body>
void all_panels(const StepState& state, const PanelWeight& w, const PanelOperands& operands, const kernels::PanelRow* rows,
                std::size_t count, const Body& body) {
  constexpr std::size_t kRowStep = 256;  // kept in the second cache while the panels of an item go by
  const std::size_t threads = static_cast<std::size_t>(state.workers->threads());
  const std::size_t row_step = std::min(count, kRowStep), row_blocks = blocks(count, row_step);
  const std::size_t step = panels_per_item(w.layout.panels, row_blocks, threads);
  const NodeGrid grid(*state.workers, w.split, w.layout.panels, step, row_blocks);
  const std::size_t work = row_step * step * kPanelFeatures * operands.padded / 4;
  for_grid(*state.workers, grid, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const NodeGrid::Item item = grid.by_part(i);
      const std::size_t m = item.outer * row_step, m_count = std::min(count, m + row_step) - m;
      for (std::size_t p = item.begin; p < item.end; ++p) {
        const std::byte* next = p + 1 < w.layout.panels ? w.panel(0, p + 1) : nullptr;
        panel_product(w, w.panel(0, p), next, rows + m, m_count, operands,
                      [&](std::size_t first, std::size_t n, const float* out) { body(p, m + first, n, out); });
      }
    }
  });
}

// Few rows: the same in one loop. Items quantise rows of x, then multiply panels; these wait for the former.
template <typename Body>
void few_rows(const StepState& state, const PanelWeight& w, const Matrix& x, const PanelOperands& operands,
              kernels::PanelRow* rows, std::size_t count, const Body& body) {
  for (std::size_t r = 0; r < count; ++r) rows[r] = operands.row(r);
  const std::size_t rows_each = std::min(count, claim_grain(4 * operands.columns)), row_items = blocks(count, rows_each);
  const std::size_t panels = w.layout.panels;
  const std::size_t step = std::max(panels_per_item(panels, 1, static_cast<std::size_t>(state.workers->threads())),
                                    claim_grain(count * kPanelFeatures * operands.padded / 4));
  const NodeGrid grid(*state.workers, w.split, panels, step, 1);
  Deal deal(state.workers->nodes());
  deal.add([&](std::size_t n) { return state.workers->share(row_items, n + 1) - state.workers->share(row_items, n); });
  deal.add([&](std::size_t n) { return grid.items_of(n); });
  alignas(kApart) std::atomic<std::size_t> rows_done{0};
  state.workers->for_claims(deal, [&](Claims& claims) {
    for (; claims.more(); claims.advance()) {
      if (claims.current() < row_items) {
        const std::size_t begin = claims.current() * rows_each, end = std::min(count, begin + rows_each);
        for (std::size_t r = begin; r < end; ++r) operands.fill(x.row(r), r);
        rows_done.fetch_add(1, std::memory_order_release);
        continue;
      }
      const auto [outer, part, begin, end] = grid.by_part(claims.current() - row_items);
      const std::byte* const weights = w.panel(0, begin);
      await_item(*state.workers, [&] { return rows_done.load(std::memory_order_acquire) == row_items; },
                 (end - begin) * w.layout.panel_bytes / 64, [&](std::size_t i) { return weights + i * 64; });
      for (std::size_t p = begin; p < end; ++p) {
        const std::size_t after = p + 1 < end                       ? p + 1
                                  : claims.ahead() < claims.count() ? grid.by_part(claims.ahead() - row_items).begin
                                                                    : panels;
        panel_product(w, w.panel(0, p), after < panels ? w.panel(0, after) : nullptr, rows, count, operands,
                      [&](std::size_t first, std::size_t n, const float* out) { body(p, first, n, out); });
      }
    }
  });
}

void write_rows(const Matrix& out, const float* bias, std::size_t p, std::size_t first, std::size_t n, const float* f) {
  const std::size_t column = p * kPanelFeatures, columns = std::min<std::size_t>(kPanelFeatures, out.columns - column);
  for (std::size_t r = 0; r < n; ++r) {
    float* y = out.row(first + r) + column;
    std::memcpy(y, f + r * kPanelFeatures, columns * sizeof(float));
    if (bias != nullptr)
      for (std::size_t c = 0; c < columns; ++c) y[c] += bias[column + c];
  }
}

// ------------------------------------------------------------------------------------------------------------------ in tiles

void fill_tiles(const StepState& state, const Matrix& x, const PanelOperands& plain, const PanelOperands& tiles, std::size_t count) {
  state.workers->parallel_for(blocks(count, kTileRows), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::size_t first = t * kTileRows, n = std::min(kTileRows, count - first);
      for (std::size_t r = first; r < first + n; ++r) plain.fill(x.row(r), r);
      tiles.gather_tile(plain, t, n, [first](std::size_t i) { return first + i; });
    }
  });
}

// args(first row, panel): what a product of these rows and the panels from this one on shall do with its result.
template <typename Args>
void all_tiles(const StepState& state, const PanelWeight& w, const PanelOperands& x, std::size_t count, const TileTuning& tuning,
               const Args& args) {
  const std::size_t threads = static_cast<std::size_t>(state.workers->threads()), panels = w.layout.panels;
  const std::size_t row_step = std::min(round_up(count, kTileRows), tile_rows_at_once(w.layout.k_blocks, tuning));
  const std::size_t row_blocks = blocks(count, row_step), step = panels_per_item(panels, row_blocks, threads);
  // Row blocks of the same panels one after the other, so that the weights are read from memory once.
  const NodeGrid grid(*state.workers, w.split, panels, step, row_blocks);
  const std::size_t items = grid.items();
  Deal deal(state.workers->nodes());
  deal.add([&](std::size_t n) { return grid.items_of(n); });
  state.workers->for_claims(deal, [&](Claims& claims) {
    const TileScope scope(state, true);
    for (; claims.more(); claims.advance()) {
      const NodeGrid::Item item = grid.by_part(claims.current());
      const std::size_t m = item.outer * row_step, p = item.begin;
      TileNext next;
      if (const std::size_t ahead = claims.current() + threads < items ? claims.ahead() : items; ahead < items) {
        const NodeGrid::Item after = grid.by_part(ahead);
        next.panel = w.panel(0, after.begin);
        if (row_blocks != 1 && tuning.fetch_values) {
          const std::size_t row = after.outer * row_step;
          next.values = x.tiles(row / kTileRows).values;
          next.value_bytes = blocks(std::min(row_step, count - row), kTileRows) * x.tile_bytes();
        }
      }
      tile_product(w, 0, p, item.end - p, x, m / kTileRows, std::min(count, m + row_step) - m, tuning,
                   scope.scratch(), next, args(m, p));
    }
  });
}

kernels::TileArgs to_rows(const Matrix& out, const float* bias, std::size_t m, std::size_t p) {
  kernels::TileArgs args = {};
  args.result = kernels::TileResult::rows;
  args.out = out.row(m) + p * kPanelFeatures;
  args.out_stride = out.stride;
  args.columns = out.columns - p * kPanelFeatures;
  args.bias = bias == nullptr ? nullptr : bias + p * kPanelFeatures;
  return args;
}

}  // namespace

void run_step(const PanelLinearStep& s, const StepState& state) {
  const std::size_t count = state.count(s.of_rows);
  if (count == 0) return;
  if (count >= s.tile_rows) {
    fill_tiles(state, s.x, s.operands, s.tiles, count);
    all_tiles(state, s.w, s.tiles, count, s.tuning, [&](std::size_t m, std::size_t p) { return to_rows(s.out, s.bias, m, p); });
    return;
  }
  const auto write = [&](std::size_t p, std::size_t first, std::size_t n, const float* out) {
    write_rows(s.out, s.bias, p, first, n, out);
  };
  if (count <= kernels::kFewRows) return few_rows(state, s.w, s.x, s.operands, s.rows, count, write);
  fill_rows(state, s.x, s.operands, s.rows, count);
  all_panels(state, s.w, s.operands, s.rows, count, write);
}

// One expert that every row wants.
static void run_few(const PanelMlpStep& s, const StepState& state, std::size_t count) {
  const std::uint32_t expert = 0, first[2] = {0, static_cast<std::uint32_t>(count)};
  ExpertPlace place;
  const FewRows few = {.gate_up = s.gate_up,
                       .down = s.down,
                       .x_operands = s.x_operands,
                       .h_operands = s.h_operands,
                       .x = s.x,
                       .out = s.out,
                       .hidden = s.hidden,
                       .x_rows = s.rows,
                       .h_rows = s.rows + count,
                       .swiglu = s.swiglu,
                       .rows = count,
                       .pairs = count,
                       .active = 1,
                       .experts = &expert,
                       .first = first,
                       .places = &place,
                       .pair_row = nullptr,
                       .pair_weight = nullptr,
                       .accumulate = nullptr};
  run_few_rows(few, *state.workers);
}

void run_step(const PanelMlpStep& s, const StepState& state) {
  const std::size_t count = state.count(s.of_rows);
  if (count == 0) return;
  if (count >= s.tile_rows) {
    fill_tiles(state, s.x, s.x_operands, s.x_tiles, count);
    all_tiles(state, s.gate_up, s.x_tiles, count, s.tuning, [&](std::size_t m, std::size_t p) {
      kernels::TileArgs args = {};
      args.result = kernels::TileResult::gated;
      args.out = s.hidden.row(m) + p * kTileRows * kBlockFeatures;
      args.out_stride = kTileRows * s.hidden.stride;
      return args;
    });
    state.workers->parallel_for(blocks(count, kTileRows), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t)
        s.h_operands.convert_tile(s.hidden.row(t * kTileRows), t, std::min(kTileRows, count - t * kTileRows));
    });
    all_tiles(state, s.down, s.h_operands, count, s.tuning, [&](std::size_t m, std::size_t p) { return to_rows(s.out, nullptr, m, p); });
    return;
  }
  if (count <= kernels::kFewRows) return run_few(s, state, count);
  fill_rows(state, s.x, s.x_operands, s.rows, count);
  all_panels(state, s.gate_up, s.x_operands, s.rows, count, [&](std::size_t p, std::size_t first, std::size_t n, const float* out) {
    for (std::size_t r = 0; r < n; ++r) s.swiglu(out + r * kPanelFeatures, s.hidden.row(first + r) + p * kBlockFeatures);
  });
  kernels::PanelRow* h_rows = s.rows + count;
  fill_rows(state, s.hidden, s.h_operands, h_rows, count);
  all_panels(state, s.down, s.h_operands, h_rows, count, [&](std::size_t p, std::size_t first, std::size_t n, const float* out) {
    write_rows(s.out, nullptr, p, first, n, out);
  });
}

}  // namespace ktc::exec
