// Experts on panels: activations quantised once per token, rows sorted by expert, work cut by (expert, panels), each output
// column summed over the experts in ascending order by one worker.
#include <algorithm>
#include <cstring>

#include "runtime/exec/partition.h"
#include "runtime/exec/panel_steps.h"

namespace ktc::exec {
namespace {

std::size_t pairs_of(const ExpertsStep& s, std::uint32_t expert) { return s.first[expert + 1] - s.first[expert]; }

// Rows of experts that tile kernels serve start on a tile, one expert behind the other; the rows of the others follow.
void place_experts(const PanelExpertsStep& s, std::size_t active) {
  std::size_t position = 0;
  for (const bool tiled : {true, false})
    for (std::size_t i = 0; i < active; ++i) {
      const std::uint32_t expert = s.routed.active[i];
      const std::size_t pairs = pairs_of(s.routed, expert);
      if ((pairs >= s.tile_rows) != tiled) continue;
      s.places[expert] = {static_cast<std::uint32_t>(position), tiled};
      position += tiled ? round_up(pairs, kernels::kTileRows) : pairs;
    }
}

// The panels of one item: about 64 columns of h for one token, more where the rows are many.
std::size_t panels_per_item(std::size_t panels, std::size_t outer, std::size_t threads) {
  const std::size_t items = 2 * kItemsPerWorker * threads;
  return std::clamp<std::size_t>(panels * outer / std::max<std::size_t>(1, items), 1, 4);
}

void quantise_tokens(const PanelExpertsStep& s, const StepState& state, std::size_t rows) {
  state.workers->parallel_for(rows, claim_grain(4 * s.x_operands.columns), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) s.x_operands.fill(s.routed.x.row(r), r, false, r);
  });
}

// One PanelRow per sorted pair; values gathered into tiles where tile kernels will read them.
void gather(const PanelExpertsStep& s, const StepState& state, std::size_t active) {
  const auto one = [&](std::size_t i) {
    const std::uint32_t expert = s.routed.active[i];
    const ExpertPlace place = s.places[expert];
    for (std::size_t pair = s.routed.first[expert]; pair < s.routed.first[expert + 1]; ++pair) {
      const std::size_t token = s.routed.pair_row[pair];
      kernels::PanelRow row = s.x_operands.row(token, false, token);
      if (place.tiled) {
        const std::size_t position = place.position + (pair - s.routed.first[expert]);
        s.x_operands.copy_to_tile(row.values, s.x_tiles, position);
        row.values = s.x_operands.at(s.x_tiles, position, true);
      }
      s.rows[pair] = row;
    }
  };
  const std::size_t pairs = s.routed.first[s.routed.experts];
  const std::size_t work = s.tile_rows == SIZE_MAX ? 1 : pairs / std::max<std::size_t>(1, active) * s.x_operands.padded;
  state.workers->parallel_for(active, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) one(i);
  });
}

void gate_up(const PanelExpertsStep& s, const StepState& state, std::size_t active, std::size_t rows) {
  const ExpertsStep& routed = s.routed;
  std::uint32_t* busiest = state.busy_experts;
  std::copy_n(routed.active, active, busiest);
  if (active < rows * routed.top_k)  // with one row each any order is as good
    std::sort(busiest, busiest + active, [&](std::uint32_t a, std::uint32_t b) {
      return pairs_of(routed, a) != pairs_of(routed, b) ? pairs_of(routed, a) > pairs_of(routed, b) : a < b;
    });
  const std::size_t panels = s.gate_up.layout.panels;
  const std::size_t step = panels_per_item(panels, active, static_cast<std::size_t>(state.workers->threads()));
  const std::size_t parts = blocks(panels, step);
  const std::size_t work = blocks(rows * routed.top_k, active) * step * kPanelFeatures * s.x_operands.padded / 4;
  state.workers->parallel_for(active * parts, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    TileScope scope(state, s.tile_rows != SIZE_MAX);
    for (std::size_t item = begin; item < end; ++item) {
      const std::uint32_t expert = busiest[item / parts];
      const bool tiled = s.places[expert].tiled;
      const std::size_t p_begin = item % parts * step, p_end = std::min(panels, p_begin + step);
      const std::size_t pair = routed.first[expert];
      for (std::size_t p = p_begin; p < p_end; ++p) {
        const std::byte* next = p + 1 < panels ? s.gate_up.panel(expert, p + 1) : nullptr;
        panel_product(s.gate_up, s.gate_up.panel(expert, p), next, s.rows + pair, pairs_of(routed, expert), tiled,
                      s.x_operands.kb_stride(tiled), s.x_operands.granule, scope.scratch(),
                      [&](std::size_t first, std::size_t n, const float* out) {
                        for (std::size_t r = 0; r < n; ++r)
                          s.swiglu(out + r * kPanelFeatures, s.hidden.row(pair + first + r) + p * kBlockFeatures);
                      });
      }
    }
  });
}

void quantise_hidden(const PanelExpertsStep& s, const StepState& state, std::size_t active) {
  const std::size_t pairs = s.routed.first[s.routed.experts];
  kernels::PanelRow* h_rows = s.rows + s.most_pairs;
  const std::size_t work = blocks(pairs, std::max<std::size_t>(1, active)) * 4 * s.h_operands.columns;
  state.workers->parallel_for(active, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t expert = s.routed.active[i];
      const ExpertPlace place = s.places[expert];
      for (std::size_t pair = s.routed.first[expert]; pair < s.routed.first[expert + 1]; ++pair) {
        const std::size_t position = place.position + (pair - s.routed.first[expert]);
        s.h_operands.fill(s.hidden.row(pair), position, place.tiled, pair);
        h_rows[pair] = s.h_operands.row(position, place.tiled, pair);
      }
    }
  });
}

void down(const PanelExpertsStep& s, const StepState& state, std::size_t active, std::size_t rows) {
  const ExpertsStep& routed = s.routed;
  const std::size_t panels = s.down.layout.panels;
  const std::size_t work = rows * routed.top_k * kPanelFeatures * s.h_operands.padded / 4;
  state.workers->parallel_for(panels, claim_grain(work), [&](std::size_t begin, std::size_t end) {
    TileScope scope(state, s.tile_rows != SIZE_MAX);
    for (std::size_t p = begin; p < end; ++p) {
      const std::size_t column = p * kPanelFeatures;
      const std::size_t columns = std::min<std::size_t>(kPanelFeatures, routed.out.columns - column);
      for (std::size_t r = 0; r < rows; ++r) std::memset(routed.out.row(r) + column, 0, columns * sizeof(float));
      for (std::size_t i = 0; i < active; ++i) {
        const std::uint32_t expert = routed.active[i];
        const bool tiled = s.places[expert].tiled;
        const std::size_t pair = routed.first[expert];
        const std::byte* next = i + 1 < active ? s.down.panel(routed.active[i + 1], p)
                                : p + 1 < panels ? s.down.panel(routed.active[0], p + 1) : nullptr;
        panel_product(s.down, s.down.panel(expert, p), next, s.rows + s.most_pairs + pair, pairs_of(routed, expert), tiled,
                      s.h_operands.kb_stride(tiled), s.h_operands.granule, scope.scratch(),
                      [&](std::size_t first, std::size_t n, const float* out) {
                        for (std::size_t r = 0; r < n; ++r)
                          s.accumulate(out + r * kPanelFeatures, routed.pair_weight[pair + first + r], columns, false,
                                       routed.out.row(routed.pair_row[pair + first + r]) + column);
                      });
      }
    }
  });
}

}  // namespace

void run_step(const PanelExpertsStep& s, const StepState& state) {
  const std::size_t rows = state.count(s.routed.of_rows);
  if (rows == 0) return;
  const std::size_t active = sort_pairs(s.routed, rows);
  const bool tiled = std::any_of(s.routed.active, s.routed.active + active,
                                 [&s](std::uint32_t expert) { return pairs_of(s.routed, expert) >= s.tile_rows; });
  if (!tiled) return run_few_tokens(s, state, active, rows);
  place_experts(s, active);
  quantise_tokens(s, state, rows);
  gather(s, state, active);
  if (active != 0) {
    gate_up(s, state, active, rows);
    quantise_hidden(s, state, active);
  }
  down(s, state, active, rows);
}

}  // namespace ktc::exec
