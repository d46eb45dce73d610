// Experts on panels where no expert has rows enough for tiles.
#include "runtime/exec/few_rows.h"

namespace ktc::exec {

void run_few_tokens(const PanelExpertsStep& s, const StepState& state, std::size_t active, std::size_t rows) {
  const ExpertsStep& routed = s.routed;
  const FewRows few = {.gate_up = s.gate_up,
                       .down = s.down,
                       .x_operands = s.x_operands,
                       .h_operands = s.h_operands,
                       .x = routed.x,
                       .out = routed.out,
                       .hidden = s.hidden,
                       .x_rows = s.rows,
                       .h_rows = s.rows + s.most_pairs,
                       .swiglu = s.swiglu,
                       .rows = rows,
                       .pairs = routed.first[routed.experts],
                       .active = active,
                       .experts = routed.active,
                       .first = routed.first,
                       .places = s.places,
                       .pair_row = routed.pair_row,
                       .pair_weight = routed.pair_weight,
                       .accumulate = s.accumulate,
                       .near = state.near,
                       .cells = state.cells};
  run_few_rows(few, *state.workers);
}

}  // namespace ktc::exec
