// Terms of the cost model, for its own files alone (cost_model.h has the formulas): times by what they are spent on, the
// experts that a step loads, a step and its layers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "placement/cost_model.h"

namespace ktc::placement {

// extend moves rows by copies: as many hand-offs' fixed times (18.6 us against 4.3)
constexpr double kCopyHandoffs = 4;

inline bool is_cpu(std::string_view device) { return device == "cpu"; }

struct Time {  // us, by what they are spent on
  std::array<double, kBounds> spent{};
  double total() const {
    double sum = 0;
    for (const double us : spent) sum += us;
    return sum;
  }
  double& operator[](Bound bound) { return spent[static_cast<std::size_t>(bound)]; }
  Time& operator+=(const Time& other) {
    for (std::size_t i = 0; i < kBounds; ++i) spent[i] += other.spent[i];
    return *this;
  }
  Time operator*(double factor) const {
    Time time = *this;
    for (double& us : time.spent) us *= factor;
    return time;
  }
};

// Of one row, experts: of one expert. `per_head`: W_UK and W_UV of latent attention, which are multiplied in f32;
// otherwise all others.
double matrix_operations(const models::ModelDesc& model, const models::Module& module, bool per_head = false);
// Values that one row's products write, experts: of one expert.
double matrix_outputs(const models::ModelDesc& model, const models::Module& module);

// The experts of a layer that one device has.
struct Load {
  double pairs = 0;     // routed pairs per token
  double distinct = 0;  // experts that the rows of the step touch
  struct Alike {
    double experts = 0, rows = 0;  // that many, each for so many rows
  };
  // The same of steps of several rows, by expert: their numbers of rows decide which kernel serves.
  std::vector<Alike> alike;

  // An expert that a row chooses with probability p.
  void add(double p, double touched, std::uint32_t step_rows);
  // Without a share of each row's pairs: an expert is still read where any of its rows is left.
  Load of_pairs(double fraction) const;
};

// Of kernels: a time, and one that their work takes at least.
struct Fixed {
  double us = 0, least = 0;
  Fixed operator*(double count) const { return {us * count, least * count}; }
};

struct HotLoad {
  const HotExperts* experts = nullptr;
  double expert_bytes = 0;
  Load load;
};

struct FixedLayer {
  std::string device;  // of the chain: the attention's
  Time before;         // attention, norms, router, and what comes from another device
  Time beside;         // shared experts or the dense MLP
};

struct Step {
  std::string entry;
  std::uint32_t rows = 1;
  double context = 0;
  bool decode = true, streamed = false, defer = false;
  std::vector<FixedLayer> layers;
  Time outside;        // embedding, final norm, head
  StepParts parts;     // of everything that hot experts do not change
  std::vector<std::vector<double>> touched;  // by MoE layer and expert: the probability that any row takes it
  std::vector<Load> all;                     // by MoE layer
};

struct MoeLayer {
  std::uint32_t module = 0, top_k = 0;
  std::size_t layer = 0;  // in ModelDesc::layers
  std::vector<double> probability;
  double cold_bytes = 0, operations = 0, outputs = 0;  // of one expert; operations and values of one row
};

// Where a step stands while its layers are added up.
struct Timeline {
  double now = 0, cpu_free = 0;
  Time critical;
  StepParts parts;
  double cold = 0, hot_pairs = 0, pairs = 0;
  double streamed_us = 0;  // PCIe time of streamed experts

  void add(const Time& time) {
    now += time.total();
    critical += time;
  }
};

}  // namespace ktc::placement
