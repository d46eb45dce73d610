// Measures layers of experts against the ceilings of the machine, in rounds.
//
// The rates of a shared machine move by tens of percent within seconds, so nothing is compared across time: a round is the
// compute peak, then every case for at least 8 ms between two reads of the very experts that it computes, for memory need not be
// equally fast everywhere; fractions are taken within a round (against the mean of the two reads), and the median over the
// rounds is reported with its quartiles.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/ktc/bench_layer.h"
#include "tools/ktc/bench_options.h"

namespace ktc::bench {

// Quartiles over the rounds.
struct Spread {
  double low = 0, median = 0, high = 0;
};
Spread spread_of(std::vector<double> values);

struct CaseResult {
  WeightFormat format;
  Routing routing;
  std::string variant;
  bool tiled = false;           // which kernel ran
  double bytes = 0;             // of the active experts
  double operations = 0;        // two per multiply-add
  Spread seconds;               // of one layer
  Spread bytes_per_second, operations_per_second;
  Spread read;                  // bytes per second of the reads of its own experts
  Spread of_read, of_compute;   // of these reads; of the peak
  // Of the workers' time in a layer with tiles: gather and x, gate and up, h, down, waiting for each other. 0: not told.
  double gather = 0, gate_up = 0, h = 0, down = 0, waiting = 0;
};

struct ExpertsResult {
  IsaLevel level = IsaLevel::scalar;
  kernels::TileShapes shapes;  // what the probe chose
  int threads = 0;
  std::size_t rounds = 0;
  std::vector<std::uint64_t> pool_bytes;        // per format of the options
  Spread read;                                  // bytes per second, of all reads of a round
  double read_mean = 0;                         // all bytes over all seconds of the reads
  Spread integer_peak, float_peak;              // operations per second; 0: no case needs it
  bool peak_tiled = false;
  std::vector<CaseResult> cases;                // by format, then tokens, then variant
};

// `options`: checked. Fails, without a result, when a layer's output differs from the scalar kernels': to the bit for integer
// formats, by more than a thousandth of the largest output for the others.
//
// `next`: asked before every round, with the seconds of one layer that the last round found, by case, in the order of the
// formats and within them of the tokens (nothing before the first round); false ends the measurement. Empty: options.rounds rounds.
using NextRound = std::function<bool(std::span<const double> seconds)>;
Expected<ExpertsResult> measure_experts(const ExpertsOptions& options, const NextRound& next = {});

}  // namespace ktc::bench
