// Steps whose weights are panels: linear, mlp, experts with int8 or bf16 activations.
#pragma once

#include <atomic>

#include "runtime/exec/panel_product.h"
#include "runtime/exec/program.h"
#include "runtime/exec/tile_cut.h"

namespace ktc::exec {

struct PanelLinearStep {
  Matrix x, out;
  PanelWeight w;
  const float* bias;             // or null
  PanelOperands operands, tiles; // plain rows; the same in tiles
  kernels::PanelRow* rows;       // workspace [rows]
  std::size_t tile_rows;         // from how many rows tile kernels serve; SIZE_MAX: never
  bool of_rows;
  TileTuning tuning;
};

struct PanelMlpStep {
  Matrix x, out;
  PanelWeight gate_up, down;
  PanelOperands x_operands, x_tiles, h_operands;  // h: plain rows or tiles
  Matrix hidden;                 // workspace [rows, intermediate padded to 16], or blocks of a tile kernel
  kernels::PanelRow* rows;       // workspace [2, rows]: of x, then of h
  kernels::SwigluFn swiglu;
  std::size_t tile_rows;
  bool of_rows;
  TileTuning tuning;
};

// One cache line per expert. Many tokens: of expert i. Few tokens: of the i-th active one, whose rows have no place.
struct alignas(64) ExpertPlace {
  std::uint32_t position = 0;    // of its first row
  std::uint32_t sixteen = 0;     // the number of its first 16 rows
  bool tiled = false;
  std::uint32_t finished = 0;    // items of gate and up that are done; by atomic_ref alone while a loop runs
  std::uint32_t ready = 0;       // few: not 0: all of them, and h is quantised; many: 16 rows of h that are; likewise
};
// How far the sums of some panels of the output are.
struct alignas(64) ExpertTurn {
  std::uint32_t done = 0;        // parts of the experts that were added; by atomic_ref alone while a loop runs
};

// For benchmarks: where the workers' nanoseconds go in a layer that has tiles, all workers together.
struct ExpertTimes {
  std::atomic<std::uint64_t> tokens{0}, gather{0}, gate_up{0}, h{0}, down{0}, waiting{0};  // the last is not in the others
};

struct PanelExpertsStep {
  ExpertsStep routed;            // x, ids, weights, out and the table of sorted pairs
  PanelWeight gate_up, down;
  PanelOperands x_operands;      // a row per token, plain
  PanelOperands x_tiles;         // the same gathered by expert, for tile kernels
  PanelOperands h_operands;      // a row per sorted pair: tiles first
  Matrix hidden;                 // workspace [rows of h_operands, intermediate padded to 16]; of tiles, blocks of a tile kernel
  kernels::PanelRow* rows;       // workspace [2, pairs]: of x, then of h
  std::size_t most_pairs;
  ExpertPlace* places;           // workspace [experts]
  std::uint32_t* sixteens;       // workspace: the expert of every 16 rows; where there may be tiles, as are the next two
  float* out_panels;             // workspace [panels of out][tokens][32]
  ExpertTurn* turns;             // workspace [panels of out]
  kernels::SwigluFn swiglu;
  kernels::AccumulateFn accumulate;
  std::size_t tile_rows;
  TileTuning tuning;
  ExpertTimes* times;            // or null
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
