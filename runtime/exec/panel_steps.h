// Steps whose weights are panels: linear, mlp, experts with int8 or bf16 activations.
#pragma once

#include "runtime/exec/panel_product.h"
#include "runtime/exec/program.h"

namespace ktc::exec {

struct PanelLinearStep {
  Matrix x, out;
  PanelWeight w;
  const float* bias;             // or null
  PanelOperands operands;
  kernels::PanelRow* rows;       // workspace [rows]
  std::size_t tile_rows;         // from how many rows tile kernels serve; SIZE_MAX: never
  bool of_rows;
};

struct PanelMlpStep {
  Matrix x, out;
  PanelWeight gate_up, down;
  PanelOperands x_operands, h_operands;
  Matrix hidden;                 // workspace [rows, intermediate padded to 16]
  kernels::PanelRow* rows;       // workspace [2, rows]: of x, then of h
  kernels::SwigluFn swiglu;
  std::size_t tile_rows;
  bool of_rows;
};

// One cache line per expert. Many tokens: where the values of the expert's rows lie. Few tokens: how far the i-th active one is.
struct alignas(64) ExpertPlace {
  std::uint32_t position = 0;    // of its first row
  bool tiled = false;
  std::uint32_t finished = 0;    // items of gate and up that are done; by atomic_ref alone while a loop runs
  std::uint32_t ready = 0;       // not 0: all of them, and h is quantised; likewise
};

struct PanelExpertsStep {
  ExpertsStep routed;            // x, ids, weights, out and the table of sorted pairs
  PanelWeight gate_up, down;
  PanelOperands x_operands;      // a row per token, plain
  std::byte* x_tiles;            // workspace: values of x gathered by expert, for tile kernels
  PanelOperands h_operands;      // a row per sorted pair
  Matrix hidden;                 // workspace [pairs, intermediate padded to 16]
  kernels::PanelRow* rows;       // workspace [2, pairs]: of x, then of h
  std::size_t most_pairs;
  ExpertPlace* places;           // workspace [experts]
  kernels::SwigluFn swiglu;
  kernels::AccumulateFn accumulate;
  std::size_t tile_rows;
};

// A worker's use of tile kernels: registers entered and left, and its scratch.
class TileScope {
 public:
  TileScope(const StepState& state, bool used) : state_(state), used_(used && state.tile_scratch != nullptr) {
    if (used_) state_.enter_tiles();
  }
  ~TileScope() {
    if (used_) state_.leave_tiles();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  std::byte* scratch() const {
    return used_ ? state_.tile_scratch + static_cast<std::size_t>(state_.workers->index()) * state_.tile_scratch_each : nullptr;
  }

 private:
  const StepState& state_;
  const bool used_;
};

void run_step(const PanelLinearStep& step, const StepState& state);
void run_step(const PanelMlpStep& step, const StepState& state);
void run_step(const PanelExpertsStep& step, const StepState& state);

// PanelExpertsStep where no expert has tile_rows rows, after sort_pairs found `active` experts. The same bits as with tiles.
void run_few_tokens(const PanelExpertsStep& step, const StepState& state, std::size_t active, std::size_t rows);

}  // namespace ktc::exec
