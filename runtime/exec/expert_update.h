// Which experts belong on a GPU, as the tokens go by: pure functions of counts, without clocks, devices or randomness. The mover
// (expert_mover.h) does what they say.
//
// Every `every_tokens` tokens the counts of each layer, older tokens weighing less, are compared: a cold expert takes the place of
// a hot one when it was chosen more often by more than chance explains. A layer keeps its number of hot experts. After every trial
// of several thousand generated tokens the gain is compared with the cost, and moving ends for good when it does not pay.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ktc::exec {

struct UpdateRules {
  std::uint32_t every_tokens = 256;
  // What counts of `every_tokens` tokens ago weigh. Half: two rounds after a change of topic the new one leads.
  double keep = 0.5;
  // Standard deviations of the difference of two counts by which a cold expert must lead. A workload that does not change loses half
  // a hundredth of its hits to chance by that, one that changes follows sooner (docs/decisions.md).
  double doubt = 2.0;
  std::uint32_t trial_rounds = 16;  // gain and cost are compared after so many times every_tokens tokens of decode
  double margin = 1.0;              // gain must exceed so many times the cost
};

// A cold expert takes the matrix of a hot one.
struct ExpertSwap {
  std::uint32_t layer = 0;  // index, not model layer
  std::uint32_t in = 0, out = 0;  // experts
  double lead = 0;          // of `in` over `out`, in decayed tokens
  double gain = 0;          // the same of one token: pairs that the CPU is spared in each
};

// The swaps of one layer, the largest lead first; no expert twice. counts: decayed, by expert. hot: by expert.
std::vector<ExpertSwap> choose_swaps(std::span<const double> counts, std::span<const bool> hot, double doubt);

// What a trial gained and cost, in seconds of the step's thread.
struct UpdateTrial {
  std::uint64_t pairs = 0, hits = 0;  // (token, expert) pairs seen, and those that were hot
  std::uint64_t initial_hits = 0;     // those that would have been hot had nothing ever moved
  std::uint64_t cold_pairs = 0;       // pairs that the CPU computed in cold_seconds
  double cold_seconds = 0;
  std::uint64_t moves = 0;
  double cost_seconds = 0;            // of deciding and moving
  double gain_seconds() const;        // 0 when nothing was measured
  bool pays(double margin = 1.0) const { return moves == 0 || gain_seconds() > margin * cost_seconds; }
};

class ExpertUpdate {
 public:
  // slots: of every layer, matrix of each expert at first, -1: cold.
  ExpertUpdate(UpdateRules rules, std::vector<std::vector<std::int32_t>> slots);

  // One token's choice in a layer; ids beyond the layer's experts (a router's NaN) are left out. `costs`: the step is one whose
  // time is measured (decode); others count for the choice alone. Returns how many of them are cold.
  std::size_t count(std::uint32_t layer, std::span<const std::int32_t> ids, bool costs);
  // So many tokens went through all layers; `costs` as above.
  void tokens(std::uint64_t n, bool costs) {
    tokens_ += n;
    if (costs) measured_ += n;
  }
  bool due() const { return tokens_ >= rules_.every_tokens; }

  // Ends a round: swaps of all layers, the largest lead first. They are proposals: moved() says which ones were made. Long chunks
  // count as several rounds, so that a prompt's own experts lead after it.
  std::vector<ExpertSwap> decide();
  void moved(const ExpertSwap& swap);
  std::span<const std::int32_t> slots(std::uint32_t layer) const { return layers_[layer].slots; }
  std::size_t layers() const { return layers_.size(); }

  // Measured by the caller, for the trial that runs.
  void add_cold(double seconds) { trial_.cold_seconds += seconds; }
  void add_cost(double seconds) { trial_.cost_seconds += seconds; }
  double pair_seconds() const;  // of the CPU for a pair; 0 when nothing was measured
  // Behind decide(): the trial that has just ended, if one has.
  const UpdateTrial* ended_trial() const { return trial_ended_ ? &last_trial_ : nullptr; }
  // Since the first token, time and moves included.
  UpdateTrial total() const;

 private:
  struct Layer {
    std::vector<std::int32_t> slots;
    std::vector<bool> initial;          // by expert: hot at first
    std::vector<double> decayed;
    std::vector<std::uint32_t> fresh;   // of this round
  };
  UpdateRules rules_;
  std::vector<Layer> layers_;
  std::uint64_t tokens_ = 0;
  double weight_ = 0;           // of the tokens in `decayed`
  std::uint64_t measured_ = 0;  // of this trial
  bool trial_ended_ = false;
  UpdateTrial trial_, last_trial_, before_;
};

// "moved 12 experts, hit rate 61.2 % instead of 40.1 %, saved 80.1 ms for 2.2 ms"
std::string to_text(const UpdateTrial& trial);

}  // namespace ktc::exec
